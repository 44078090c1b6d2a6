"""Choosing K and the method by a held-out sketch."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_sketch import (
    Centroids,
    FeatureMap,
    Sketch,
    decode,
    design,
    partial_sketch,
    select_model,
    sketch,
)
from dask_sketch.errors import InputError
from dask_sketch.models import (
    AlphaStableMixture,
    GaussianMixture,
    LatentClassMixture,
    VonMisesFisherMixture,
    random_mixture,
)

MAP = FeatureMap(2, 150, scale=1.0)


def sketch_of(truth: GaussianMixture, n: int, seed: int) -> Sketch:
    return partial_sketch(truth.sample(n, seed=seed), MAP)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.filterwarnings("ignore:the mixture leaves a cost")
def test_three_components_are_chosen_for_three(seed: int) -> None:
    truth = random_mixture(3, 2, seed=seed)
    sketch, heldout = sketch_of(truth, 100_000, seed + 1000), sketch_of(truth, 50_000, seed + 2000)
    models = [decode(sketch, k, method="splitting") for k in (5, 4, 3, 2, 1)]
    choice = select_model(models, heldout)
    assert choice.model is models[2]
    assert choice.selected.index == 2
    costs = [entry.heldout.cost for entry in choice.ranking]
    assert costs == sorted(costs)
    by_index = {entry.index: entry for entry in choice.ranking}
    assert by_index[2].as_good
    assert not by_index[3].as_good
    assert not by_index[4].as_good


def test_the_noise_of_a_difference_is_what_repeated_draws_show() -> None:
    truth = random_mixture(3, 2, seed=1)
    models = [
        GaussianMixture(truth.weights, truth.means + by, truth.covariances) for by in (0.0, 0.05)
    ]
    behind, deviations = [], []
    for seed in range(40):
        first, second = sorted(
            select_model(models, sketch_of(truth, 1000, seed)).ranking,
            key=lambda entry: entry.index,
        )
        behind.append(second.heldout.cost - first.heldout.cost)
        deviations.append(max(first.excess_deviation, second.excess_deviation))
    assert np.mean(deviations) == pytest.approx(np.std(behind), rel=0.25)


def test_centroids_and_mixtures_are_held_against_each_other() -> None:
    truth = random_mixture(3, 2, seed=1)
    centroids = Centroids(truth.weights, truth.means)
    heldout = sketch_of(truth, 5000, 0)
    choice = select_model([centroids, truth], heldout)
    assert choice.model is truth
    assert select_model([centroids], heldout).model is centroids


def test_equal_models_are_equally_good_and_the_smaller_is_chosen() -> None:
    truth = random_mixture(2, 2, seed=1)
    weights = np.append(truth.weights[:1] / 2, [truth.weights[0] / 2, truth.weights[1]])
    twice = GaussianMixture(weights, truth.means[[0, 0, 1]], truth.covariances[[0, 0, 1]])
    assert select_model([twice, truth], sketch_of(truth, 1000, 0)).model is truth


def test_it_prints_as_a_table() -> None:
    truth = random_mixture(3, 2, seed=1)
    centroids = Centroids(truth.weights, truth.means)
    choice = select_model([centroids, truth], sketch_of(truth, 5000, 0))
    for text in (repr(choice), choice._repr_html_()):
        assert "selected" in text
        assert "worse" in text
        assert "Centroids of 3" in text


def test_bad_input() -> None:
    truth = random_mixture(3, 2, seed=1)
    with pytest.raises(InputError, match=r"models=\[\]"):
        select_model([], sketch_of(truth, 100, 0))
    with pytest.raises(InputError, match="heldout 2"):
        select_model([truth, random_mixture(2, 3)], sketch_of(truth, 100, 0))
    with pytest.raises(InputError, match="effective count"):
        select_model([truth], Sketch.empty(MAP))


def overlapping(n_components: int, seed: int) -> GaussianMixture:
    """A mixture of four features whose nearest components are about 1.5 deviations apart."""
    truth = random_mixture(n_components, 4, seed=seed)
    apart = np.linalg.norm(truth.means[:, None] - truth.means, axis=2)
    np.fill_diagonal(apart, np.inf)
    factor = 1.5 / np.median(apart.min(axis=1))
    return GaussianMixture(truth.weights, factor * truth.means, truth.covariances)


def of_rows(n_components: int, seed: int, n: int = 20_000, **options: Any) -> Sketch:
    x = overlapping(n_components, seed).sample(n, seed=seed + 50)
    return sketch(x, design(x, n_components=4, n_pilot=2000), **options)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [None, range(1, 5)])
def test_the_number_of_components_of_a_sketch_is_found(numbers: Any) -> None:
    data = of_rows(3, seed=1, sample=False)
    choice = select_model(data, n_components=numbers, threads=1)
    assert choice.model.n_components == 3
    assert choice.criterion == "overidentification"
    assert [entry.value for entry in choice.ranking] == sorted(e.value for e in choice.ranking)
    by_number = {entry.model.n_components: entry for entry in choice.ranking}
    assert by_number.keys() >= {2, 3, 4}
    too_few, right = by_number[2].overidentification, by_number[3].overidentification
    assert too_few is not None
    assert right is not None
    assert too_few.p_value < 1e-6
    assert right.p_value > 1e-4
    values = choice.as_dict()
    assert (values["n_components"], values["criterion"]) == (3, "overidentification")
    assert len(values["candidates"]) == len(choice.ranking)


def test_the_criterion_is_that_of_andrews_and_lu_up_to_a_constant() -> None:
    data = of_rows(2, seed=2, sample=False)
    choice = select_model(data, n_components=[2, 3], threads=1)
    m, n = data.feature_map.n_frequencies, data.count
    values = {}
    for entry in choice.ranking:
        test = entry.overidentification
        assert test is not None
        values[entry.model.n_components] = test.statistic - (2 * m - entry.n_parameters) * np.log(n)
    excess = next(entry.excess for entry in choice.ranking if entry.model.n_components == 3)
    assert values[3] - values[2] == pytest.approx(excess, abs=10.0)


@pytest.mark.slow
def test_types_of_covariances_are_compared() -> None:
    truth = GaussianMixture(
        [0.5, 0.5], [[-2, 0], [2, 1]], [[[1, 0.7], [0.7, 1]], [[1, -0.6], [-0.6, 2]]],
        covariance_type="full",
    )  # fmt: skip
    x = truth.sample(20_000, seed=1)
    data = sketch(x, design(x, n_frequencies=120, n_components=3), sample=False)
    choice = select_model(data, n_components=[2, 3], covariance_types=["diag", "full"], threads=1)
    assert (choice.model.n_components, choice.model.covariance_type) == (2, "full")


@pytest.mark.slow
def test_all_rows_decide_by_their_likelihood() -> None:
    data = of_rows(2, seed=3, n=2000, sample=2000)
    choice = select_model(data, n_components=[1, 2, 3], threads=1)
    assert choice.criterion == "likelihood"
    assert choice.model.n_components == 2
    rows = data.sample.rows.astype(float)
    best = choice.ranking[0]
    assert best.value == pytest.approx(best.model.bic(rows), rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:components have no width", "ignore:two features or more")
def test_repeated_values_of_rounded_rows_are_no_components(rng: np.random.Generator) -> None:
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    x = 1000.0 * np.round(centres[rng.integers(3, size=150)] + rng.normal(size=(150, 2)), 1)
    data = sketch(x, design(x, n_components=15), sample=True)
    choice = select_model(data, n_components=[2, 3, 5, 15], threads=1)  # 15: of repeated values
    assert choice.criterion == "likelihood"
    assert choice.model.n_components == 3


@pytest.mark.filterwarnings("ignore:n_components")
@pytest.mark.slow
def test_rows_decide_where_no_mixture_explains_the_sketch(rng: np.random.Generator) -> None:
    x = rng.uniform(size=(20_000, 2))
    data = sketch(x, design(x, n_components=3), sample=2000)
    assert select_model(data, n_components=[1, 2], threads=1).criterion == "likelihood"
    with pytest.warns(UserWarning, match="statistic"):
        select_model(data.without_sample(), n_components=[1, 2], threads=1)


def test_a_held_out_sketch_decides_where_it_is_given() -> None:
    data = of_rows(3, seed=4, sample=False)
    heldout = sketch(overlapping(3, 4).sample(10_000, seed=99), data.feature_map, sample=False)
    choice = select_model(data, heldout, n_components=[1, 3, 4], threads=1)
    assert choice.criterion == "heldout"
    assert choice.ranking[-1].model.n_components == 1
    assert choice.selected.heldout is not None
    assert choice.selected.overidentification is not None


@pytest.mark.slow
def test_the_largest_number_is_warned_of() -> None:
    data = of_rows(3, seed=1, sample=False)
    with pytest.warns(UserWarning, match="n_components"):
        select_model(data, n_components=[2, 3], threads=1)


def test_a_selection_has_a_table_and_a_picture() -> None:
    pytest.importorskip("matplotlib")
    data = of_rows(2, seed=5, n=5000, sample=False)
    choice = select_model(
        data, n_components=[2, 3], covariance_types=["diag", "spherical"], threads=1
    )
    for text in (repr(choice), choice._repr_html_()):
        assert "p-value" in text
        assert "spherical" in text
    ax = choice.plot.criterion()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "diag", "spherical", "selected"
    ]  # fmt: skip
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [2, 3])
    assert min(line.get_ydata().min() for line in ax.lines) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "aic"}, "criterion='aic'"),
        ({"criterion": "likelihood"}, "criterion='likelihood'"),
        ({"criterion": "heldout"}, "heldout"),
        ({"n_components": 3}, "n_components=3"),
        ({"n_components": []}, "n_components"),
        ({"n_components": [0]}, "n_components=0"),
        ({"covariance_types": ["round"]}, "covariance_types="),
        ({"covariance_type": ["full"]}, r"covariance_type=\['full'\].* covariance_types"),
        ({"n_components": [2], "model": "dirac"}, "model='dirac'"),
        ({"start": random_mixture(2, 4)}, "start"),
    ],
)
def test_arguments_of_a_search_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        select_model(of_rows(2, seed=5, n=500, sample=False), **options)


def test_arguments_of_a_search_need_a_sketch() -> None:
    truth = random_mixture(3, 2, seed=1)
    for options in ({"n_components": [2]}, {"criterion": "likelihood"}, {"replicates": 2}):
        with pytest.raises(InputError, match=next(iter(options))):
            select_model([truth], sketch_of(truth, 100, 0), **options)


def directions(n: int) -> np.ndarray:
    """Directions of two components in the plane."""
    truth = VonMisesFisherMixture([0.6, 0.4], [[1.0, 0.0], [0.0, 1.0]], [30.0, 10.0])
    return truth.sample(n, seed=0)


@pytest.fixture(scope="module")
def of_directions() -> Sketch:
    x = directions(5000)
    return sketch(x, design(x, n_components=2, normalize=True), sample=2000)


@pytest.mark.slow
def test_numbers_of_mixtures_of_directions(of_directions: Sketch) -> None:
    choice = select_model(of_directions.without_sample(), n_components=[1, 2, 3], threads=1)
    assert choice.criterion == "overidentification"
    assert isinstance(choice.model, VonMisesFisherMixture)
    assert choice.model.n_components == 2
    test = choice.selected.overidentification
    assert test is not None
    assert test.p_value > 1e-3
    assert choice.ranking[-1].model.n_components == 1
    values = choice.as_dict()["candidates"][0]
    assert (values["covariance_type"], values["n_parameters"]) == (None, 2 * 3 - 1)
    assert "VonMisesFisherMixture of 2" in repr(choice)


@pytest.mark.slow
def test_rows_decide_about_directions_where_there_are_any(of_directions: Sketch) -> None:
    choice = select_model(of_directions, n_components=[1, 2, 3], threads=1)
    assert (choice.criterion, choice.model.n_components) == ("likelihood", 2)
    found = select_model(of_directions, n_components=[2], criterion="overidentification")
    assert found.ranking[0].overidentification is not None


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True])
def test_numbers_of_latent_classes(rows: bool, rng: np.random.Generator) -> None:
    chance = np.array([[0.9, 0.8, 0.1, 0.8, 0.9], [0.1, 0.3, 0.8, 0.2, 0.1]])
    of_class = rng.integers(2, size=2000)
    codes = (rng.random((2000, 5)) < chance[of_class]).astype(int)
    frame = pd.DataFrame({f"c{i}": pd.Categorical(codes[:, i]) for i in range(5)})
    data = sketch(frame, design(frame, n_components=3), sample=rows or False)
    found = data if isinstance(data, Sketch) else data.compute()
    choice = select_model(found, n_components=None if rows else [1, 2, 3], threads=1)
    assert choice.criterion == ("likelihood" if rows else "overidentification")
    assert isinstance(choice.model, LatentClassMixture)
    assert choice.model.n_components == 2
    assert "LatentClassMixture of 2" in repr(choice)


@pytest.mark.slow
def test_numbers_of_heavy_tails_need_no_rows() -> None:
    truth = AlphaStableMixture([0.6, 0.4], [[-6.0], [6.0]], [[1.0], [1.0]], [1.6, 1.4])
    x = truth.sample(20_000, seed=1)
    inside = np.clip(x, *np.quantile(x, [0.02, 0.98], axis=0))
    data = sketch(x, design(inside, n_components=2), sample=2000)
    options: dict[str, Any] = {"model": "alpha-stable", "threads": 1}
    choice = select_model(data, n_components=[1, 2, 3], **options)
    assert choice.criterion == "overidentification"
    assert choice.model.n_components == 2
    shared = select_model(data, n_components=[1, 2, 3], shared_alpha=True, **options)
    assert np.ptp(shared.model.alphas) == 0.0
    assert shared.selected.n_parameters == choice.selected.n_parameters - 1
    with pytest.raises(InputError, match=r"criterion='likelihood'.*alpha-stable"):
        select_model(data, criterion="likelihood", **options)


def test_what_does_not_suit_another_family_is_refused(of_directions: Sketch) -> None:
    with pytest.raises(InputError, match=r"covariance_types=\['full'\].*von-mises-fisher"):
        select_model(of_directions, covariance_types=["full"])
    with pytest.raises(InputError, match=r"heldout.*von-mises-fisher"):
        select_model(of_directions, of_directions, n_components=[2])
    x = directions(300)
    many = sketch(x, design(x, n_components=2, n_frequencies=1100, normalize=True), sample=False)
    with pytest.raises(InputError, match=r"n_components=4.*1,100"):
        select_model(many, n_components=[4])


def test_a_long_search_is_stated_once(monkeypatch, caplog):
    x = np.random.default_rng(0).normal(size=(300, 2))
    found = partial_sketch(x, design(x, n_components=3), sample=1000)
    ticks = itertools.count(step=15.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    select_model(found)
    texts = [one.message for one in caplog.records if "select_model" in one.message]
    assert len(texts) == 1
    assert "range(1, 11)" in texts[0]


def test_models_of_other_names_are_refused():
    truth = random_mixture(2, 2, seed=1)
    named = FeatureMap(2, 60, scale=1.0, feature_names=("a", "b"))
    plain = FeatureMap(2, 60, scale=1.0)
    rows, others = truth.sample(4000, seed=0), truth.sample(2000, seed=1)
    a, b = (replace(truth, feature_names=names) for names in (("a", "b"), ("b", "a")))
    assert select_model([a, a], partial_sketch(others, named)).model.feature_names == ("a", "b")
    for models, heldout, text in (
        ([a, b], named, "feature 0 of heldout is 'a'; .* 'b'"),
        ([a, b], plain, r"feature 0 of models\[1\] is 'b'; models\[0\] .* 'a'"),
    ):
        with pytest.raises(InputError, match=text):
            select_model(models, partial_sketch(others, heldout))
    turned = FeatureMap(2, 60, scale=1.0, feature_names=("b", "a"))
    with pytest.raises(InputError, match="feature 0 of heldout is 'b'; .* 'a'") as caught:
        select_model(
            partial_sketch(rows, named), partial_sketch(others, turned), n_components=[1, 2]
        )
    assert caught.value.parameter == "heldout"


def test_coarsely_rounded_values_of_one_component_are_not_components():
    rows = np.round(np.random.default_rng(1).normal(3.0, 3**0.5, size=(1500, 2)))
    rounded = sketch(rows, design(rows, n_components=8))
    assert select_model(rounded, n_components=(1, 8)).model.n_components == 1
