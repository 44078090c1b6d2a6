"""Write the result of a test of two groups of sketches as one HTML page (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import feature_weights, mmd
from dask_sketch.diagnostics.report import Answer, Section, write_page
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.display.comparison_plots import plot_matrix, plot_witness
from dask_sketch.display.text import counted, describe_bytes
from dask_sketch.distributions.mean_maps import witness_basis
from dask_sketch.distributions.testing.permutations import contrasts, permutations_of, shifts_of
from dask_sketch.distributions.testing.result import LARGEST, ROUNDING, TwoSampleTest
from dask_sketch.distributions.testing.units import Units, units_of
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.tables import feature_labels
from dask_sketch.validation.threads import one_blas_thread

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from dask_sketch.features.feature_map import FeatureMap

Array = NDArray[np.float64]

_MAX_FEATURES = 50  # features in the table, at most
_MAX_NAMED = 5  # features in a sentence
_MAX_UNITS = 300  # units of both sides together in the matrix of distances, at most
# labels of a picture, and characters of a label, that are legible
_MAX_LABELS, _MAX_CHARACTERS = 16, 16
_LABEL_SIZE = 8  # points
_MAX_LEVELS = 6  # levels of a categorical feature at an axis, at most
_CURVE, _IMAGE = 121, 41  # points of the grid along one feature
_REACH = 3.0  # standard deviations from the mean to the end of a grid
_PERMUTED, _COVERED = 199, 0.95  # permutations for a band around zero, and the share inside it
_LARGEST_SHIFT = 6.0  # standard deviations
_SQUARE = (4.6, 4.2)  # inches


def write_comparison(
    path: str | Path,
    first: SketchGroup,
    second: SketchGroup,
    test: TwoSampleTest,
    *,
    names: tuple[str, str] = ("first", "second"),
    strata: Any = None,
    serial: bool = False,
    seed: int = 0,
    source: Mapping[str, object] | None = None,
    warnings: Sequence[str] = (),
    command: str = "",
) -> Path:
    """Write a test of two groups as one page, which loads nothing from the network or other files.

    The page has the verdict, the size of the difference with its interval, the features that
    differ, and the units that were permuted. Pictures show the witness function along the features
    that differ most, which is positive where ``first`` has more mass, and the distances of all
    units in the order of a dendrogram. No data is read.

    Parameters
    ----------
    path
        File to write, replaced if it exists; its folder is created.
    first, second
        Groups that were compared.
    test
        Result of :func:`compare` for them.
    names
        Names of the two sides.
    strata, serial, seed
        Arguments of the test.
    source
        Names and values that describe the data, for a table.
    warnings
        Warnings of the test, for the section on limits.
    command
        Command line that reproduces the page.

    Returns
    -------
    path
        Path of the page.

    Raises
    ------
    InputError
        If matplotlib is missing, the test is a test of other groups, or there are not two names.
    MergeError
        If the feature maps differ.

    Examples
    --------
    >>> import tempfile
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> from dask_sketch.distributions import compare
    >>> rng, day = np.random.default_rng(0), np.arange(2000) % 20
    >>> feature_map = FeatureMap(2, 100, scale=1.0)
    >>> a, b = (
    ...     partial_sketch(width * rng.normal(size=(2000, 2)), feature_map, groups=day, dim="day")
    ...     for width in (1.0, 2.0)
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_comparison(Path(folder) / "page.html", a, b, compare(a, b))
    ...     "No: a difference was found" in page.read_text()
    True
    """
    units = units_of(first, second, strata).with_weights_of_one_scale()
    if not isinstance(test, TwoSampleTest):
        raise InputError(
            f"test of type {type(test).__name__}: give the result of compare(first, second).",
            parameter="test",
        )
    if isinstance(names, str) or len(names) != 2:
        raise InputError(
            f"names={names!r}: give a name for each of the two sides.", parameter="names"
        )
    if units.counts != test.n_units or len(test.features) != units.feature_map.n_features:
        raise InputError(
            f"test is of {test.n_units} units and {len(test.features)} features; first and second "
            f"have {units.counts} and {units.feature_map.n_features}: give the result of "
            "compare(first, second).",
            parameter="test",
        )
    sides = tuple(side.select(side.total_weight > 0) for side in (first, second))
    with one_blas_thread():
        drawings = [
            *_witness_drawings(units, test, names, serial=serial, seed=seed),
            _distance_drawing(sides, names),
        ]
        shift = _equal_shift(units, test.discrepancy)
    return write_page(
        path,
        title=f"Are {names[0]} and {names[1]} of one distribution?",
        answers=_answers(test, names, sides, shift, warnings),
        sections=[_features(test, names), _units(sides, names, test.dim)],
        pictures=[drawing.picture() for drawing in drawings],
        facts={
            "Data": dict(source or {}),
            "Test": _test_fields(test, seed),
            "Feature map": map_fields(units.feature_map),
        },
        command=command,
    )


# -- answers and tables -----------------------------------------------------------------------


def _answers(
    test: TwoSampleTest,
    names: tuple[str, str],
    sides: Sequence[SketchGroup],
    shift: float | None,
    warnings: Sequence[str],
) -> list[Answer]:
    (low, high), d = test.interval, len(test.features)
    size = [
        f"The discrepancy is {test.discrepancy:.2g}, within [{low:.2g}, {high:.2g}] with a "
        f"confidence of {100.0 * (1.0 - test.level):.4g} %.",
        "It is 0 for equal distributions, and 2 at most.",
    ]
    if shift is not None and test.discrepancy > 0.0:
        size.append(
            f"For comparison: where {'all features are' if d > 1 else 'the feature is'} normal, a "
            f"shift {'of one of them ' if d > 1 else ''}by {shift:.2g} standard deviations has "
            "this discrepancy."
        )
    if test.tolerance:
        size.append(
            f"The tolerance is {test.tolerance:g}; the hypothesis that the discrepancy is within "
            f"it has p = {test.tolerance_p_value:.2g}."
        )
    return [
        _verdict(test),
        Answer("How large is the difference?", size),
        Answer("Can it be chance?", _chance(test)),
        _where(test),
        Answer("What was compared?", _compared(test, names, sides)),
        _limits(test, warnings),
    ]


def _verdict(test: TwoSampleTest) -> Answer:
    question = "Are they of one distribution?"
    if test.is_different:
        return Answer(question, [f"No: a difference was found (p = {test.p_value:.2g})."], True)
    if test.p_value <= test.level:
        text = "A difference was found, but it is not significantly more than the tolerance."
        return Answer(question, [text])
    sentences = [f"No difference was found at a level of {100.0 * test.level:.4g} %."]
    if test.interval[1] >= LARGEST:
        sentences.append("There are too few units to find any.")
    elif test.interval[1] > ROUNDING:  # else the sketches are equal
        sentences.append(
            "That does not show that there is none: one with a discrepancy above "
            f"{test.interval[1]:.2g} would probably have been found."
        )
    return Answer(question, sentences)


def _chance(test: TwoSampleTest) -> list[str]:
    verdict = "Hardly" if test.p_value <= test.level else "Yes"
    if test.method == "cross":
        return [
            f"{verdict}: p = {test.p_value:.2g}.",
            f"The difference of some of the {test.dim}s was the direction in which the others "
            f"were compared, in {counted(test.n_permutations, 'split')} of them.",
            f"This assumes that the {test.dim}s have normal scores, as means of many rows have.",
        ]
    number = counted(test.n_permutations, "assignment")
    assigned = (
        f"Whole {test.dim}s were assigned to the two sides in all {number} that there are"
        if test.is_complete
        else f"Whole {test.dim}s were assigned to the two sides at random, in {number}"
    )
    within = f" within {test.n_strata} strata" if test.n_strata > 1 else ""
    n_larger = round(test.p_value * test.n_permutations)
    rank = (
        "only the observed one has a difference so large"
        if n_larger <= 1
        else f"{n_larger:,} of them have a difference as large as the observed one"
    )
    sentences = [
        f"{verdict}: p = {test.p_value:.2g}.",
        f"{assigned}{within}; {rank}.",
        f"The smallest p-value possible is {test.smallest_p_value:.2g}.",
    ]
    if test.statistic is not None:
        sentences.append(f"The statistic was chosen on {test.dim}s that were not tested.")
    return sentences


def _where(test: TwoSampleTest) -> Answer:
    question = "Which features carry it?"
    named = [feature.name for feature in test.features if feature.p_value <= test.level]
    if test.p_value > test.level:
        return Answer(question, ["No difference was found, so there is none to locate."])
    if not named:
        return Answer(
            question,
            [
                "No single feature does.",
                "The difference is in the features together, such as their correlation, or too "
                "small in each.",
            ],
        )
    more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return Answer(question, [f"{', '.join(named[:_MAX_NAMED])}{more}."])


def _compared(
    test: TwoSampleTest, names: tuple[str, str], sides: Sequence[SketchGroup]
) -> list[str]:
    parts = [
        f"{counted(n, test.dim)} of {name} ({counted(int(side.count.sum()), 'row')})"
        for n, name, side in zip(test.n_units, names, sides, strict=True)
    ]
    return [
        f"{parts[0]} with {parts[1]}.",
        f"The rows of one {test.dim} may depend on each other; {test.dim}s may not.",
    ]


def _limits(test: TwoSampleTest, warnings: Sequence[str]) -> Answer:
    """Warnings of the test, and limits that its numbers show."""
    sentences = list(warnings)
    if test.interval == (0.0, 2.0):
        sentences.append(f"There are too few {test.dim}s for an interval of the discrepancy.")
    if 2.0 * test.smallest_p_value > test.level:
        sentences.append(
            f"There are so few {test.dim}s that only the most extreme of all assignments is "
            "significant."
        )
    return Answer("What limits the result?", sentences or ["No warning."], bool(sentences))


def _features(test: TwoSampleTest, names: tuple[str, str]) -> Section:
    """Moments of the features on both sides, those that differ most first."""
    shown = test.features[:_MAX_FEATURES]
    rows = [
        (
            feature.name,
            *(
                f"{mean:.4g} ± {deviation:.3g}"
                for mean, deviation in zip(feature.means, feature.deviations, strict=True)
            ),
            f"{feature.p_value:.2g}",
        )
        for feature in shown
    ]
    n = len(test.features)
    text = (
        "Mean ± standard deviation on both sides. "
        + (f"The p-values are adjusted for {n} features. " if n > 1 else "")
        + (f"The first {_MAX_FEATURES} of {n} are shown." if n > len(shown) else "")
    )
    strong = frozenset(i for i, feature in enumerate(shown) if feature.p_value <= test.level)
    return Section("Features", text, ("feature", *names, "p-value"), rows, strong)


def _units(sides: Sequence[SketchGroup], names: tuple[str, str], dim: str) -> Section:
    """Units of both sides."""
    rows = []
    for side, name in zip(sides, names, strict=True):
        rows.append((
            name,
            f"{len(side):,}",
            f"{int(side.count.sum()):,}",
            range_of(side.count),
            str(side.labels[0]) if len(side) == 1 else f"{side.labels[0]} to {side.labels[-1]}",
        ))  # fmt: skip
    text = f"Each {dim} has a sketch of its own, and is one unit of the test."
    header = ("side", f"{dim}s", "rows", f"rows of a {dim}", "labels")
    return Section("Units", text, header, rows)


def _test_fields(test: TwoSampleTest, seed: int) -> dict[str, str]:
    is_cross = test.method == "cross"
    counts, all_of_them = (
        ("splits", "all, combined") if is_cross else ("assignments", "the most significant of all")
    )
    return {
        "method": test.method,
        "statistic": test.statistic or all_of_them,
        "level": f"{test.level:g}",
        "tolerance": f"{test.tolerance:g}",
        "strata": f"{test.n_strata:,}",
        counts: f"{test.n_permutations:,}" + (", all" if test.is_complete else ", random"),
        "smallest p-value": f"{test.smallest_p_value:.2g}",
        "seed": str(seed),
    }


def range_of(counts: NDArray[np.int64]) -> str:
    """Smallest and largest number of rows of a unit, and the median, for a report."""
    few, middle, many = (f"{x:,.0f}" for x in np.quantile(counts, [0.0, 0.5, 1.0]))
    return few if few == many else f"{few} to {many}, median {middle}"


def map_fields(feature_map: FeatureMap) -> dict[str, str]:
    """Names and values that describe a feature map in a report."""
    return {
        "frequencies": f"{feature_map.n_frequencies:,}",
        "distribution": feature_map.distribution,
        "digest": feature_map.digest[:12],
        "size of a sketch": describe_bytes(16 * feature_map.n_frequencies),
    }


# -- pictures ---------------------------------------------------------------------------------


def _witness_drawings(
    units: Units, test: TwoSampleTest, names: tuple[str, str], *, serial: bool, seed: int
) -> list[Drawing]:
    """Witness functions along the feature that differs most, and along the two first ones."""
    labels = feature_labels(units.feature_map.n_features, units.feature_map.feature_names)
    order = [labels.index(one.name) for one in test.features]
    grid = _grid_of(units, order[0], _CURVE)
    permuted = (
        shifts_of(units.first)
        if serial
        else permutations_of(units.first, units.strata, _PERMUTED, seed)
    )
    signs = contrasts(permuted.sides, units.masses)
    # the contrast of the observed sides becomes a difference of means
    signs /= np.sum(np.maximum(signs[0], 0.0))
    vectors, moments = units.centred(units.vectors), units.moments()
    basis = witness_basis(units.feature_map, grid[:, None], order[:1], *moments)
    values = signs @ (vectors @ basis.T)
    noise = np.quantile(np.abs(values), _COVERED, axis=0)
    rest = ", on average over the other features" if len(labels) > 1 else ""
    title = [labels[feature] for feature in order[:2]]
    shown = shortened(names[0]), shortened(names[1])
    drawings = [
        Drawing(
            f"Along {title[0]}",
            f"Witness function of the difference{rest}: above zero (blue) {names[0]} has more rows "
            f"there, below zero (orange) {names[1]}. Grey: {100 * _COVERED:.0f} % of the values at "
            f"each place where {test.dim}s are assigned to the sides by chance.",
            partial(
                _draw_witness, grid, values[0], noise, title[0], shown, _levels(units, order[0])
            ),
        )
    ]  # fmt: skip
    # a second feature that does not differ shows nothing, unless only both together differ
    n_different = sum(one.p_value <= test.level for one in test.features)
    has_plane = test.p_value <= test.level and len(order) > 1 and n_different != 1
    if has_plane and units.feature_map.categories is None:
        axes = [_grid_of(units, feature, _IMAGE) for feature in order[:2]]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)
        basis = witness_basis(units.feature_map, points, order[:2], *moments)
        plane = basis @ (signs[0] @ vectors)
        rest = ", on average over the other features" if len(labels) > 2 else ""
        drawings.append(
            Drawing(
                f"Along {title[0]} and {title[1]}",
                f"Witness function of the two features that differ most{rest}: blue where "
                f"{names[0]} has more rows, orange where {names[1]} has.",
                partial(plot_witness, points, plane, names=title, sides=shown),
            )
        )
    return drawings


def _draw_witness(
    grid: Array,
    values: Array,
    noise: Array,
    name: str,
    sides: tuple[str, str],
    levels: Sequence[Any] | None,
    *,
    ax: Axes,
) -> None:
    """Witness function along one feature, at its levels if it has them."""
    plot_witness(grid[:, None], values, names=[name], sides=sides, noise=noise, ax=ax)
    if levels is not None:
        chosen = np.unique(np.linspace(0, len(levels) - 1, _MAX_LEVELS).astype(int))
        ax.set_xticks(chosen, [shortened(str(levels[k])) for k in chosen], parse_math=False)


def _levels(units: Units, feature: int) -> Sequence[Any] | None:
    """Levels of a categorical feature."""
    categories = units.feature_map.categories
    return None if categories is None else categories.levels[feature]


def _grid_of(units: Units, feature: int, number: int) -> Array:
    """Points along a feature: codes of its levels, or a grid around the mean."""
    levels = _levels(units, feature)
    if levels is not None:
        return np.arange(len(levels), dtype=np.float64)
    mean, variance = (values[feature] for values in units.moments())
    reach = _REACH * np.sqrt(variance) or 1.0
    return np.linspace(mean - reach, mean + reach, number)


def _distance_drawing(sides: Sequence[SketchGroup], names: tuple[str, str]) -> Drawing:
    """Distances of all units, or of 300 evenly chosen ones."""
    fraction = min(_MAX_UNITS / sum(map(len, sides)), 1.0)
    chosen = [
        side.select(np.isin(np.arange(len(side)), np.linspace(0, len(side) - 1, n).astype(int)))
        for side, n in ((side, max(int(fraction * len(side)), 1)) for side in sides)
    ]
    n = len(chosen[0])
    dim = sides[0].dim
    both = chosen[0].merge_by(np.arange(n), dim) + chosen[1].merge_by(
        n + np.arange(len(chosen[1])), dim
    )
    labels = [shortened(str(label)) for side in chosen for label in side.labels]
    matrix = mmd(both)
    matrix = matrix.assign_coords(dict.fromkeys(matrix.dims, labels)).rename("discrepancy")
    omitted = "" if fraction == 1.0 else f"{len(both)} evenly chosen {dim}s; "
    return Drawing(
        f"Distances of {dim}s",
        f"Discrepancy of every two {dim}s, {omitted}those that are alike side by side, in the "
        "order of a dendrogram. Two blocks of one colour each at the edges show a difference that "
        f"single {dim}s have; a mixed edge shows one that only all together have, or none.",
        partial(
            _draw_distances, matrix,
            [shortened(names[0])] * n + [shortened(names[1])] * len(chosen[1]),
        ),
        _SQUARE,
    )  # fmt: skip


def _draw_distances(matrix: xr.DataArray, sides: list[str], *, ax: Axes) -> None:
    plot_matrix(matrix, ax, ordered=True, sides=sides, max_labels=_MAX_LABELS)
    ax.set_xticks([])  # the columns have the labels of the rows
    ax.set_xlabel("")
    ax.set_aspect("auto")
    ax.tick_params(labelsize=_LABEL_SIZE)


def shortened(label: str) -> str:
    """Shorten a label for a picture to its end, where paths differ."""
    return label if len(label) <= _MAX_CHARACTERS else f"…{label[1 - _MAX_CHARACTERS :]}"


def _equal_shift(units: Units, discrepancy: float) -> float | None:
    """Shift of one feature, in deviations, that has a given discrepancy if features are normal.

    Its squared discrepancy is averaged over the features. None if no shift has the discrepancy.
    """
    omega = units.feature_map.frequencies
    _, variance = units.moments()
    phases = omega * np.sqrt(variance)[:, None]  # phases of a shift by one deviation
    energy = np.exp(-np.sum(phases**2, axis=0)) * feature_weights(units.feature_map) ** 2
    shifts = np.linspace(0.0, _LARGEST_SHIFT, 601)
    squares = np.array(
        [2.0 * np.mean(energy * np.mean(1.0 - np.cos(shift * phases), axis=0)) for shift in shifts]
    )
    reached = np.flatnonzero(squares >= discrepancy**2)
    if not len(reached):
        return None
    end = reached[0]
    return float(np.interp(discrepancy**2, squares[: end + 1], shifts[: end + 1]))
