"""Warnings of covariance matrices that a sketch without rows hardly determines."""

from __future__ import annotations

import re
import warnings

import numpy as np

import dask_sketch as ds


def _messages(rows, n_components):
    """Model of the sketch without rows, and the warnings of its decoding."""
    feature_map = ds.design(rows, n_components=n_components, covariance_type="full")
    found = ds.sketch(rows, feature_map, sample=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = ds.decode(found, n_components, covariance_type="full")
    return model, [str(each.message) for each in caught]


def test_few_rows_for_matrices_are_warned_of_with_the_expected_loss():
    truth = ds.GaussianMixture(
        [0.5, 0.5], [[-4.0, 0.0], [4.0, 0.0]], [np.eye(2), np.eye(2)], covariance_type="full"
    )
    few, many = truth.sample(40, seed=0), truth.sample(4000, seed=0)
    (message,) = _messages(few, 2)[1]
    assert re.search(r"expected to lose 0\.14 nats .* 40 rows are few for 11 parameters", message)
    assert _messages(many, 2)[1] == []


def test_a_fit_as_likely_as_em_on_the_pilot_rows_is_not_warned_of():
    """Noise does not explain it, as the data is no such mixture: nor would another search help."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.uniform(size=20_000), rng.normal(size=20_000)])
    model, messages = _messages(rows, 2)
    assert messages == []
    pilot = ds.design(rows, n_components=2, covariance_type="full").pilot.matrix_mixture
    assert abs(model.score(rows) - pilot.score) < 0.02


def test_matrices_of_pilot_rows_that_share_values_are_warned_of():
    rng = np.random.default_rng(0)
    rows = np.exp(rng.normal(size=(6000, 3)))
    rows[:2500, 2] = 0.0
    messages = _messages(rows, 3)[1]
    assert any("the smallest variance" in text and "feature 2" in text for text in messages)
