"""MaxArraySize of 5 for 12 runs, a partition that refuses a job, a bound on parallel runs, no accounting database."""

from tests.slurm.sweeps import Sweep, size

RUNS = 12
KEYS = {
    "sizes": [size(30), size(30, "odd", d_model=20)],
    "seeds": list(range(RUNS)),
    "cluster": {"time": 30, "parallel": 3, "sizes": {"odd": {"partition": "closed"}}},
}


def test_chunks_are_named_and_the_rest_goes_on(cluster, tmp_path):
    cluster.reconfigure(max_array=5, accounting=False)
    sweep = Sweep(cluster, tmp_path, KEYS)
    said = sweep.submit(code=1)
    assert "12 submitted: job arrays" in said
    assert [part.split(")")[0] for part in said.split("job arrays ")[1].split("(")[1:4]] == ["5", "5", "2"]
    assert said.count("refused by SLURM") == 3
    assert "refused by SLURM: 5 runs of size odd: " in said
    assert "partition" in said.split("refused by SLURM")[1].lower()

    most = 0

    def trained():
        nonlocal most
        most = max(most, len(cluster.squeue("--states=RUNNING", "--name=study")))
        return sweep.states().count("done") == RUNS

    cluster.wait_for(trained, 200, "the end of the twelve runs", every=0.5)
    assert 2 <= most <= 3
    states = [row["state"] for row in sweep.status().values()]
    assert sorted(states) == ["done"] * RUNS + ["new"] * RUNS

    # moved to a partition that takes jobs: only what is missing is sent
    sweep.write(**KEYS | {"cluster": {"time": 30, "sbatch": {"hold": True}}})
    assert "12 submitted" in sweep.submit()
    assert [row["state"] for row in sweep.status().values()].count("pending") == RUNS
