"""A setting that nothing reads would make a second arm of one and the same model: it is an error before training."""

import pytest

from model.accounting import resolve_scheme
from model.config import ModelConfig

SHAPE = ModelConfig(d_model=32, layers=4, heads=4, seq_len=12)


@pytest.mark.parametrize(
    ("scheme", "settings", "message"),
    [
        ("laurel", {"rank": 8}, "rank 8 has no effect with form rw: remove it"),
        ("hc", {"dynamic": False, "tanh": False}, "tanh False has no effect with constant weights"),
        ("mhc", {"res": "identity", "iterations": 5}, "iterations 5 has no effect with res identity"),
        ("mhc", {"res": "permutations", "iterations": 5}, "iterations 5 has no effect with res permutations"),
        ("attnres_mhc", {"res": "identity", "iterations": 5}, "iterations 5 has no effect with res identity"),
        ("msar", {"h_pre": False, "h_pre_std": 0.1}, "h_pre_std 0.1 has no effect without weights of the streams"),
        ("msar", {"streams": 1, "h_pre_std": 0.1}, "h_pre_std 0.1 has no effect without weights of the streams"),
        ("msar", {"conv": [], "conv_owner": "source"}, "conv_owner source has no effect without convolutions"),
        ("msar", {"conv": [], "conv_init": "uniform"}, "conv_init uniform has no effect without convolutions"),
    ],
)
def test_it_is_named_with_its_reason(scheme, settings, message):
    with pytest.raises(ValueError, match=message):
        resolve_scheme(SHAPE, scheme, settings)


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [
        ("laurel", {"rank": 16}),
        ("laurel", {"form": "lr", "rank": 8}),
        ("mhc", {"res": "identity", "iterations": 20}),
        ("mhc", {"iterations": 5}),
        ("hc", {"tanh": False}),
    ],
)
def test_a_default_or_a_setting_that_is_read_is_not(scheme, settings):
    resolve_scheme(SHAPE, scheme, settings)


@pytest.mark.parametrize("scheme", ["hc", "mhc", "attnres_mhc", "xhc"])
def test_a_slip_in_the_number_of_streams_is_found_before_it_takes_all_memory(scheme):
    with pytest.raises(ValueError, match="less than or equal to 64"):
        resolve_scheme(SHAPE, scheme, {"streams": 1_000_000_000})
