"""The likelier of maximum likelihood on the rows of a sketch and the fit to the sketch wins."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import (
    GaussianMixture,
    Sketch,
    SketchGaussianMixture,
    decode,
    design,
    diagnose,
    partial_sketch,
    sketch,
)
from dask_sketch.errors import DecodeError
from dask_sketch.models import random_mixture
from dask_sketch.models.clusters import kmeans

MEANS = np.zeros((3, 6))
MEANS[1, 0], MEANS[2, 1] = 30.0, 20.0


def log_normal(n, seed=0):
    """Rows that are not a mixture of a few Gaussians."""
    rng = np.random.default_rng(seed)
    return np.exp(0.7 * rng.normal(size=(n, 3))) + 0.05 * rng.normal(size=(n, 3))


def best_of_em(x, k):
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianMixture(k, covariance_type="diag", n_init=3, random_state=0).fit(x)


@pytest.fixture(scope="module")
def skewed():
    x = log_normal(40_000)
    return x, sketch(x, design(x, n_components=4), sample=5000)


@pytest.fixture(scope="module")
def small():
    """Sketch of fewer rows of the same distribution."""
    x = log_normal(4000)
    return x, sketch(x, design(x, n_components=2), sample=1000)


@pytest.fixture(scope="module")
def rival(skewed):
    return best_of_em(skewed[0], 4)


@pytest.mark.slow
def test_data_that_is_no_mixture_is_fitted_as_well_as_by_em_on_all_rows(skewed, rival):
    x, found = skewed
    heldout = log_normal(20_000, seed=1)
    model = decode(found, 4)
    assert model.decoding.method == "likelihood"
    assert model.score(heldout) > rival.score(heldout) - 0.02
    assert model.decoding.gain > 0.1  # over the fit to the sketch
    assert model.decoding.is_likeliest
    findings = diagnose(model, found).findings  # no advice to descend towards the sketch
    assert "unfinished" not in findings
    assert "sample" not in findings["misfit"]
    assert model.decoding.score == pytest.approx(model.score(x), abs=0.05)


def test_the_fit_to_the_sketch_wins_on_a_mixture():
    truth = random_mixture(n_components=3, n_features=4, seed=3)
    x = truth.sample(100_000, seed=4)
    model = decode(sketch(x, design(x, n_components=3), sample=1000), 3, refine="efficient")
    assert model.stderr is not None  # of the fit to the sketch
    assert abs(model.score(x) - truth.score(x)) < 1e-3
    assert model.decoding.gain > -0.1


@pytest.mark.parametrize(("distance", "share"), [(30, 0.1), (100, 0.01)])
def test_clusters_far_apart_are_found(distance, share):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2))
    x[: int(share * len(x))] += distance
    rng.shuffle(x)
    feature_map = design(x, n_components=2)
    truth = best_of_em(x, 2).score(x)
    for found in (sketch(x, feature_map), sketch(x, feature_map, sample=False)):
        assert decode(found, 2).score(x) > truth - 0.01


@pytest.mark.parametrize("task", ["clustering", "mixture"])
@pytest.mark.slow
def test_centroids_are_as_good_as_those_of_all_rows(skewed, task):
    from sklearn.cluster import KMeans

    x, found = skewed
    if task == "clustering":
        found = sketch(x, design(x, n_components=4, task="clustering"), sample=5000)
    model = decode(found, 4, model="dirac")
    lloyd = KMeans(4, n_init=3, random_state=0).fit(x)
    error = model.squared_distances(x).mean()
    assert error < 1.02 * lloyd.inertia_ / len(x)
    assert -model.decoding.score == pytest.approx(error, rel=0.05)


@pytest.mark.slow
def test_isotropic_components_have_one_variance(small):
    _, found = small
    model = decode(found, 3, model="isotropic")
    assert model.decoding.method == "likelihood"
    np.testing.assert_allclose(model.covariances, model.covariances[:, :1].repeat(3, axis=1))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_and_replicates_help(small):
    _, found = small
    one, again = decode(found, 2, seed=5), decode(found, 2, seed=5)
    np.testing.assert_array_equal(one.means, again.means)
    assert decode(found, 2, seed=5, replicates=2).decoding.score >= one.decoding.score


@pytest.mark.slow
def test_other_methods_are_used_where_they_are_asked_for(small):
    x, found = small
    bounds = np.stack([x.min(axis=0), x.max(axis=0)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the misfit
        assert decode(found, 2, "splitting").decoding.method == "splitting"
        assert decode(found, 2, bounds=bounds).decoding.method == "cl-ompr"


def test_a_sketch_with_neither_rows_nor_a_pilot_is_refused(skewed):
    _, found = skewed
    bare = replace(found.without_sample(), feature_map=found.feature_map.with_pilot(None))
    with pytest.raises(DecodeError, match="method='likelihood'"):
        decode(bare, 2, "likelihood")
    with pytest.raises(DecodeError, match="method='likelihood'"):
        decode(found.without_sample(), 2, "likelihood", "dirac")


@pytest.mark.slow
def test_a_problem_too_large_for_a_fit_to_the_sketch_is_decoded_from_the_rows():
    x = np.random.default_rng(0).normal(size=(1200, 60)) * np.linspace(1, 2, 60)
    feature_map = design(x, n_frequencies=60_000, n_components=14, n_pilot=400)
    found = sketch(x, feature_map, sample=600)
    with pytest.warns(UserWarning, match=r"of 1,200 are few for 1,693 parameters"):
        model = decode(found, 14)
    assert model.decoding.gain is None
    assert model.score(x) > best_of_em(x, 1).score(x) - 2.0


def test_without_rows_the_pilot_takes_their_place(skewed, rival):
    _, found = skewed
    heldout = log_normal(20_000, seed=1)
    model = decode(found.without_sample(), 4)
    assert model.decoding.method == "likelihood"
    assert "pilot" in model.decoding.message
    assert model.score(heldout) > rival.score(heldout) - 0.1


def test_without_rows_a_mixture_is_decoded_from_the_sums():
    truth = random_mixture(n_components=3, n_features=4, seed=3)
    x = truth.sample(100_000, seed=4)
    model = decode(sketch(x, design(x, n_components=3), sample=False), 3)
    assert "pilot" not in model.decoding.message
    assert abs(model.score(x) - truth.score(x)) < 2e-3


@pytest.mark.slow
def test_a_cost_that_noise_explains_is_no_proof_where_there_are_many_components():
    x = np.random.default_rng(0).gamma(0.7, size=(3000, 4))
    heldout = np.random.default_rng(1).gamma(0.7, size=(4000, 4))
    found = sketch(x, design(x, n_components=15), sample=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nearest = decode(found, 15, method="splitting")
    model = decode(found, 15)
    assert nearest.decoding.cost < nearest.decoding.noise_level
    assert model.score(heldout) > nearest.score(heldout) + 0.2
    assert any("nats" in str(each.message) for each in caught)


@pytest.mark.slow
def test_without_rows_shared_values_are_not_widened_to_what_the_sketch_resolves():
    rng, n = np.random.default_rng(1), 6000
    shared = np.where(rng.random(n) < 0.4, 0.0, rng.lognormal(3.0, 1.2, n))
    x = np.column_stack([rng.poisson(rng.gamma(2.0, 2.0, n)), rng.gamma(2.0, 10.0, n), shared])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    with pytest.warns(UserWarning, match="sample=True"):
        fitted = SketchGaussianMixture(10, sample_size=False, random_state=1).fit(x)
    pilot = fitted.sketch_.feature_map.pilot.mixture
    rival = GaussianMixture(pilot.weights, pilot.means, pilot.variances)
    assert fitted.score(x) > rival.score(x) - 0.1


@pytest.mark.slow
def test_without_rows_centroids_are_as_good_as_those_of_k_means():
    x = np.random.default_rng(0).gamma(0.5, size=(8000, 4))
    feature_map = design(x, n_components=8, task="clustering")
    error = kmeans(x, 8).inertia
    found = sketch(x, feature_map, sample=False)
    model = decode(found, 8, model="dirac")
    assert "pilot" in model.decoding.message
    # the density is 1 to 3 % worse, depending on the version of SciPy
    assert model.inertia(x) < 1.005 * error < decode(found, 8, "density").inertia(x)
    # of other data, the pilot rows say nothing
    away = decode(sketch(x + 3.0, feature_map, sample=False), 8, model="dirac")
    assert away.decoding.method == "density"
    assert away.inertia(x + 3.0) < 1.2 * error


def test_mixtures_of_a_map_for_centroids_are_said_to_be_rough_without_rows():
    x = random_mixture(3, 2, seed=0).sample(5000, seed=1)
    feature_map = design(x, n_components=3, task="clustering")
    with pytest.warns(UserWarning, match="task='clustering'"):
        decode(sketch(x, feature_map, sample=False), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(sketch(x, feature_map), 3)


def test_few_pilot_rows_are_said_to_make_poor_centroids():
    x = np.random.default_rng(0).gamma(0.5, size=(4000, 4))
    feature_map = design(x, n_components=8, task="clustering", n_pilot=100)
    with pytest.warns(UserWarning, match="n_components=8.*n_pilot=400"):
        decode(sketch(x, feature_map, sample=False), 8, model="dirac")


@pytest.mark.filterwarnings("ignore:the mixture is hardly likelier")
@pytest.mark.slow
def test_far_rows_do_not_hide_that_the_data_is_that_of_the_pilot():
    x = np.random.default_rng(1).standard_t(1.0, size=(20_000, 2))
    heldout = np.random.default_rng(11).standard_t(1.0, size=(4000, 2))
    feature_map = design(x, n_components=4)
    pilot = feature_map.pilot.mixture
    common = GaussianMixture(pilot.weights, pilot.means, pilot.variances)
    model = decode(sketch(x, feature_map, sample=False), 4)
    assert model.score(heldout) > common.score(heldout) - 0.05


@pytest.mark.slow
def test_each_group_has_a_mixture_of_its_own():
    rng = np.random.default_rng(0)
    day = np.repeat([0, 1, 2], 10_000)
    level = np.array([1.0, 1.25, 0.8])[day]
    x = np.c_[level * rng.gamma(2.0, 1.0, len(day)), rng.lognormal(0.0, 0.5, len(day)) * level]
    feature_map = design(x, n_components=4, n_frequencies=160)
    models = decode(sketch(x, feature_map, groups=day), 4)
    pilot = feature_map.pilot.mixture
    common = GaussianMixture(pilot.weights, pilot.means, pilot.variances)
    for label, model in models.items():
        mine = x[day == label]
        np.testing.assert_allclose(model.weights @ model.means, mine.mean(axis=0), rtol=0.05)
        best = best_of_em(mine, 4)
        assert model.score(mine) > best.score(mine) - 0.1
        if label:
            assert model.score(mine) > common.score(mine) + 0.02


@pytest.mark.parametrize(
    ("factor", "shift", "n_components"),
    [
        (0.5, 0.0, 3),
        (2.0, 5.0, 5),
        pytest.param(0.5, 0.0, 5, marks=pytest.mark.slow),
        pytest.param(2.0, 5.0, 3, marks=pytest.mark.slow),
    ],
)
def test_data_of_another_scale_is_fitted_as_well_as_by_em(factor, shift, n_components):
    """Another currency, or a poorer region, without rows: up to 2 nats were lost, in silence."""
    feature_map = design(log_normal(20_000), n_components=n_components)
    rows = factor * log_normal(25_000, seed=1) + shift
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of far rows and of narrow components
        found = decode(sketch(rows[:20_000], feature_map, sample=False), n_components)
    rival = best_of_em(rows[:5000], n_components)
    assert found.score(rows[20_000:]) > rival.score(rows[20_000:]) - 0.1


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.filterwarnings("ignore:.* rows are few")
def test_one_gaussian_of_very_few_rows_has_their_moments(n):
    x = np.random.default_rng(2).normal(size=(n, 2))
    model = decode(sketch(x, design(x, n_components=1)), 1)
    np.testing.assert_allclose(model.means[0], x.mean(axis=0))
    np.testing.assert_allclose(model.variances[0], x.var(axis=0))


@pytest.mark.parametrize("n_frequencies", [None, 12])
@pytest.mark.filterwarnings("ignore:n_frequencies=12 is under", "ignore:n_components=1 with 2")
def test_the_sketch_of_data_elsewhere_is_fitted_alone(n_frequencies):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 2))
    feature_map = design(x, n_components=1, n_frequencies=n_frequencies)
    moved = partial_sketch(0.3 * rng.normal(size=(5000, 2)) + 1.5, feature_map)
    model = decode(moved, 1)
    np.testing.assert_allclose(model.means, 1.5, atol=0.03)
    np.testing.assert_allclose(model.covariances, 0.09, rtol=0.1)


@pytest.mark.slow
def test_components_of_few_rows_are_fitted_less_closely_and_warned_of():
    x, heldout = log_normal(100), log_normal(5000, seed=1)
    found = sketch(x, design(x, n_components=8))
    with pytest.warns(UserWarning, match=r"100 rows .* n_components=8") as caught:
        model = decode(found, 8)
    assert len(caught) == 1  # the pilot's mixture fits the same rows too closely to be compared
    assert model.decoding.message.endswith("prior of the covariances")
    assert model.score(heldout) > best_of_em(x, 8).score(heldout) + 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(found, 2)


def mixture_with_rare(rare: float) -> GaussianMixture:
    return GaussianMixture([0.6 - rare, 0.4, rare], MEANS, np.ones((3, 6)))


@pytest.fixture(scope="module")
def rare_sketch() -> Sketch:
    x = mixture_with_rare(0.005).sample(6000, seed=0)
    return partial_sketch(x, design(x, n_components=3, seed=0))


def test_rare_cluster_of_the_pilot_is_kept(rare_sketch: Sketch) -> None:
    mixture = mixture_with_rare(0.005)
    found = decode(rare_sketch, 3)
    heldout = mixture.sample(6000, seed=1)
    assert mixture.score(heldout) - found.score(heldout) < 0.02
    assert found.decoding.cost < found.decoding.noise_level


def test_components_that_noise_hides_are_warned_of() -> None:
    means = np.random.default_rng(0).uniform(-40.0, 40.0, (6, 12))
    for weights, warned in (([1.0] * 6, False), ([1.0, 0.003] * 3, True)):
        mixture = GaussianMixture(np.array(weights) / sum(weights), means, np.ones((6, 12)))
        x = mixture.sample(6000, seed=0)
        sketch = partial_sketch(x, design(x, n_components=6, seed=0))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            decode(sketch, 6)
        assert any("nats" in str(each.message) for each in caught) == warned


@pytest.mark.slow
def test_pilot_of_more_rows_is_better_than_few_random_rows() -> None:
    x, heldout = log_normal(6000), log_normal(20_000, seed=1)
    model = decode(sketch(x, design(x, n_components=6), sample=100), 6)
    assert model.decoding.message.endswith("pilot rows of the feature map")
    assert model.score(heldout) > best_of_em(x, 6).score(heldout) - 0.05


@pytest.mark.slow
def test_pilot_of_the_same_rows_does_not_replace_their_likeliest_mixture() -> None:
    x = log_normal(3000)
    model = decode(sketch(x, design(x, n_components=4)), 4)
    assert model.decoding.message.endswith("calibrated rows")


@pytest.mark.slow
def test_few_rows_of_a_pilot_that_is_better_than_the_sample_are_warned_of() -> None:
    x = np.random.default_rng(0).normal(size=(1200, 60)) * np.linspace(1, 2, 60)
    found = sketch(x, design(x, n_frequencies=60_000, n_components=14), sample=600)
    with pytest.warns(UserWarning, match="1,200 pilot rows"):
        decode(found, 14)


@pytest.mark.slow
def test_many_rows_are_fitted_from_the_fit_to_some_of_them() -> None:
    rng = np.random.default_rng(4)
    means = rng.uniform(-30.0, 30.0, (70, 2))
    truth = GaussianMixture(np.full(70, 1 / 70), means, np.ones((70, 2)))
    x, heldout = truth.sample(50_000, seed=1), truth.sample(20_000, seed=2)
    feature_map = design(x, n_components=70)
    found = sketch(x, feature_map)
    assert len(found.sample) > 30_000
    model = decode(found, 70)
    assert truth.score(heldout) - model.score(heldout) < 0.01


def test_one_component_of_a_group_has_its_moments() -> None:
    rng = np.random.default_rng(3)
    groups = rng.integers(0, 3, 6000)
    x = rng.normal(size=(6000, 2)) * [1.0, 3.0] + 0.05 * groups[:, None]
    feature_map = design(x, n_components=3)
    sketched = partial_sketch(x, feature_map, groups=groups)
    for label in range(3):
        found = decode(sketched[label], 1)
        np.testing.assert_allclose(found.means[0], x[groups == label].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(found.covariances[0], x[groups == label].var(axis=0), rtol=1e-5)


def test_few_rows_of_large_weight_are_noise_of_the_refinement():
    def draw(seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(5000, 2))
        rare = rng.random(5000) < 0.02
        x[rare] += [6.0, 3.0]
        return x, np.where(rare, 49.0, 1.0)

    x, weights = draw(0)
    feature_map = design(x, n_components=2, weights=weights)
    x, weights = draw(5)
    model = decode(sketch(x, feature_map, weights, sample=False), 2, refine="efficient")
    assert model.stderr is not None  # the refined fit, and not that of the pilot rows
