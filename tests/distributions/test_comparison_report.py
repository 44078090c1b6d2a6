"""Report page of a test of two groups of sketches."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from dask_sketch import FeatureMap, SketchGroup, partial_sketch
from dask_sketch.distributions import TwoSampleTest, compare, write_comparison
from dask_sketch.errors import InputError

pytest.importorskip("matplotlib")
N_DAYS = 10


def days(seed: int, *, shift: float = 0.0, correlation: float = 0.0, d: int = 3) -> SketchGroup:
    """Days of rows whose last feature is shifted, or depends on the one before."""
    rng, day = np.random.default_rng(seed), np.repeat(np.arange(N_DAYS), 100)
    x = rng.normal(size=(len(day), d)) + 0.1 * rng.normal(size=(N_DAYS, d))[day]
    x[:, -1] += shift
    if correlation:
        x[:, -1] = correlation * x[:, -2] + np.sqrt(1.0 - correlation**2) * x[:, -1]
    return partial_sketch(x, FeatureMap(d, 60, scale=1.0), groups=day, dim="day")


def page_of(
    folder: Path,
    first: SketchGroup,
    second: SketchGroup,
    *,
    method: Literal["permutation", "cross"] = "permutation",
    **options: object,
) -> tuple[TwoSampleTest, str, list[str]]:
    """Test, text of its page, and the titles of its pictures."""
    test = compare(first, second, method=method)
    given = {"names": ("may", "june"), **options}
    text = write_comparison(folder / "new" / "page.html", first, second, test, **given).read_text()
    titles = re.findall(r'role="img" aria-label="([^:]+):', text)
    assert len(titles) == text.count("<svg")
    words = html.unescape(
        re.sub(r"<svg.*?</svg>|<style>.*?</style>|<[^>]*>", " ", text, flags=re.S)
    )
    return test, re.sub(r"\s+", " ", words), titles


def test_page_of_a_difference(tmp_path: Path) -> None:
    test, words, titles = page_of(
        tmp_path,
        days(0),
        days(1, shift=1.0),
        source={"first": "<may>.zarr"},
        warnings=["The weights do not tell."],
        command="dask-sketch compare may.zarr june.zarr",
    )
    low, high = test.interval
    for expected in (
        "Are may and june of one distribution?",
        f"No: a difference was found (p = {test.p_value:.2g})",
        f"{test.discrepancy:.2g}, within [{low:.2g}, {high:.2g}]",
        "feature 2.",
        "10 days of may (1,000 rows) with 10 days of june",
        "The weights do not tell.",
        "<may>.zarr",
        "dask-sketch compare may.zarr june.zarr",
    ):
        assert expected in words, expected
    # one feature alone differs, so that there is no plane of two
    assert titles == ["Along feature 2", "Distances of days"]


@pytest.mark.slow
def test_page_of_few_units(tmp_path: Path) -> None:
    _, words, _ = page_of(tmp_path, days(0), days(1), method="cross")
    assert "50 splits" in words
    assert "assignments" not in words


@pytest.mark.slow
def test_page_of_equal_sides(tmp_path: Path) -> None:
    test, words, titles = page_of(tmp_path, days(0), days(1))
    assert not test.is_different
    assert "No difference was found at a level of 5 %" in words
    assert f"above {test.interval[1]:.2g}" in words
    assert "No warning." in words
    assert len(titles) == 2


@pytest.mark.slow
def test_page_of_a_correlation(tmp_path: Path) -> None:
    test, words, titles = page_of(tmp_path, days(0, d=2), days(1, d=2, correlation=0.7))
    assert test.is_different
    assert min(one.p_value for one in test.features) > test.level
    assert "No single feature does." in words
    assert titles[1] in ("Along feature 0 and feature 1", "Along feature 1 and feature 0")


@pytest.mark.slow
def test_discrepancy_as_a_shift(tmp_path: Path) -> None:
    """A shift of a normal feature is as large as the page says."""
    found = []
    for shift in (0.4, 0.8):
        rng, day = np.random.default_rng(0), np.arange(20_000) % 20
        x = rng.normal(size=(20_000, 2)) * [1.0, 5.0]
        feature_map = FeatureMap(2, 200, covariances=[1.0, 25.0])
        sides = [
            partial_sketch(x + np.array([s, 0.0]), feature_map, groups=day) for s in (0.0, shift)
        ]
        _, words, _ = page_of(tmp_path, sides[0], sides[1])
        (told,) = re.findall(r"by ([\d.]+) standard deviations", words)
        found.append(float(told))
    np.testing.assert_allclose(found, [0.4, 0.8], rtol=0.15)


@pytest.mark.slow
def test_names_are_no_formulas_and_levels_are_named(tmp_path: Path) -> None:
    categories = {1: ("red", "green", "$x_1$")}
    feature_map = FeatureMap(2, 60, scale=1.0, distribution="gaussian", categories=categories)
    rng, day = np.random.default_rng(0), np.arange(1000) % 10
    sides = [
        partial_sketch(
            np.column_stack([rng.normal(size=1000), rng.choice(3, size=1000, p=p)]),
            feature_map, groups=np.array([f"$\\frac{{{k}$" for k in day]), dim="day",
        )
        for p in ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2])
    ]  # fmt: skip
    names = (r"$\frac{$", "<b>")
    test, words, titles = page_of(tmp_path, *sides, names=names)
    assert test.features[0].name == "feature 1"
    assert f"Are {names[0]} and <b> of one distribution?" in words
    assert titles == ["Along feature 1", "Distances of days"]


@pytest.mark.slow
def test_many_units_are_thinned(tmp_path: Path) -> None:
    rng, day = np.random.default_rng(0), np.arange(1600) % 400
    x, feature_map = rng.normal(size=(1600, 1)), FeatureMap(1, 10, scale=1.0)
    first = partial_sketch(x, feature_map, groups=day, dim="day")
    second = partial_sketch(x[:200], feature_map, groups=day[:200] + 400, dim="day")
    _, words, titles = page_of(tmp_path, first, second)
    assert "300 evenly chosen days" in words
    assert titles == ["Along feature 0", "Distances of days"]


def test_the_test_of_other_groups(tmp_path: Path) -> None:
    first, second = days(0), days(1)
    test = compare(first, second)
    with pytest.raises(InputError, match=r"test .*\(10, 10\)") as caught:
        write_comparison(tmp_path / "page.html", first, second.select([1, 2]), test)
    assert caught.value.parameter == "test"


def test_bad_arguments(tmp_path: Path) -> None:
    first, second = days(0), days(1)
    test = compare(first, second)
    for parameter, given in (("test", None), ("names", ("first",)), ("names", "ab")):
        arguments: dict[str, object] = {"test": test, parameter: given}
        with pytest.raises(InputError, match=f"{parameter} ?(=|of type)") as caught:
            write_comparison(tmp_path / "page.html", first, second, **arguments)
        assert caught.value.parameter == parameter
