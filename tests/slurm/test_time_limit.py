"""A time limit of 2 minutes on a run of 4: it requeues itself until it is done, with progress in every attempt."""

import time

import pytest

from sweeps import attempts
from sweeps.files import read_json
from tests.slurm.long_run import ENOUGH_S, LIMIT_MIN, STEPS
from tests.slurm.sweeps import histories_are_whole


@pytest.mark.timeout(ENOUGH_S + 60)
def test_a_run_longer_than_its_time_limit(limited):
    sweep, began = limited
    (folder,) = sweep.folders()
    sweep.wait_until_done(ENOUGH_S - (time.monotonic() - began))
    numbers = attempts.numbers(folder)
    done = read_json(folder / "DONE")
    print(f"{len(numbers)} attempts, {done['seconds']:.0f} s of training")
    assert done["seconds"] > 60 * LIMIT_MIN
    assert len(numbers) >= 3
    ends = [attempts.read_end(folder, number) for number in numbers]
    # SLURM's own signal may come up to a minute early; ours comes in time
    assert {end["cause"] for end in ends[:-1]} <= {"deadline", "signal"}
    assert ends[-1]["cause"] == "done"
    steps = [each.resumed_from for each in attempts.read(folder)]
    assert steps == sorted(set(steps))
    assert [end["saved_step"] for end in ends[:-1]] == steps[1:]
    assert {attempts.slurm_job(folder, number) for number in numbers} == {attempts.slurm_job(folder, 1)}
    job = sweep.cluster.job(attempts.slurm_job(folder, 1))
    assert int(job["Restarts"]) == len(numbers) - 1
    histories_are_whole(folder, STEPS)
