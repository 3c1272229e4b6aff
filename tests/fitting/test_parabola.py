"""The vertex of a parabola is an optimum only inside the points and where it opens upwards."""

import math

import numpy as np
import pytest

from fitting.parabola import parabola_minimum
from sweeps.schema import InputError
from tests.tolerances import NOISELESS_REL


def test_a_parabola_gives_its_vertex_in_any_order():
    x = np.array([17.0, 19.5, 18.2, 20.1, 18.9])
    found = parabola_minimum(x, 3.1 + 0.04 * (x - 18.7) ** 2)
    assert found.status == "ok"
    assert found.x == pytest.approx(18.7, rel=NOISELESS_REL)
    assert found.loss == pytest.approx(3.1, rel=NOISELESS_REL)
    assert found.curvature == pytest.approx(0.08, rel=NOISELESS_REL)


@pytest.mark.parametrize(
    ("loss", "status"),
    [
        # both have their vertex 1.5 steps from the middle: the first beyond the largest, the second below the smallest
        ([3.2, 3.1, 3.05], "edge: extend the sweep to larger models"),
        ([3.05, 3.1, 3.2], "edge: extend the sweep to smaller models"),
        ([3.0, 3.1, 3.15], "no minimum: concave"),
        ([3.1, 3.1, 3.1], "no minimum: no curvature"),
        ([3.3, 3.2, 3.1], "no minimum: no curvature"),
    ],
)
def test_a_vertex_outside_or_a_maximum_is_no_optimum(loss, status):
    found = parabola_minimum(np.log([512.0, 768.0, 1152.0]), loss)
    assert (found.x, found.loss, found.status) == (None, None, status)


def test_three_sizes_are_needed():
    assert parabola_minimum([1.0, 1.0, 2.0], [3.0, 3.1, 3.2]).status == "needs 3 sizes, has 2"
    assert parabola_minimum([1.0], [3.0]).status == "needs 3 sizes, has 1"


def test_numbers_that_are_none_are_refused():
    with pytest.raises(InputError, match="finite"):
        parabola_minimum([1.0, 2.0, 3.0], [3.0, math.nan, 3.2])
    with pytest.raises(InputError, match="one loss for each x"):
        parabola_minimum([1.0, 2.0, 3.0], [3.0, 3.1])
