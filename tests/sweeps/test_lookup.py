"""A run is found by its folder, id, beginning of an id, or words of the grid; a message names the candidates."""

import time

import pytest

from model.errors import InputError
from sweeps import identity
from sweeps.commands import lookup
from sweeps.commands.lookup import find_run, find_runs
from tests.sweeps.folders import write_run_json
from tests.tolerances import LOOKUP_SECONDS


@pytest.fixture
def root(tmp_path):
    for study, size, arm, seed, key in [
        ("one", "s", "vanilla", 0, "abcd2222aaaa"),
        ("one", "m", "mhar heads=4", 0, "abcd3333aaaa"),
        ("one", "m", "mhar heads=4", 1, "efgh2222aaaa"),
        ("two", "m", "attnres", 0, "qrst2222aaaa"),
    ]:
        slug = f"{size}-{arm.replace(' ', '-').replace('=', '')}-seed{seed}"
        folder = tmp_path / study / f"{slug}-{key}"
        write_run_json(folder, key, arm=arm, size=size, seed=seed, slug=slug)
    (tmp_path / "one" / ".sweep" / "jobs").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("abcd2222aaaa", "s-vanilla-seed0-abcd2222aaaa"),
        ("abcd3", "m-mhar-heads4-seed0-abcd3333aaaa"),
        ("efgh", "m-mhar-heads4-seed1-efgh2222aaaa"),
        ("m-mhar-heads4-seed1-efgh2222aaaa", "m-mhar-heads4-seed1-efgh2222aaaa"),
        ("m-mhar-heads4-seed1", "m-mhar-heads4-seed1-efgh2222aaaa"),
        ("mhar heads=4/m/1", "m-mhar-heads4-seed1-efgh2222aaaa"),
        ("m/mhar heads=4/seed0", "m-mhar-heads4-seed0-abcd3333aaaa"),
        ("two/m", "m-attnres-seed0-qrst2222aaaa"),
        ("vanilla", "s-vanilla-seed0-abcd2222aaaa"),
        ("one/s-vanilla-seed0-abcd2222aaaa", "s-vanilla-seed0-abcd2222aaaa"),
    ],
)
def test_ways_to_name_a_run(root, value, name):
    assert find_run(value, root).name == name


def test_a_folder_needs_no_root(root):
    folder = root / "two" / "m-attnres-seed0-qrst2222aaaa"
    assert find_run(str(folder), root / "nowhere") == folder


@pytest.mark.parametrize(("value", "named"), [("abcd", 2), ("mhar heads=4/m", 2), ("m", 3), ("0", 3)])
def test_several_are_named(root, value, named):
    with pytest.raises(InputError, match=f"names {named} runs") as error:
        find_run(value, root)
    assert str(error.value).count(str(root)) == named


@pytest.mark.parametrize("value", ["abc", "m-mhar-heads4-seed7", "zzzz", "m/vanilla"])
def test_none_names_what_is_near(root, value):
    with pytest.raises(InputError, match="names no run below") as error:
        find_run(value, root)
    assert str(root / "one") in str(error.value)


def test_one_run_in_two_studies_is_told_apart_by_the_study(root):
    """Ids do not hold the study's name: the same run may lie in two."""
    write_run_json(root / "two" / "s-vanilla-seed0-abcd2222aaaa", "abcd2222aaaa")
    with pytest.raises(InputError, match="names 2 runs"):
        find_run("abcd2222aaaa", root)
    assert find_run("two/abcd2222", root).parent.name == "two"


def test_folders_of_runs_stand_for_their_runs(root):
    assert len(find_runs([str(root)], root)) == 4
    assert len(find_runs([str(root / "one"), "efgh", str(root / "two")], root)) == 4
    assert [path.name for path in find_runs(["qrst", "qrst2222aaaa"], root)] == ["m-attnres-seed0-qrst2222aaaa"]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_root_without_runs(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="--runs"):
        find_run("abcd", tmp_path / name)


def test_the_length_of_ids():
    assert lookup.ID_LENGTH == identity.LENGTH


def test_thousands_of_runs_are_quick(tmp_path):
    for number in range(2000):
        folder = tmp_path / "study" / f"s-vanilla-seed{number}-{number:012d}"
        write_run_json(folder, f"{number:012d}", seed=number)
    started = time.perf_counter()
    assert find_run("s/seed1999", tmp_path).name == "s-vanilla-seed1999-000000001999"
    assert time.perf_counter() - started < LOOKUP_SECONDS
