"""Arms keep apart by colour, marker and line; a person's matplotlib settings change nothing."""

import matplotlib

from reports.export import FORMATS, render
from reports.figures import u_curve
from reports.style import arm_styles, order_arms, plain
from tests.reports.results import u_result


def test_numbers_in_names_sort_as_numbers_and_the_reference_is_first():
    arms = ["mhar heads=16", "mhar heads=8", "vanilla", "attnres"]
    assert order_arms(arms, "vanilla") == ["vanilla", "attnres", "mhar heads=8", "mhar heads=16"]


def test_no_two_of_many_arms_look_alike_in_colour_or_in_grey():
    styles = arm_styles([f"mhar heads={n}" for n in range(30)] + ["vanilla"], "vanilla")
    assert len({(style.colour, style.marker) for style in styles.values()}) == 31
    first = [styles[arm] for arm in list(styles)[:7]]
    assert len({style.colour for style in first}) == len({style.marker for style in first}) == 7
    assert styles["vanilla"].colour == "#000000"


def test_a_persons_matplotlib_settings_change_no_byte_and_stay():
    before = render(u_curve.draw(u_result()))
    with matplotlib.rc_context({"font.size": 31, "lines.linewidth": 9, "svg.hashsalt": None, "text.color": "red"}):
        assert render(u_curve.draw(u_result())) == before
        assert matplotlib.rcParams["font.size"] == 31
    assert set(before) == set(FORMATS)


def test_a_dollar_in_a_name_is_no_mathematics():
    assert plain("a$b$c") == r"a\$b\$c"
    assert plain("mhar blocks=4 heads=8 temperature=0.5") == "mhar blocks=4 heads=8\ntemperature=0.5"
