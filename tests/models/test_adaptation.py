"""Maximum-a-posteriori adaptation of means."""

from __future__ import annotations

import numpy as np
import pytest

from dask_sketch.errors import InputError
from dask_sketch.models import GaussianMixture
from dask_sketch.speech.enrolment import adapt_means, adaptation_statistics


@pytest.fixture
def mixture():
    rng = np.random.default_rng(0)
    return GaussianMixture([0.2, 0.3, 0.5], rng.normal(size=(3, 4)), rng.uniform(0.5, 2, (3, 4)))


def test_statistics_are_those_of_the_definition_and_merge(mixture):
    x = mixture.sample(500, seed=1)
    whole = adaptation_statistics(x, mixture)
    share = mixture.predict_proba(x)
    np.testing.assert_allclose(whole.counts, share.sum(axis=0))
    np.testing.assert_allclose(whole.sums, np.einsum("nk,nd->kd", share, x))
    parts = adaptation_statistics(x[:123], mixture) + adaptation_statistics(x[123:], mixture)
    np.testing.assert_allclose(parts.sums, whole.sums)
    assert whole.counts.sum() == pytest.approx(500)


def test_many_samples_take_a_component_all_the_way_and_none_leave_it(mixture):
    moved = GaussianMixture(mixture.weights, mixture.means + 0.1, mixture.covariances)
    heard = adaptation_statistics(moved.sample(200_000, seed=2), mixture)
    adapted = adapt_means(mixture, heard)
    expected = heard.sums / heard.counts[:, None]
    np.testing.assert_allclose(adapted.means, expected, atol=2e-3)
    none = adaptation_statistics(np.empty((0, 4)), mixture)
    np.testing.assert_array_equal(adapt_means(mixture, none).means, mixture.means)
    np.testing.assert_array_equal(adapted.weights, mixture.weights)
    np.testing.assert_array_equal(adapted.covariances, mixture.covariances)


def test_half_way_at_as_many_samples_as_the_relevance():
    far = GaussianMixture([0.5, 0.5], [[-50.0], [50.0]], [[1.0], [1.0]])
    heard = adaptation_statistics(np.full((7, 1), 52.0), far)
    assert adapt_means(far, heard, relevance=7.0).means[1, 0] == pytest.approx(51.0)


def test_bad_arguments(mixture):
    heard = adaptation_statistics(np.zeros((3, 4)), mixture)
    with pytest.raises(InputError, match="relevance=0"):
        adapt_means(mixture, heard, relevance=0)
    other = GaussianMixture([1.0], np.zeros((1, 4)), np.ones((1, 4)))
    with pytest.raises(InputError, match="statistics are of shape"):
        adapt_means(other, heard)
    with pytest.raises(InputError, match="features"):
        adaptation_statistics(np.zeros((3, 5)), mixture)
