"""The cluster that all tests of this folder share, and the marker that they all carry."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, reason_to_skip
from tests.slurm.config import Settings

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def running_cluster():
    """The cluster, started once; `cluster` is what tests ask for."""
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)
    with Cluster() as started:
        yield started


@pytest.fixture
def cluster(running_cluster):
    """The cluster, as it was started and with an empty queue, whatever the test before did to it."""
    found = running_cluster
    if "slurmctld" not in found.daemons or found.settings != Settings():
        found.reconfigure_to(Settings())
    if "slurmd" not in found.daemons:
        found.start_slurmd()
    found.cancel_all()
    yield found
    if "slurmctld" in found.daemons:
        found.cancel_all()
