"""Cluster settings: what is accepted, how sizes override, and that no run's identity knows of them."""

import pytest

from model.errors import InputError
from sweeps.cluster import ClusterSettings, check_split, load_cluster, minutes
from sweeps.plan import plan_study
from sweeps.study import load_study
from tests.sweeps.studies import LARGER, SIZE, write_study


@pytest.mark.parametrize(
    ("written", "expected"),
    [(90, 90), ("2:00", 120), ("2:00:00", 120), ("1-00:00:00", 1440), ("0:00:30", 1), ("0:01:01", 2), ("soon", "soon")],
)
def test_time_limits(written, expected):
    assert minutes(written) == expected


def test_yaml_does_not_read_a_clock_as_a_number_in_base_60(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("cluster: {time: 2:00:00, partition: gpu}\n")
    assert load_cluster(path).time == 120


def test_a_size_overrides_and_inherits():
    found = ClusterSettings(partition="main", gpus=1, time="1:00:00", sizes={"xl": {"gpus": 8, "nodes": 2}})
    assert (found.of("s").gpus, found.of("s").world, found.of("s").time) == (1, 1, 60)
    assert (found.of("xl").gpus, found.of("xl").world, found.of("xl").partition) == (8, 16, "main")
    assert ClusterSettings(ranks=2).world == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitoin: gpu", "partitoin"),
        ("gpus: -1", "gpus"),
        ("time: soon", "time"),
        ("time: 0", "time"),
        ("sbatch: {array: 1-3}", "array is set by isoloss itself"),
        ("sbatch: {--comment: x}", "comment is set by isoloss itself"),
        ("[1, 2]", "a mapping such as"),
        ("cluster: {ranks: 0}", "ranks"),
        ("gpus: 1\ngpus: 2", "stands here and in line"),
    ],
)
def test_faults_are_one_line_with_file_and_key(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text + "\n")
    with pytest.raises(InputError, match=words) as fault:
        load_cluster(path)
    assert "c.yaml" in str(fault.value)
    assert "\n" not in str(fault.value)


def test_sizes_must_be_those_of_the_study(tmp_path):
    path = write_study(tmp_path, cluster={"sizes": {"xl": {"gpus": 8}}})
    with pytest.raises(InputError, match=r"cluster.sizes.*xl.*s"):
        load_study(path)


def test_no_identity_knows_of_the_cluster(tmp_path):
    plain = plan_study(load_study(write_study(tmp_path, sizes=[SIZE, LARGER])), tmp_path / "runs")
    cluster = {"partition": "gpu", "gpus": 2, "time": 60, "sizes": {"m": {"gpus": 4}}}
    other = plan_study(load_study(write_study(tmp_path, sizes=[SIZE, LARGER], cluster=cluster)), tmp_path / "runs")
    assert [run.run_id for run in other.runs] == [run.run_id for run in plain.runs]
    assert [run.world for run in other.runs] == [2, 4]


def test_a_batch_that_does_not_split_is_an_error_at_plan(tmp_path):
    check_split(4, 8, 2, "size s")
    with pytest.raises(
        InputError, match=r"8 sequences in 1 micro-batches cannot be split evenly over 3 ranks: ask for 2"
    ):
        check_split(3, 8, 1, "size s")
    path = write_study(tmp_path, batch={"sequences": 4}, cluster={"gpus": 3})
    with pytest.raises(InputError, match=r"try.yaml: sizes\[0\] \(s\): 4 sequences .* 3 ranks: ask for 2"):
        load_study(path)
