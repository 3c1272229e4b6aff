"""The Markov source: its entropy rate by other routes, the loss of one who knows it, and its samples."""

import numpy as np
import pytest

from sweeps.data import open_data
from sweeps.data.markov import ONE, MarkovData, Options, stationary, transition_counts
from sweeps.settings import DataConfig
from tests.tolerances import ENTROPY_RATE_REL, SAMPLE_POWER, SAMPLE_SIGMAS, UNIGRAM_REL

BOTH = pytest.mark.parametrize("order", [1, 2])
T = 32


def source(order: int = 1, **options: object) -> MarkovData:
    data = open_data(DataConfig(source="markov", options={"order": order, "states": 8, **options}), T)
    assert isinstance(data, MarkovData)
    return data


def dense(order: int, states: int = 8) -> np.ndarray:
    """The chain of contexts as an ordinary square matrix [contexts, contexts]."""
    p = transition_counts(Options(order=order, states=states)) / ONE
    if order == 1:
        return p
    square = np.zeros((states**2, states**2))
    for a in range(states):
        for b in range(states):
            for c in range(states):
                square[a * states + b, b * states + c] = p[a * states + b, c]
    return square


def eigen_stationary(square: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eig(square.T)
    vector = vectors[:, np.argmin(abs(values - 1))].real
    return vector / vector.sum()


@BOTH
@pytest.mark.parametrize("states", [2, 8, 32])
def test_entropy_rate_by_eigenvectors(order, states):
    square = dense(order, states)
    pi = eigen_stationary(square)
    rate = sum(-pi[i] * p * np.log(p) for i, row in enumerate(square) for p in row if p > 0)
    assert source(order, states=states).entropy_rate == pytest.approx(rate, rel=ENTROPY_RATE_REL)


@BOTH
def test_stationary_distribution_stays(order):
    square = dense(order)
    pi = stationary(transition_counts(Options(order=order, states=8)) / ONE)
    assert pi @ square == pytest.approx(pi, rel=ENTROPY_RATE_REL)
    assert pi.sum() == pytest.approx(1, rel=UNIGRAM_REL)


@BOTH
def test_source_loss_tends_to_its_expectation(order):
    data = source(order)
    windows = data.validation(4000 * T)
    each = np.array([data.source_loss(w[None]) for w in windows])
    assert data.source_loss(windows) == pytest.approx(each.mean(), rel=ENTROPY_RATE_REL)
    error = each.std() / np.sqrt(len(each))
    assert abs(each.mean() - data.expected_loss) < SAMPLE_SIGMAS * error
    assert SAMPLE_SIGMAS * error < SAMPLE_POWER * data.expected_loss, "the comparison must be able to fail"


def test_the_expected_loss_is_the_entropy_rate_where_the_whole_context_is_visible():
    assert source(1).expected_loss == pytest.approx(source(1).entropy_rate, rel=UNIGRAM_REL)
    second = source(2)
    assert second.entropy_rate < second.expected_loss < second.unigram_entropy


@BOTH
def test_entropy_rate_against_counts_of_a_long_sample(order):
    """Independent of the table: the plug-in conditional entropy of 400,000 observed transitions."""
    data = source(order)
    windows = data.validation(400_000)
    pieces = np.lib.stride_tricks.sliding_window_view(windows, order + 1, axis=1).reshape(-1, order + 1)
    counts = np.zeros((8,) * (order + 1))
    np.add.at(counts, tuple(pieces.T), 1)
    joint = counts / counts.sum()
    conditional = joint / joint.sum(axis=-1, keepdims=True).clip(min=1e-300)
    seen = joint > 0
    surprise = -np.log(conditional[seen])
    plug_in = (joint[seen] * surprise).sum()
    spread = np.sqrt((joint[seen] * surprise**2).sum() - plug_in**2)
    bias = 8**order * 7 / (2 * counts.sum())  # Miller and Madow: the plug-in entropy is too low by this
    # contexts in one window are correlated, so a window counts as one observation of T targets at the most
    error = spread / np.sqrt(len(windows))
    assert abs(plug_in + bias - data.entropy_rate) < SAMPLE_SIGMAS * error
    assert SAMPLE_SIGMAS * error < SAMPLE_POWER * data.entropy_rate, "the comparison must be able to fail"


@BOTH
def test_source_loss_scores_what_a_window_shows(order):
    """Target by target with plain dictionaries of probabilities, the first one from the stationary pairs."""
    data = source(order)
    windows = data.validation(5 * T)
    p = transition_counts(Options(order=order, states=8)) / ONE
    pairs = eigen_stationary(dense(2)).reshape(8, 8)
    total = 0.0
    for w in windows.tolist():
        for t in range(1, T + 1):
            if order == 1:
                total -= np.log(p[w[t - 1], w[t]])
            elif t == 1:
                total -= np.log(pairs[w[0], w[1]] / pairs[w[0]].sum())
            else:
                total -= np.log(p[w[t - 2] * 8 + w[t - 1], w[t]])
    assert data.source_loss(windows) == pytest.approx(total / (5 * T), rel=ENTROPY_RATE_REL)


@BOTH
def test_windows_start_in_the_stationary_distribution(order):
    data = source(order)
    windows = data.validation(20_000 * T)
    pi = eigen_stationary(dense(order))
    marginal = pi if order == 1 else pi.reshape(8, 8).sum(1)
    error = np.sqrt(marginal * (1 - marginal) / len(windows))
    for t in (0, 1, T):
        share = np.bincount(windows[:, t], minlength=8) / len(windows)
        assert (abs(share - marginal) < SAMPLE_SIGMAS * error).all(), t
    assert data.unigram_entropy == pytest.approx(-(marginal * np.log(marginal)).sum(), rel=ENTROPY_RATE_REL)


def test_batches_are_pure_and_streams_are_apart():
    data = source()
    first = {(seed, step): data.batch(seed, step, 4) for seed in (0, 1, 2**40) for step in range(5)}
    for (seed, step), (tokens, targets) in reversed(first.items()):
        again = source().batch(seed, step, 4)
        assert (again[0] == tokens).all()
        assert (again[1] == targets).all()
        assert (tokens[:, 1:] == targets[:, :-1]).all()
        assert tokens.dtype == np.int64
        assert tokens.shape == (4, T)
        assert 0 <= tokens.min() <= tokens.max() < 8
    held = {w.tobytes() for w in data.validation(100 * T)}
    seen = {np.c_[tokens, targets[:, -1:]].tobytes() for tokens, targets in first.values()}
    rows = {row.tobytes() for tokens, targets in first.values() for row in np.c_[tokens, targets[:, -1:]]}
    assert len(seen) == len(first)
    assert len(rows) == 4 * len(first)
    assert not rows & held
    assert (data.validation(50 * T) == data.validation(100 * T)[:50]).all()


def test_fingerprints_follow_the_table():
    default = source()
    assert source(seed=0).fingerprint == default.fingerprint
    changed = [{"seed": 1}, {"states": 9}, {"order": 2}, {"concentration": 0.2}]
    prints = {default.fingerprint, *(source(**{"order": 1, **change}).fingerprint for change in changed)}
    assert len(prints) == 5
    assert default.train_tokens is None
    assert default.tokenizer == "markov-8"
    assert default.bytes_in(default.validation(3 * T)) == 3 * T


@pytest.mark.parametrize("concentration", [0.05, 100])
@BOTH
def test_extreme_tables_settle_and_are_exact(order, concentration):
    for seed in range(3):
        options = Options(seed=seed, states=2, order=order, concentration=concentration)
        counts = transition_counts(options)
        assert (counts.sum(axis=1) == ONE).all()
        assert (counts > 0).all()
        data = MarkovData(options, T)
        assert 0 < data.entropy_rate <= data.unigram_entropy <= np.log(2)
