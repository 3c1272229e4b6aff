"""A run that outlives its time limit, on a cluster of its own: it is submitted before all other tests, which keep the
other core busy, and looked at after them."""

import time
from collections.abc import Iterator
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.sweeps import Sweep, size

STEPS = 38_000
"""About four minutes of one core, where the other tests keep the rest of the machine busy."""
LIMIT_MIN = 2
ENOUGH_S = 720


def long_run(folder: Path) -> Iterator[tuple[Sweep, float]]:
    """The run, and when it was submitted (`time.monotonic`); the cluster is up until the iterator is closed."""
    with Cluster() as own:
        sweep = Sweep(own, folder, {"sizes": [size(STEPS)], "cluster": {"time": LIMIT_MIN}})
        assert "1 submitted" in sweep.submit("--checkpoint-every", 10)
        yield sweep, time.monotonic()
