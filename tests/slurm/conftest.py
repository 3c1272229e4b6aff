"""The cluster that all tests of this folder share, and the marker that they all carry."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, reason_to_skip
from tests.slurm.config import Settings
from tests.slurm.long_run import long_run

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)
    items.sort(key=lambda item: "limited" in item.fixturenames)  # stable: the long run's test goes last


@pytest.fixture(scope="session")
def limited(tmp_path_factory):
    """The run of tests/slurm/long_run.py."""
    yield from long_run(tmp_path_factory.mktemp("limited"))


@pytest.fixture(scope="session", autouse=True)
def begin_the_long_run(request):
    """Where the test of the time limit is among those to run, its run begins before all others."""
    chosen = [item for item in request.session.items if "limited" in getattr(item, "fixturenames", ())]
    if chosen and not reason_to_skip():
        request.getfixturevalue("limited")


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
