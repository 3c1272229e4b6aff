"""A study of known law, written once, and its hand-made results."""

import pytest

from reports import page
from reports.collect import training_curves
from reports.view import StudyView
from sweeps.schema import load_runs, load_studies
from tests.reports.results import iso_result, u_result
from tests.reports.synthetic import run_id_of, write_study


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A root of one study with a diverged and a missing run, in a folder with an awkward name."""
    folder = tmp_path_factory.mktemp("reports") / "ruñs dir [x]"
    write_study(folder, diverged=[("mhar heads=8", "d64")], missing=[("attnres blocks=4", "d96")])
    return folder


@pytest.fixture(scope="session")
def runs(root):
    return load_runs(root)


@pytest.fixture(scope="session")
def excluded(runs):
    return {
        run_id_of(runs, "mhar heads=8", "d64"): "diverged: loss nan at step 40",
        run_id_of(runs, "mhar heads=1", "d32"): "1.3 nats above the arm's best loss at a smaller budget",
        run_id_of(runs, "attnres blocks=4", "d96"): "new: not started",
    }


@pytest.fixture(scope="session")
def iso(runs, excluded):
    return iso_result(runs, excluded=excluded, undefined=[("mhar heads=4", "d96")])


@pytest.fixture(scope="session")
def view(root, runs, iso):
    return StudyView("demo", runs, training_curves(runs), iso, u_curves=(u_result(),), study=load_studies(root)["demo"])


@pytest.fixture(scope="session")
def files(view):
    """The report of that study, by name."""
    return page.build([view])


@pytest.fixture
def quick(monkeypatch):
    """Figures are drawn, but not rendered: for tests of words."""
    svg = b'<svg width="10pt" height="5pt"></svg>'
    monkeypatch.setattr(page, "render", lambda figure: {"svg": svg, "png": b"", "pdf": b""})
