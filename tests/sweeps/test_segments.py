"""Metrics segments: one history from several attempts, whatever was cut or lost."""

import multiprocessing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweeps import attempts
from sweeps.segments import NewerSchema, first_lost_step, list_segments, read_segments, write_segment
from tests.sweeps.folders import TOKENS_PER_STEP, metric_rows


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "ruñs dir [x]" / "lr=3e-4,seed=1"
    run.mkdir(parents=True)
    return run


def steps(folder):
    return read_segments(folder, "metrics")[0]["step"].to_pylist()


def test_replayed_steps_count_once(folder):
    """Attempt 1 logs 1..120, attempt 2 resumes at 100 and logs 101..200: tokens at 200 are 200 steps' worth."""
    attempts.claim(folder, 0)
    write_segment(folder, "metrics", 1, metric_rows(1, 60))
    write_segment(folder, "metrics", 1, metric_rows(61, 120, loss=9.0))
    attempts.claim(folder, 100)
    write_segment(folder, "metrics", 2, metric_rows(101, 200))
    table, faults = read_segments(folder, "metrics")
    assert table["step"].to_pylist() == list(range(1, 201))
    assert table["tokens"].to_pylist()[-1] == 200 * TOKENS_PER_STEP
    assert table["attempt"].to_pylist() == [1] * 100 + [2] * 100
    assert faults == []


def test_a_third_attempt_may_go_back_further_than_the_second(folder):
    attempts.claim(folder, 0)
    write_segment(folder, "metrics", 1, metric_rows(1, 100))
    attempts.claim(folder, 80)
    write_segment(folder, "metrics", 2, metric_rows(81, 130))
    attempts.claim(folder, 40)
    write_segment(folder, "metrics", 3, metric_rows(41, 50))
    assert steps(folder) == list(range(1, 51))


@pytest.mark.parametrize("damage", ["truncate", "empty"])
def test_an_unreadable_segment_is_skipped_and_named(folder, damage):
    attempts.claim(folder, 0)
    write_segment(folder, "metrics", 1, metric_rows(1, 50))
    lost = write_segment(folder, "metrics", 1, metric_rows(51, 90))
    write_segment(folder, "metrics", 1, metric_rows(91, 100))
    lost.write_bytes(lost.read_bytes()[:-3] if damage == "truncate" else b"")
    table, faults = read_segments(folder, "metrics")
    assert table["step"].to_pylist() == [*range(1, 51), *range(91, 101)]
    assert len(faults) == 1
    assert str(lost) in faults[0]
    assert "steps 51 to 90" in faults[0]
    assert first_lost_step(folder, 100) == 51
    assert first_lost_step(folder, 50) is None


def test_leftovers_of_a_kill_are_passed_over(folder):
    attempts.claim(folder, 0)
    write_segment(folder, "metrics", 1, metric_rows(1, 5))
    (folder / "metrics" / ".a0001-6-9.parquet.123.abc").write_bytes(b"PAR1half")
    (folder / "metrics" / "notes.tmp").write_bytes(b"")
    assert steps(folder) == [1, 2, 3, 4, 5]


def test_an_attempt_killed_between_create_and_write_logged_nothing(folder):
    attempts.claim(folder, 0)
    write_segment(folder, "metrics", 1, metric_rows(1, 9))
    (folder / "attempts" / "0002.json").touch()
    assert [attempt.number for attempt in attempts.read(folder)] == [1]
    assert steps(folder) == list(range(1, 10))
    assert attempts.claim(folder, 5).number == 3


def test_a_newer_schema_is_refused_with_the_remedy(folder):
    path = write_segment(folder, "metrics", 1, metric_rows(1, 3))
    table = pq.ParquetFile(path).read()
    pq.write_table(table.replace_schema_metadata({"isoloss_schema": "99"}), path)
    with pytest.raises(NewerSchema, match=r"schema version 99.*upgrade isoloss"):
        read_segments(folder, "metrics")


def test_an_empty_history_keeps_its_columns(folder):
    table, faults = read_segments(folder, "metrics")
    assert table.num_rows == 0
    assert table.schema.field("loss").type == pa.float64()
    assert faults == []


def _claim(folder, queue):
    queue.put(attempts.claim(folder, 0).number)


def test_racing_claims_get_distinct_numbers(folder):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_claim, args=(folder, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    got = sorted(queue.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert got == [1, 2, 3, 4]
    # the newest of them is not fenced, the others are; their processes are gone, so none is alive
    history = attempts.read(folder)
    assert [attempt.fenced for attempt in history] == [True, True, True, False]
    assert not any(attempt.alive for attempt in history)
    assert list_segments(folder, "metrics") == []
