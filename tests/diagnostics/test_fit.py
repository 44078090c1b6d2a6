"""Every finding where it should be, and none on a good fit."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dask_sketch import (
    Centroids,
    FeatureMap,
    Sketch,
    decode,
    diagnose,
    partial_sketch,
    select_model,
)
from dask_sketch.errors import InputError, MergeError
from dask_sketch.models import (
    GaussianMixture,
    VonMisesFisherMixture,
    random_mixture,
    symmetric_kl,
)
from dask_sketch.models.model import LIKELIEST

TRUTH = random_mixture(3, 2, seed=5)
MAP = FeatureMap(2, 150, scale=1.0)
SKETCH = partial_sketch(TRUTH.sample(20_000, seed=2), MAP)
HELDOUT = partial_sketch(TRUTH.sample(10_000, seed=3), MAP)
MODEL = decode(SKETCH, 3, method="cl-ompr")


def names(model: GaussianMixture | Centroids, heldout: Sketch | None = None) -> list[str]:
    return list(diagnose(model, SKETCH, heldout).findings)


@pytest.mark.parametrize("seed", [2, 5, 6, 8])
@pytest.mark.parametrize("method", ["cl-ompr", "splitting"])
@pytest.mark.few_cases(3)
def test_a_good_fit_has_no_findings(seed: int, method: str) -> None:
    truth = random_mixture(3, 2, seed=seed)
    sketch = partial_sketch(truth.sample(20_000, seed=seed + 100), MAP)
    heldout = partial_sketch(truth.sample(10_000, seed=seed + 200), MAP)
    found = diagnose(decode(sketch, 3, method=method), sketch, heldout)
    assert dict(found.findings) == {}
    assert abs(found.misfit) < 4
    assert found.cost_ratio < 1
    assert found.effective_components == pytest.approx(3, abs=0.5)


def test_the_cost_is_that_of_the_decoder() -> None:
    found = diagnose(MODEL, SKETCH)
    assert MODEL.decoding is not None
    assert found.cost == pytest.approx(MODEL.decoding.cost)
    assert found.noise_level == pytest.approx(MODEL.decoding.noise_level, rel=1e-4)


@pytest.mark.parametrize("model", [TRUTH, MODEL])
def test_truth_and_fit_are_no_misfit(model: GaussianMixture) -> None:
    # the truth costs a noise level; a step of least squares takes off what the fit has taken
    assert abs(diagnose(model, SKETCH).misfit) < 4
    assert names(model) == []


@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
def test_too_few_components() -> None:
    found = diagnose(decode(SKETCH, 2), SKETCH, HELDOUT)
    assert {"misfit", "unlike held-out"} <= set(found.findings)
    assert found.misfit > 10


def test_too_many_components() -> None:
    assert "undetermined" in names(decode(SKETCH, 5, method="splitting"))


def test_a_cost_that_noise_explains_beside_a_statistic_that_it_does_not() -> None:
    x = np.random.default_rng(0).normal(size=(20_000, 2))
    x[:40] += 6.0
    sketch = partial_sketch(x, MAP)
    one = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 1.0]])
    found = diagnose(decode(sketch, start=one), sketch)
    assert found.misfit < 5
    assert f"{found.overidentification.excess:.2g} standard" in found.findings["overidentification"]
    assert "No problem" not in str(found)


def test_a_descent_that_stopped_early() -> None:
    early = GaussianMixture(MODEL.weights, MODEL.means + 0.05, MODEL.covariances)
    assert names(early) == ["unfinished"]
    assert names(decode(SKETCH, start=early)) == []


def test_a_component_that_weighs_nothing() -> None:
    light = 1e-4
    more = GaussianMixture(
        [light, *(1 - light) * MODEL.weights],
        [[0.0, 0.0], *MODEL.means],
        [[1.0, 1.0], *MODEL.covariances],
    )
    found = diagnose(more, SKETCH)
    assert "idle" in found.findings
    assert (found.n_components, found.heavy_components) == (4, 3)
    assert "Decode 3 components" in found.findings["idle"]


def test_two_components_for_one() -> None:
    half = MODEL.weights[0] / 2
    twice = GaussianMixture(
        [half, half, *MODEL.weights[1:]],
        MODEL.means[[0, 0, 1, 2]],
        MODEL.covariances[[0, 0, 1, 2]],
    )
    found = diagnose(twice, SKETCH)
    assert found.coincident == ((0, 1),)
    assert "0 and 1" in found.findings["coincident"]
    assert "Decode 3 components" in found.findings["coincident"]
    assert names(decode(SKETCH, start=twice, merge=True)) == []


def test_a_mean_beyond_the_data() -> None:
    means = MODEL.means.copy()
    means[1, 0] = SKETCH.maximum[0] + 1.0
    assert "edge" in names(GaussianMixture(MODEL.weights, means, MODEL.covariances))


def test_a_component_without_width() -> None:
    variances = MODEL.covariances.copy()
    variances[0, 1] = 1e-12
    found = diagnose(GaussianMixture(MODEL.weights, MODEL.means, variances), SKETCH).findings
    assert {"floor", "unresolved"} <= set(found)  # its likelihood is not to be seen


def test_heldout_samples_of_another_distribution() -> None:
    other = partial_sketch(TRUTH.sample(10_000, seed=3) + 0.1, MAP)
    assert names(MODEL, other) == ["unlike held-out"]
    assert names(MODEL, HELDOUT) == []


def stretched(anisotropy: float, seed: int) -> GaussianMixture:
    """Figure 3 of Keriven et al. (2018), at a smaller size."""
    means = random_mixture(5, 6, seed=seed).means
    by = np.where(np.arange(6) < 3, anisotropy, 1.0)
    return GaussianMixture(np.full(5, 0.2), means / by, np.broadcast_to(by**-2.0, means.shape))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
@pytest.mark.parametrize(("anisotropy", "fires"), [(1.0, False), (8.0, True)])
def test_good_discrepancy_and_poor_likelihood(anisotropy: float, fires: bool, seed: int) -> None:
    truth = stretched(anisotropy, seed)
    x = truth.sample(100_000, seed=seed + 1)
    scale = float(np.sqrt(truth.covariances.mean()))
    sketch = partial_sketch(x, FeatureMap(6, 600, scale=scale, seed=seed))
    model = decode(sketch, 5, variance_floor=1e-4, method="cl-ompr")
    found = diagnose(model, sketch)
    assert list(found.findings) == (["unresolved"] if fires else [])
    assert abs(found.misfit) < 4  # which the cost does not show
    assert found.linearization is not None
    loss = symmetric_kl(truth, model, 20_000) / found.linearization.attainable
    assert (loss > 5.0) == fires
    if fires:
        assert "variances of features 0, 1, 2" in found.findings["unresolved"]
        # frequencies drawn for each feature's own scale resolve them
        fitted = FeatureMap(6, 600, covariances=truth.covariances[0], seed=seed)
        again = partial_sketch(x, fitted)
        assert dict(diagnose(decode(again, 5), again).findings) == {}
        # a floor does not hide it
        wide = decode(sketch, 5, variance_floor=0.5, method="cl-ompr")
        floored = diagnose(wide, sketch).findings
        assert {"unresolved", "floor"} <= set(floored)
        assert "unfinished" not in floored


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_a_scale_that_fits_no_feature(scale: float) -> None:
    sketch = partial_sketch(TRUTH.sample(20_000, seed=2), FeatureMap(2, 150, scale=scale))
    found = diagnose(TRUTH, sketch).findings
    assert re.search(r"another scale: components are (9\.\d|0\.03\d*) times", found["unresolved"])


def test_a_scale_that_fits_is_not_to_be_changed() -> None:
    found = diagnose(MODEL, SKETCH)
    at = found.linearization
    assert at is not None
    poor = replace(found, linearization=replace(at, divergence=10.0 * at.attainable))
    (text,) = poor.findings.values()
    assert "refine='efficient'" in text
    assert "scale" not in text
    (text,) = replace(poor, is_weighted=True).findings.values()
    assert "refine" not in text
    assert "more frequencies or samples" in text
    wide = replace(poor, feature_widths=2.0 * poor.feature_widths)
    assert "another scale" in wide.findings["unresolved"]


def test_maximum_likelihood_is_no_least_squares() -> None:
    decoding = MODEL.decoding
    assert decoding is not None
    thin = MODEL.covariances.copy()
    thin[0, 1] = 0.01
    floored = replace(decoding, variance_floor=0.02)
    nearest = replace(MODEL, covariances=thin, decoding=floored)
    assert {"floor", "unfinished"} <= set(names(nearest))
    rows = replace(floored, message=LIKELIEST + "the calibrated rows")
    found = diagnose(replace(nearest, decoding=rows), SKETCH)
    assert list(found.findings) == ["misfit"]  # the floor does not bound it
    assert found.at_floor == ()
    assert found.linearization is not None
    assert np.isnan(found.linearization.divergence)
    thin[0, 1] = 1e-12
    repeated = diagnose(replace(nearest, covariances=thin, decoding=rows), SKETCH).findings
    assert "variance_floor" not in repeated["floor"]
    assert "features of few values" in repeated["floor"]


def test_an_efficient_fit_has_its_own_errors() -> None:
    refined = decode(SKETCH, 3, refine="efficient")
    found = diagnose(refined, SKETCH, HELDOUT)
    assert dict(found.findings) == {}
    assert refined.stderr is not None
    assert found.linearization is not None
    np.testing.assert_array_equal(found.linearization.weight_errors, refined.stderr.weights)
    assert np.isnan(found.linearization.divergence)
    assert "expected divergence" not in repr(found)
    # neither the least cost nor that of the truth, and no misfit all the same
    assert abs(found.misfit) < 4


def test_centroids_are_no_misfit_whatever_the_width_of_the_clusters() -> None:
    centroids = Centroids(TRUTH.weights, TRUTH.means)
    found = diagnose(centroids, SKETCH, HELDOUT)
    assert dict(found.findings) == {}
    assert found.linearization is None
    assert np.isnan(found.misfit)
    assert found.heldout is not None
    assert found.heldout.squared > 10 * found.heldout.deviation
    close = Centroids([0.5, 0.25, 0.25], TRUTH.means[[0, 1, 1]])  # type: ignore[arg-type]
    assert list(diagnose(close, SKETCH).findings) == ["coincident"]


def test_clustering_features_have_their_weights() -> None:
    weighted = FeatureMap(2, 150, scale=1.0, distribution="clustering")
    sketch = partial_sketch(TRUTH.sample(20_000, seed=2), weighted)
    w = weighted.feature_weights
    assert w is not None
    residual = w * (sketch.characteristic - TRUTH.characteristic(weighted.frequencies))
    found = diagnose(TRUTH, sketch)
    assert found.cost == pytest.approx(np.mean(np.abs(residual) ** 2))
    assert abs(found.misfit) < 4


@pytest.mark.parametrize(("unit", "offset"), [(1e-3, 0.0), (1e3, 1e6)])
def test_units_and_offset_do_not_matter(unit: float, offset: float) -> None:
    feature_map = FeatureMap(2, 150, scale=1.0, dtype="float64")
    x = TRUTH.sample(5000, seed=2)
    plain = diagnose(TRUTH, partial_sketch(x, feature_map))
    elsewhere = replace(feature_map, scale=unit, center=[offset, offset])
    moved = GaussianMixture(TRUTH.weights, TRUTH.means * unit + offset, TRUTH.covariances * unit**2)
    found = diagnose(moved, partial_sketch(x * unit + offset, elsewhere))
    assert found.cost == pytest.approx(plain.cost, rel=1e-3)
    assert found.linearization is not None
    assert plain.linearization is not None
    assert found.linearization.divergence == pytest.approx(plain.linearization.divergence, rel=1e-3)
    assert found.misfit == pytest.approx(plain.misfit, abs=0.01)


@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
def test_a_table_and_sentences() -> None:
    poor = diagnose(decode(SKETCH, 2), SKETCH, HELDOUT)
    for text in (repr(poor), poor._repr_html_()):
        assert "cost in noise levels" in text
        assert "mixture of 2 components" in text
        assert "held-out" in text
    assert repr(diagnose(MODEL, SKETCH)).endswith("No problem found.")


def test_bad_input() -> None:
    with pytest.raises(InputError, match="effective count"):
        diagnose(MODEL, Sketch.empty(MAP))
    with pytest.raises(InputError, match="3 features, sketch 2"):
        diagnose(random_mixture(2, 3), SKETCH)
    other = partial_sketch(TRUTH.sample(100, seed=0), FeatureMap(2, 150, scale=2.0))
    with pytest.raises(MergeError, match="scale"):
        diagnose(MODEL, SKETCH, other)


DIRECTIONS = VonMisesFisherMixture([1.0], [[1.0, 0.0]], [20.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, s: diagnose(s, m), "model of type Sketch"),
        (lambda m, s: diagnose(m, "sk.zarr"), "sketch of type str"),
        (lambda m, s: diagnose(DIRECTIONS, s), r"VonMisesFisherMixture: .*score"),
        (lambda m, s: diagnose(m, s, heldout=3), "heldout of type int"),
        (lambda m, s: select_model(m, s), "models of type GaussianMixture"),
        (lambda m, s: select_model({4: m}, s), r"models\[0\] of type int"),
        (lambda m, s: select_model([m], None), "heldout of type NoneType"),
        (
            lambda m, s: select_model([m], partial_sketch(np.eye(3), FeatureMap(3, 9, scale=1.0))),
            "1 features, heldout 3",
        ),
    ],
)
def test_mistaken_arguments(call, message):
    model = GaussianMixture([1.0], [[0.0]], [[1.0]])
    sketch = partial_sketch(model.sample(100, seed=0), FeatureMap(1, 20, scale=1.0))
    with pytest.raises(InputError, match=message):
        call(model, sketch)


@pytest.mark.parametrize("argument", ["sketch", "heldout"])
def test_features_of_other_names_are_refused(argument):
    named = {"sketch": SKETCH, "heldout": HELDOUT}
    feature_map = replace(MAP, feature_names=("b", "a"))
    model = replace(MODEL, feature_names=("a", "b"))
    named[argument] = partial_sketch(TRUTH.sample(1000, seed=2), feature_map)
    with pytest.raises(InputError, match=f"feature 0 of {argument} is 'b'; .* 'a'") as caught:
        diagnose(model, **named)
    assert caught.value.parameter == argument
    diagnose(model, SKETCH)  # a sketch without names has any
    diagnose(MODEL, partial_sketch(TRUTH.sample(1000, seed=2), feature_map))
