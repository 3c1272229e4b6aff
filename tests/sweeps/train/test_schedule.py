"""Learning rates against closed forms and the numbers of a public report."""

import pytest

from sweeps.settings import ScheduleConfig
from sweeps.train.schedule import learning_rate
from tests.tolerances import LR_REL


def rates(steps, peak=1e-3, **schedule):
    return [learning_rate(step, steps, peak, ScheduleConfig(**schedule)) for step in range(steps)]


def test_cosine_matches_the_published_numbers():
    found = rates(1000, kind="cosine", warmup=0.0, final=0.1)
    assert found[0] == 1e-3
    assert found[250] == pytest.approx(8.6820e-4, rel=LR_REL)
    assert found[999] == pytest.approx(1.00002e-4, rel=LR_REL)


def test_warm_up_rises_to_the_peak_and_the_cosine_falls():
    found = rates(100, warmup=0.1, final=0.1)
    assert found[0] == pytest.approx(1e-4)
    assert found[9] == found[10] == 1e-3
    assert found[:10] == sorted(found[:10])
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[55] == pytest.approx(5.5e-4)  # half of the way down


def test_wsd_is_flat_and_then_falls_in_a_line():
    found = rates(100, kind="wsd", warmup=0.1, decay=0.2, final=0.0)
    assert found[10:81] == [1e-3] * 71
    assert found[90] == pytest.approx(0.5e-3)
    assert found[99] == pytest.approx(1e-3 / 20)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_short_runs_have_a_positive_rate_at_every_step(kind, steps):
    for warmup, decay in ((0.0, 1.0), (0.05, 0.2), (0.6, 0.4), (0.9, 1.0)):
        found = rates(steps, kind=kind, warmup=warmup, decay=decay, final=0.0)
        assert all(0 < rate <= 1e-3 for rate in found)
