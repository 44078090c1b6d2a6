"""A model that a simple rival beats comes with a warning that says by how much."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from dask_sketch import FeatureMap, decode, design, diagnose, partial_sketch, polish, sketch
from dask_sketch.decoders.arguments import non_default_arguments
from dask_sketch.decoders.checks.misfit import WARNED_NATS, warn_of_misfit
from dask_sketch.features import fit_pilot
from dask_sketch.models import GaussianMixture, random_mixture


def skewed(n=20_000):
    return np.exp(0.8 * np.random.default_rng(0).normal(size=(n, 2)))


def caught(function):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function()
    return result, [str(warning.message) for warning in found]


@pytest.mark.parametrize("sample", [5000, False])
def test_the_loss_is_stated(sample):
    x = skewed()
    found = sketch(x, design(x, n_components=4), sample=sample)
    model, messages = caught(lambda: decode(found, 4, "cl-ompr"))
    pilot = found.feature_map.pilot.mixture
    (message,) = [text for text in messages if "nats a sample below" in text]
    stated = float(re.search(r"is ([\d.e+]+) nats", message)[1])
    rival = GaussianMixture(pilot.weights, pilot.means, pilot.variances)
    lost = rival.score(x) - model.score(x)
    assert lost > WARNED_NATS
    assert stated == pytest.approx(lost, rel=0.5, abs=0.2)
    assert ("sample=True" in message) == (not sample)


@pytest.mark.parametrize(("arguments", "name"), [
    ({"covariance_type": "tied"}, "tied"), ({"model": "isotropic"}, "spherical"),
])  # fmt: skip
def test_components_that_must_be_alike_are_compared_with_others(arguments, name):
    x = np.concatenate([np.random.default_rng(0).normal(0.0, [0.1, 1.0], (500, 2)), skewed(500)])
    found = sketch(x, design(x, n_components=2))
    model, messages = caught(lambda: decode(found, 2, **arguments))
    (message,) = [text for text in messages if "nats a sample below" in text]
    assert "'diag'" in message
    assert repr(name) in message
    stated = float(re.search(r"is ([\d.e+]+) nats", message)[1])
    pilot = found.feature_map.pilot.mixture
    rival = GaussianMixture(pilot.weights, pilot.means, pilot.variances)
    assert stated == pytest.approx(rival.score(x) - model.score(x), rel=0.1)


def test_all_rows_are_compared_however_few():
    # components of single values, between which rows simulated from the pilot would lie
    x = np.random.default_rng(1).normal(size=(60, 3))
    x[:, 2] = np.arange(60) % 5
    found = sketch(x, design(x, n_components=10))
    assert len(found.feature_map.pilot.mixture.weights) <= 10
    means = np.column_stack([np.zeros((10, 2)), np.arange(10) % 5])
    narrow = np.tile([1.0, 1.0, 1e-12], (10, 1))
    _, messages = caught(
        lambda: warn_of_misfit(found, np.full(10, 0.1), means, narrow, 1.0, 1e-6, compared=True)
    )
    assert not any("below EM" in message for message in messages), messages


@pytest.fixture(scope="module")
def of_skewed():
    x = skewed(5000)
    return sketch(x, design(x, n_components=3), sample=2000)


@pytest.mark.parametrize(
    ("n_components", "options", "advised", "not_advised"),
    [
        (None, {}, "n_components=2", "without method"),
        (None, {"method": "cl-omp"}, "without method", "sample=True"),
        (2, {"method": "splitting"}, "without method", "n_components="),
        (2, {"bounds": [[0.0, 0.0], [9.0, 9.0]]}, "without bounds", "method"),
        (2, {"method": "iht", "model": "isotropic"}, "without method and model", "n_components="),
        (2, {"method": "likelihood"}, "another number", "without"),
    ],
)
def test_the_advice_is_no_argument_that_was_given(
    of_skewed, n_components, options, advised, not_advised
):
    bad = np.full(2, 0.5), np.full((2, 2), 50.0), np.ones((2, 2))
    given = non_default_arguments(n_components, options)
    _, messages = caught(lambda: warn_of_misfit(of_skewed, *bad, 1.0, 1e-6, given))
    (message,) = messages
    assert advised in message
    assert not_advised not in message


@pytest.mark.parametrize(
    "covariance_type", ["full", pytest.param("tied", marks=pytest.mark.slow), "spherical"]
)
def test_no_density_is_advised_for_covariances_that_it_has_not(covariance_type):
    x = skewed()
    found = sketch(x, design(x, n_components=2), sample=False)
    model, messages = caught(lambda: decode(found, 2, covariance_type=covariance_type))
    advice = " ".join([*messages, *diagnose(model, found).findings.values()])
    assert "covariance_type='diag'" in advice
    assert "method='density'" not in advice


@pytest.mark.slow
def test_the_advice_for_an_unknown_number_is_better(of_skewed):
    model, messages = caught(lambda: decode(of_skewed))
    (message,) = [text for text in messages if "nats a sample below" in text]
    assert f"n_components={model.n_components}" in message
    again, messages = caught(lambda: decode(of_skewed, model.n_components))
    assert not any("nats a sample below" in text for text in messages)
    assert again.score(skewed(5000)) > model.score(skewed(5000)) + WARNED_NATS


def test_a_map_of_other_data_is_to_be_designed_again():
    x = np.random.default_rng(0).normal(size=(5000, 2))
    feature_map = design(x, n_components=1)
    x = x * 0.2 + 10.0
    x[:5] = 200.0
    found = partial_sketch(x, feature_map)
    mixture = np.ones(1), found.mean[None], np.full((1, 2), 0.04)
    _, messages = caught(lambda: warn_of_misfit(found, *mixture, 1e-6, 1e-6))
    (message,) = messages
    assert "Design a feature map for this data" in message


@pytest.mark.slow
def test_a_constant_feature_is_left_out_of_the_comparison():
    x = np.c_[skewed(2000), np.full(2000, 0.3)]
    with pytest.warns(UserWarning, match="features \\[2\\]"):
        found = sketch(x, design(x, n_components=4))
    assert caught(lambda: decode(found, 4))[1] == []
    messages = caught(lambda: decode(found, 4, "cl-ompr"))[1]
    stated = [float(one[1]) for text in messages if (one := re.search(r"is ([\d.e+]+) nats", text))]
    assert len(stated) == 1
    assert WARNED_NATS < stated[0] < 10.0


@pytest.mark.slow
def test_a_discrete_feature_is_no_misfit():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=2000), rng.integers(2, size=2000)]
    found = sketch(x, design(x, n_components=3))
    assert caught(lambda: decode(found, 3))[1] == []


@pytest.mark.slow
def test_a_good_fit_has_no_warning():
    truth = random_mixture(n_components=3, n_features=2, seed=1)
    x = truth.sample(30_000, seed=2)
    found = sketch(x, design(x, n_components=3))
    for given in (found, found.without_sample()):
        assert caught(lambda given=given: decode(given, 3, "cl-ompr"))[1] == []


@pytest.mark.slow
def test_other_data_than_that_of_the_pilot_is_not_compared():
    x = skewed()
    feature_map = design(x, n_components=2)
    moved = partial_sketch(x + 5.0, feature_map)
    _, messages = caught(lambda: decode(moved, 2, "cl-ompr"))
    assert not any("below" in text for text in messages)


def test_missing_clusters_are_noticed_without_a_pilot():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 12)) + 100.0 * rng.integers(0, 2, (20_000, 12))
    found = partial_sketch(x, FeatureMap(12, 500, scale=1.0))
    _, messages = caught(lambda: decode(found, 2, "cl-omp"))
    assert any("noise levels" in text for text in messages)


def test_far_rows_are_noticed_without_a_pilot():
    x = np.random.default_rng(0).normal(size=(5000, 12))
    x[:20, 3] += 50.0
    found = partial_sketch(x, FeatureMap(12, 200, scale=1.0))
    _, messages = caught(lambda: decode(found, 1, "cl-omp"))
    (message,) = [text for text in messages if "feature 3" in text]
    assert f"{found.maximum[3]:.4g}" in message
    assert "from_scales" in message


def test_a_map_without_a_pilot_has_nothing_to_compare_with():
    x = np.random.default_rng(0).normal(size=(2000, 2))
    found = partial_sketch(x, FeatureMap(2, 100, scale=1.0))
    assert caught(lambda: decode(found, 2))[1] == []


def test_a_mixture_of_few_pilot_rows_is_said_to_lose():
    x = np.random.default_rng(0).uniform(size=(20_000, 3))
    feature_map = design(x, n_components=8, n_pilot=200)
    found, pilot = sketch(x, feature_map, sample=False), feature_map.pilot
    mixture = pilot.mixture.weights, pilot.mixture.means, pilot.mixture.variances
    _, messages = caught(lambda: warn_of_misfit(found, *mixture, 1.0, 1e-3))
    (message,) = messages
    stated = float(re.search(r"about ([\d.e+]+) nats", message)[1])
    assert stated == pytest.approx(pilot.sampling_loss, rel=0.1)
    assert f"{pilot.n_rows:,} pilot rows" in message
    assert f"n_pilot={4 * pilot.n_rows}" in message
    few = sketch(x[: pilot.n_rows], feature_map, sample=False)  # there are no more rows to read
    _, (all_read,) = caught(lambda: warn_of_misfit(few, *mixture, 1.0, 1e-3))
    assert "n_pilot" not in all_read
    lost = fit_pilot(x, 8).score - GaussianMixture(*mixture).score(x)
    assert stated == pytest.approx(lost, rel=0.7)
    assert caught(lambda: warn_of_misfit(found, *mixture, 1e-3, 1e-3))[1] == []
    # beside the warning of a far row
    far = sketch(np.concatenate([x, [[8.0, 0.0, 0.0]]]), feature_map, sample=False)
    _, messages = caught(lambda: warn_of_misfit(far, *mixture, 1.0, 1e-3))
    assert message in messages
    assert any("feature 0" in text for text in messages)
    # also where the pilot was calibrated to the sketch of other data
    moved = sketch(x + 0.1, feature_map, sample=False)
    _, messages = caught(lambda: warn_of_misfit(moved, *mixture, 1e-3, 1e-6, compared=True))
    assert message in messages
    assert any("of the rows are unlike" in text for text in messages)


def two_clusters():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(c, 1.0, (1000, 2)) for c in (-3.0, 3.0)])


@pytest.mark.parametrize("sample", [None, False])
@pytest.mark.parametrize("value", [1e3, 1e12])
@pytest.mark.few_cases(2)
def test_an_outlier_that_rules_a_component_is_named(value, sample):
    x = two_clusters()
    x[17, 0] = value
    found = sketch(x, design(x, n_components=2), sample=sample)
    _, messages = caught(lambda: decode(found, 2))
    assert any(f"{value:.4g}" in text and "feature 0" in text for text in messages)
    x[17, 0] = -3.0
    found = sketch(x, design(x, n_components=2), sample=sample)
    assert caught(lambda: decode(found, 2))[1] == []


def test_heavy_tails_and_rare_clusters_are_no_outliers():
    rng = np.random.default_rng(0)
    tails = rng.standard_t(4, size=(4000, 2))
    rare = two_clusters()
    rare[:30] += 40.0
    for x, k in ((tails, 1), (rare, 3)):
        _, messages = caught(lambda: decode(sketch(x, design(x, n_components=k)), k))  # noqa: B023
        assert not any("row" in text and "clip" in text for text in messages)


@pytest.mark.parametrize("model", ["gaussian", "dirac"])
@pytest.mark.slow
def test_fewer_distinct_rows_than_components(model):
    x = np.repeat([[0.0, 0.0], [1.0, 1.0]], 100, axis=0)
    found = sketch(x, FeatureMap(2, 60, scale=0.3))
    for k in (2, 3):
        _, messages = caught(lambda: decode(found, k, model=model))  # noqa: B023
        assert any(f"n_components={k} exceeds" in text for text in messages) == (k > 2)


@pytest.mark.slow
def test_combinations_of_few_values_without_density_are_warned_of():
    def rows(n, seed):
        rng = np.random.default_rng(seed)
        flags = (rng.random((n, 6)) < [0.3, 0.03, 0.04, 0.05, 0.03, 0.2]) + 0.0
        return np.c_[flags, rng.gamma(2, size=n) + flags[:, 0]]

    x = rows(1500, 0)
    model, messages = caught(lambda: decode(sketch(x, design(x, n_components=12)), 12))
    (message,) = [text for text in messages if "combination" in text]
    assert "feature 0" in message
    assert model.score(rows(5000, 1)) < model.score(x) - 10.0


def test_covariance_matrices_of_pilot_rows_fit_shared_values():
    x = np.random.default_rng(0).normal(size=(10_000, 3))
    x[:4000] = 0.0
    feature_map = design(x, n_components=2, covariance_type="full")
    found = partial_sketch(x, feature_map)
    model, (message,) = caught(lambda: decode(found, 2, covariance_type="full"))
    assert re.search("about 4[01]% of the rows are in components of the smallest var", message)
    assert model.score(x) > feature_map.pilot.mixture.score - 0.2


def test_covariance_matrices_of_rows_that_share_a_value_are_compared_by_feature():
    x = np.random.default_rng(0).normal(size=(10_000, 3))
    x[:4000] = 0.0
    feature_map = design(x, n_components=2, n_frequencies=100)
    found = partial_sketch(x, feature_map)
    with pytest.warns(UserWarning, match=r"nats a sample below EM .* feature \d .*'diag'"):
        decode(found, 2, covariance_type="full")


@pytest.mark.slow
def test_clusters_that_are_narrower_than_the_smallest_variance_are_warned_of(rng):
    centers, widths = 8.0 * rng.normal(size=(3, 2)), np.array([1.0, 0.1, 1e-4])
    label = rng.integers(0, 3, 6000)
    x = centers[label] + widths[label, None] * rng.normal(size=(6000, 2))
    feature_map = design(x, n_components=3)
    model, messages = caught(lambda: decode(sketch(x, feature_map), 3))
    (message,) = [text for text in messages if "narrower" in text]
    stated = float(re.search(r"about ([\d.]+) nats", message)[1])
    lost = polish(model, x, passes=3, variance_floor=1e-12).score(x) - model.score(x)
    assert lost > 1.0
    assert stated == pytest.approx(lost, rel=0.2)
    _, messages = caught(lambda: decode(sketch(x, feature_map, sample=False), 3))
    assert any(re.search(r"3\d% .* smallest variance", text) for text in messages)


@pytest.mark.slow
def test_values_that_rows_share_are_warned_of_without_rows(rng):
    x = np.where(rng.random((6000, 3)) < 0.6, 0.0, rng.normal(5.0, 3.0, (6000, 3)))
    feature_map = design(x, n_components=5)
    _, messages = caught(lambda: decode(sketch(x, feature_map, sample=False), 5))
    assert any("smallest variance" in text and "sample=True" in text for text in messages)
    _, messages = caught(lambda: decode(sketch(x, feature_map), 5))
    assert not any("narrow" in text for text in messages)


def test_moments_that_are_not_those_of_the_data_are_warned_of():
    x = random_mixture(3, 2, seed=1).sample(20_000, seed=1)
    found = partial_sketch(x, FeatureMap(2, 75, scale=1.0))
    means, variances = np.tile(x.mean(axis=0), (2, 1)), np.tile(x.var(axis=0), (2, 1))
    for factor, expected in ((1.0, 0), (0.8, 1), (1.3, 1)):
        parts = np.full(2, 0.5), means, variances * [1.0, factor]
        _, messages = caught(lambda parts=parts: warn_of_misfit(found, *parts, 0.0, 1.0))
        told = [text for text in messages if "where the data has" in text]
        assert len(told) == expected
        assert all("feature 1" in text and f"{x[:, 1].std():.3g}" in text for text in told)
    means[:, 0] += 0.2 * x[:, 0].std()
    shifted = np.full(2, 0.5), means, variances
    _, messages = caught(lambda: warn_of_misfit(found, *shifted, 0.0, 1.0))
    assert any("feature 0" in text and f"{x[:, 0].mean():.4g}" in text for text in messages)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_moments_of_a_good_fit_are_those_of_the_data(scale):
    x = random_mixture(3, 2, seed=1).sample(20_000, seed=1)
    found = partial_sketch(x, FeatureMap(2, 75, scale=scale))
    _, messages = caught(lambda: decode(found, 3))
    assert not [text for text in messages if "where the data has" in text]


@pytest.mark.slow
def test_data_that_goes_beyond_that_of_the_pilot_is_warned_of(rng):
    """The mixture that the pilot rows suggest is not compared with any rows of the data."""
    t = np.sort(rng.uniform(size=20_000))
    x = np.column_stack([20 * np.cos(6 * t), 20 * np.sin(6 * t), 40 * t])
    x += 0.5 * rng.normal(size=x.shape)
    feature_map = design(x[:16_000], n_components=8)
    with pytest.warns(UserWarning, match=r"cost of \d+ noise levels"):
        decode(sketch(x, feature_map, sample=False), 8)


def test_a_missing_cluster_of_a_map_without_data_is_warned_of():
    rng = np.random.default_rng(0)
    means = rng.uniform(0.0, 30.0, (12, 3))
    x = means[rng.integers(0, 12, 5000)] + rng.normal(size=(5000, 3))
    rows = partial_sketch(x, FeatureMap(3, 420, scale=1.0))
    complete = decode(rows, 12)
    with pytest.warns(UserWarning, match=r"cost of \d[\d.]* noise levels"):
        poor = decode(rows, 11)
    assert complete.score(x) > poor.score(x) + WARNED_NATS
