"""A checkpoint from somebody else runs no code, whatever its manifest says."""

import os
import pickle

import pytest
import torch

from sweeps import attempts
from sweeps.files import read_json, write_json
from sweeps.train.checkpoint import CorruptCheckpoint, _sha256, list_checkpoints, verify
from tests.sweeps.train.runs import config, plan, train
from tests.sweeps.train.test_resume import EVERY_5, history, kill_at


class Trap:
    """Makes a folder where a loader runs it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def replace_state(checkpoint, content, form):
    """Put `content` into a checkpoint, with a manifest that vouches for it."""
    path = checkpoint.path / "state.pt"
    if form == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    manifest = read_json(checkpoint.path / "manifest.json")
    manifest["files"]["state.pt"] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    write_json(checkpoint.path / "manifest.json", manifest)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_a_pickle_in_a_checkpoint_is_not_run_and_the_one_before_is_used(monkeypatch, tmp_path, form):
    folder, sprung = tmp_path / "r", tmp_path / "sprung"
    plan(folder, config(40))
    plan(tmp_path / "whole", config(40))
    kill_at(monkeypatch, folder, 23)
    newest = list_checkpoints(folder)[0]
    state = torch.load(newest.path / "state.pt", weights_only=True)
    replace_state(newest, state | {"streak": Trap(sprung)}, form)
    with pytest.raises(CorruptCheckpoint, match="no file of plain tensors"):
        verify(newest)
    result = train(folder, EVERY_5)
    assert result.status == "done"
    assert not sprung.exists()
    assert "step-20-a0001 is not used" in result.notes[0]
    assert "no file of plain tensors" in result.notes[0]
    assert [attempt.resumed_from for attempt in attempts.read(folder)] == [0, 15]
    train(tmp_path / "whole")
    assert history(folder) == history(tmp_path / "whole")
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works


def test_a_manifest_has_to_vouch_for_the_state(monkeypatch, tmp_path):
    folder = tmp_path / "r"
    plan(folder, config(40))
    kill_at(monkeypatch, folder, 8)
    (newest,) = list_checkpoints(folder)
    write_json(newest.path / "manifest.json", read_json(newest.path / "manifest.json") | {"files": {}})
    with pytest.raises(CorruptCheckpoint, match=r"does not list state\.pt"):
        verify(newest)
