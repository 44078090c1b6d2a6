"""DET curves and equal error rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dask_sketch.diagnostics.detection import error_rates
from dask_sketch.errors import InputError


def test_two_normal_distributions():
    rng = np.random.default_rng(0)
    n, gap = 100_000, 2.0
    scores = np.concatenate([rng.normal(gap, 1, n), rng.normal(0, 1, n)])
    found = error_rates(scores, np.repeat([True, False], n))
    assert found.equal_error_rate == pytest.approx(norm.cdf(-gap / 2), abs=3e-3)
    # a straight line of slope -1 between normal deviates
    inside = (found.miss > 0.01) & (found.miss < 0.9) & (found.false_alarm > 0.01)
    total = norm.ppf(found.miss[inside]) + norm.ppf(found.false_alarm[inside])
    np.testing.assert_allclose(total, -gap, atol=0.05)


def test_perfect_and_random_and_reversed():
    assert error_rates([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]).equal_error_rate == 0.0
    assert error_rates([1.0, 1.0, 1.0], [0, 1, 1]).equal_error_rate == 0.5
    assert error_rates([1.0, 2.0], [1, 0]).equal_error_rate == 1.0


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=2, max_size=40).filter(
        lambda rows: {kind for _, kind in rows} == {True, False}
    )
)
@pytest.mark.slow
def test_rates_are_those_counted_by_hand(rows):
    scores, kinds = np.array([s for s, _ in rows], float), np.array([k for _, k in rows])
    found = error_rates(scores, kinds)
    for threshold, miss, alarm in zip(found.thresholds, found.miss, found.false_alarm, strict=True):
        assert miss == pytest.approx(np.mean(scores[kinds] < threshold))
        assert alarm == pytest.approx(np.mean(scores[~kinds] >= threshold))
    above = found.miss > found.equal_error_rate + 1e-12
    assert (found.false_alarm[above] <= found.equal_error_rate + 1e-12).all()
    # what the order of trials, or another scale of scores, cannot change
    again = error_rates(np.exp(scores[::-1]), kinds[::-1])
    assert again.equal_error_rate == pytest.approx(found.equal_error_rate)


@pytest.mark.slow
def test_the_interval_covers_the_truth():
    spread = 0.5  # of one speaker's scores from another's
    truth = norm.cdf(-2.0 / (1.0 + np.hypot(1.0, spread)))
    covered = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        models = np.repeat(np.arange(30), 40)
        kinds = np.tile(np.arange(40) < 10, 30)
        easy = np.repeat(rng.normal(0, spread, 30), 40)
        scores = rng.normal(size=1200) + kinds * (2.0 + easy)
        low, high = error_rates(scores, kinds, models, n_draws=40).interval
        covered += low <= truth <= high
    assert covered >= 16  # 19 expected, less than one in a hundred under 16


def test_the_interval_has_a_seed():
    scores, kinds = [0.3, 0.1, 0.8, 0.6, 0.2, 0.7], [1, 0, 1, 0, 1, 0]
    models = ["a", "a", "b", "b", "c", "c"]
    one, two = (error_rates(scores, kinds, models, n_draws=50, seed=3).interval for _ in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("scores", "kinds", "models", "message"),
    [
        ([1.0, 2.0], [1, 1], None, "targets holds 2"),
        ([1.0, np.nan], [1, 0], None, "scores"),
        ([1.0], [1, 0], None, "scores has shape"),
        ([1.0, 2.0], [1, 0], ["a"], "models has shape"),
    ],
)
def test_bad_arguments(scores, kinds, models, message):
    with pytest.raises(InputError, match=message):
        error_rates(scores, kinds, models)


def test_a_picture():
    pytest.importorskip("matplotlib").use("agg")
    axes = error_rates([1.0, 2.0, 1.5, 4.0], [0, 0, 1, 1]).plot.det(label="ubm")
    assert axes.get_xlabel() == "false alarms"
    assert len(axes.lines) == 2
    axes.figure.clf()
