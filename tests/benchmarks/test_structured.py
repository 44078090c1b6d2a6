"""The sketches that are compared compute what they say, and a tiny comparison runs."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch import design
from dask_sketch.models import random_mixture
from tests.benchmarks.structured.candidates import BASELINE, CANDIDATES, Candidate
from tests.benchmarks.structured.comparison import Case, compare
from tests.benchmarks.structured.prototypes import ROWS


@pytest.mark.slow  # each number of harmonics is compiled by itself
@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.name)
@pytest.mark.parametrize(("n_features", "m"), [(3, 70), (20, 65)])
def test_sums_are_those_of_the_frequencies(candidate, n_features, m, rng):
    omega, sums = candidate.make(rng.uniform(0.5, 2.0, n_features), m, 3)
    assert omega.shape == (n_features, m)
    if candidate.name == "Hadamard-diagonal":  # its sums are for variances of one
        omega, sums = candidate.make(np.ones(n_features), m, 3)
    x = rng.normal(size=(2 * ROWS, n_features)).astype(np.float32)
    expected = np.exp(-1j * (x.astype(float) @ omega)).mean(axis=0)
    got = sums(x) / len(x)
    if candidate.name.startswith("harmonics"):  # whole sets of multiples, the last cut off
        assert len(got) >= m
    np.testing.assert_allclose(got[:m], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda c: c.name)
@pytest.mark.slow
def test_maps_hold_the_frequencies_of_their_candidate(candidate):
    truth = random_mixture(2, 3, seed=0)
    like = design(truth.sample(2000, seed=1), n_frequencies=70, n_components=2, seed=0)
    fm = candidate.feature_map(like, 64, 0)
    omega, _ = candidate.make(like.distribution_variances[0], 64, 0)
    np.testing.assert_allclose(fm.frequencies, omega, rtol=1e-6)
    assert fm != BASELINE.feature_map(like, 64, 1)


@pytest.mark.slow
# the size at equal time follows from rates measured, and may be small for what is slow at this size
@pytest.mark.filterwarnings("ignore:.* frequencies are few")
def test_a_tiny_comparison_prints_every_column(monkeypatch):
    rate = Candidate.rate
    monkeypatch.setattr(Candidate, "rate", lambda self, d, m: rate(self, d, m, repeats=1))
    text = compare(Case(2, 2, 64, n_samples=5000), n_draws=1)
    lines = text.splitlines()
    assert len(lines) == 4 + len(CANDIDATES) - 1  # no transforms of two features
    assert "nan" not in text
