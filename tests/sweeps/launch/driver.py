"""A sweep over the runs that lie in a folder, as a process of its own: what `python -m sweeps run` does after planning.

Arguments: folder, number of workers, seconds between checkpoints.
"""

import sys
from pathlib import Path

from sweeps.files import read_json
from sweeps.launch.jobs import Job, Orders
from sweeps.launch.local import PoolOptions, run_sweep


def jobs_in(folder):
    """A job for each run of the folder."""
    found = []
    for path in sorted(folder.iterdir()):
        run = read_json(path / "run.json")
        planned = run["planned"]
        found.append(
            Job(path, run["arm"], run["size"], run["seed"], planned["achieved_flops"], planned["steps"], run["threads"])
        )
    return found


if __name__ == "__main__":
    options = PoolOptions(int(sys.argv[2]), Orders("cpu", float(sys.argv[3]), tuple(sys.argv)))
    sys.exit(run_sweep(jobs_in(Path(sys.argv[1])), options).exit_code)
