"""Report page of an estimator of groups."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest

from dask_sketch import FeatureMap, SketchGroup, partial_sketch
from dask_sketch.distributions import (
    DistributionClassifier,
    DistributionRegressor,
    write_learning,
)
from dask_sketch.errors import InputError

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)
N = 60
WIDTH = RNG.uniform(0.5, 2.0, N)
NOISE = RNG.normal(size=N)
KIND = np.array(["narrow", "<wide>"])[(WIDTH > 1.2).astype(int)]
FAST = {"size": 60, "bandwidths": (1.0,)}


def days(n_rows: np.ndarray | int = 60) -> SketchGroup:
    """Days of rows that are as wide as their targets."""
    day = np.repeat(np.arange(N), n_rows)
    x = np.random.default_rng(1).normal(size=(len(day), 2)) * WIDTH[day, None]
    labels = np.array([f"day {k:02d}" for k in range(N)])[day]
    return partial_sketch(x, FeatureMap(2, 40, scale=1.0), groups=labels, dim="day")


GROUPS = days()


def page_of(
    folder: Path,
    model: DistributionRegressor | DistributionClassifier,
    y: np.ndarray,
    groups: SketchGroup = GROUPS,
    **options: object,
) -> tuple[str, list[str]]:
    """Words of a page, and the titles of its pictures."""
    text = write_learning(folder / "new" / "page.html", model, groups, y, **options).read_text()
    assert "http:" not in re.sub(r"<svg[^>]*>", "", text)
    titles = re.findall(r'role="img" aria-label="([^:]+):', text)
    words = html.unescape(
        re.sub(r"<svg.*?</svg>|<style>.*?</style>|<[^>]*>", " ", text, flags=re.S)
    )
    return re.sub(r"\s+", " ", words), titles


def test_page_of_a_regression(tmp_path: Path) -> None:
    model = DistributionRegressor(**FAST).fit(GROUPS, WIDTH)
    words, titles = page_of(
        tmp_path,
        model,
        WIDTH,
        target="$width$",
        level=0.2,
        source={"groups": "<days>.zarr"},
        command="dask-sketch learn days.zarr",
    )
    errors = WIDTH - model.leave_one_out_
    constant = N / (N - 1) * (WIDTH - WIDTH.mean())
    r2 = 1.0 - np.sum(errors**2) / np.sum(constant**2)
    worst = np.argsort(-np.abs(errors))[:3]
    low, high = model.predict_interval(GROUPS, level=0.2).T
    assert r2 > 0.8
    for expected in (
        "Can $width$ be predicted for each day?",
        f"Better than the constant: R² = {r2:.3g}, within [",
        f"errors is {np.sqrt(np.mean(errors**2)):.3g}; that of the",
        f"is {np.sqrt(np.mean(constant**2)):.3g}.",
        ", ".join(f"day {k:02d}" for k in worst),
        f"± {(high - low)[0] / 2:.2g}, with a chance of 80 %",
        "small predictions 20",
        f"a ridge of {model.alpha_:g} of",
        "<days>.zarr",
        "dask-sketch learn days.zarr",
    ):
        assert expected in words, expected
    assert "few rows" not in words  # all days have as many
    assert titles == ["Predictions and targets"]


@pytest.mark.slow
def test_nothing_is_learnt_of_noise(tmp_path: Path) -> None:
    model = DistributionRegressor(**FAST).fit(GROUPS, NOISE)
    with pytest.warns(UserWarning, match="target='noise'.*R²") as caught:
        words, _ = page_of(tmp_path, model, NOISE, target="noise")
    assert caught[0].filename == __file__
    assert re.search(r"(No|Perhaps not): .* a constant \(R² = ", words)
    coin = np.arange(N) % 2
    classifier = DistributionClassifier(**FAST).fit(GROUPS, coin)
    with pytest.warns(UserWarning, match=r"target='coin'.*50.0%"):
        words, _ = page_of(tmp_path, classifier, coin, target="coin")
    assert re.search(r"(No|Perhaps not): .* a constant \(", words)


def test_targets_that_are_equal(tmp_path: Path) -> None:
    y = np.full(N, 3.0)
    model = DistributionRegressor(**FAST).fit(GROUPS, y)
    with pytest.warns(UserWarning, match="age is 3 for all"):
        page_of(tmp_path, model, y, target="age")


def test_sizes_of_groups_and_few_groups(tmp_path: Path) -> None:
    sizes = np.where(np.arange(N) % 2, 10, 200)
    groups = days(sizes)
    model = DistributionRegressor(**FAST).fit(groups, WIDTH)
    words, _ = page_of(tmp_path, model, WIDTH, groups)
    assert "few rows 20" in words
    assert "10 to 200, median 105" in words
    assert "Take more rows for each day" in words
    few = GROUPS.select(np.arange(N) < 8)
    model = DistributionRegressor(**FAST).fit(few, WIDTH[:8])
    words, titles = page_of(tmp_path, model, WIDTH[:8], few, level=0.1)
    assert "too few days for intervals of 90 %: 8" in words
    assert "Coverage" not in words
    assert titles == ["Predictions and targets"]


def test_intervals_that_are_too_narrow_for_large_targets(tmp_path: Path) -> None:
    """Errors in proportion to the target make intervals of one width miss more large ones."""
    y = np.exp(3.0 * WIDTH + 0.3 * NOISE)
    model = DistributionRegressor(**FAST).fit(GROUPS, y)
    words, _ = page_of(tmp_path, model, y, level=0.2)
    assert "too narrow for the days with large predictions" in words
    assert "learn its logarithm" in words


def test_page_of_a_classification(tmp_path: Path) -> None:
    model = DistributionClassifier(**FAST).fit(GROUPS, KIND)
    words, titles = page_of(tmp_path, model, dict(zip(GROUPS.labels, KIND, strict=True)))
    (share,) = re.findall(r"Better than the constant: ([\d.]+)% are wrong", words)
    # as by a fit to the other half of the days
    half = np.arange(N) % 2 == 0
    other = DistributionClassifier(**FAST).fit(GROUPS.select(half), KIND[half])
    wrong = np.mean(other.predict(GROUPS.select(~half)) != KIND[~half])
    assert abs(float(share) / 100 - wrong) < 0.12
    rarer = min(np.mean(one == KIND) for one in model.classes_)
    assert f"is wrong for {rarer:.1%}" in words
    for one in model.classes_:
        assert f"{one} {np.sum(one == KIND)}" in words
    assert titles == ["Confusion of the classes"]


def test_groups_that_were_left_out_together_are_in_one_fold(tmp_path: Path) -> None:
    # each of 20 speakers has a mean of their own and one of the classes by chance
    rng = np.random.default_rng(2)
    means, kinds = rng.normal(size=(20, 2)), np.arange(20) % 2
    x = np.concatenate([m + 0.1 * rng.normal(size=(60, 2)) for m in np.repeat(means, 3, axis=0)])
    groups = partial_sketch(x, FeatureMap(2, 40, scale=0.5), groups=np.repeat(np.arange(60), 60))
    y, speakers = np.repeat(np.array(["a", "b"])[kinds], 3), np.repeat(np.arange(20), 3)
    model = DistributionClassifier(**FAST).fit(groups, y, groups=speakers)
    for given in (None, speakers):
        with pytest.warns(UserWarning, match="60 groups are not"):
            words, _ = page_of(tmp_path, model, y, groups, left_out_together=given)
        assert "no better than a constant" in words
    model.fit(groups, y)
    words, _ = page_of(tmp_path, model, y, groups)  # two sessions of a speaker tell the third
    assert "Better than the constant" in words
    with pytest.raises(InputError, match="groups has shape"):
        page_of(tmp_path, model, y, groups, left_out_together=speakers[:9])


def test_a_class_of_one_group(tmp_path: Path) -> None:
    kind = np.where(np.arange(N) == 7, "rare", KIND)
    model = DistributionClassifier(**FAST).fit(GROUPS, kind)
    words, _ = page_of(tmp_path, model, kind)
    assert "Give more days of rare." in words
    two = GROUPS.select(np.arange(N) < 3)
    y = np.array(["a", "a", "b"])
    with pytest.raises(InputError, match="y has 1 group") as caught:
        page_of(tmp_path, DistributionClassifier(**FAST).fit(two, y), y, two)
    assert caught.value.parameter == "y"


def test_other_groups_and_targets(tmp_path: Path) -> None:
    numbers = DistributionRegressor(**FAST).fit(GROUPS, WIDTH)
    classes = DistributionClassifier(**FAST).fit(GROUPS, KIND)
    for model, y, groups, match in (
        (numbers, WIDTH[::-1], GROUPS, "y: .* 60 targets"),
        (numbers, WIDTH[:9], GROUPS.select(np.arange(N) < 9), "y: .* 9 targets"),
        (numbers, WIDTH[:9], GROUPS, r"y has shape \(9,\) for 60 groups"),
        (classes, np.arange(N) % 3, GROUPS, "y has other classes than the 2"),
        (numbers, WIDTH, np.zeros((N, 3)), "groups of type ndarray"),
    ):
        with pytest.raises(InputError, match=match):
            page_of(tmp_path, model, y, groups)
    with pytest.raises(InputError, match=r"level=1\.5"):
        page_of(tmp_path, numbers, WIDTH, level=1.5)


@pytest.mark.parametrize("n_wrong", [0, 1])
def test_other_settings_are_advised_where_something_is_wrong(tmp_path: Path, n_wrong: int) -> None:
    kind, day = np.arange(N) % 2, np.repeat(np.arange(N), 60)
    x = np.random.default_rng(2).normal(size=(len(day), 2)) + 5.0 * kind[day, None]
    groups = partial_sketch(x, FeatureMap(2, 40, scale=1.0), groups=day)
    kind[:n_wrong] = 1
    model = DistributionClassifier(**FAST, alphas=(0.1, 1.0)).fit(groups, kind)
    words, _ = page_of(tmp_path, model, kind, groups)
    assert ("alphas, too" in words) == bool(n_wrong)
