"""Evaluate a fitted regression of groups for its report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dask_sketch.diagnostics.report import Answer, Section
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.display.comparison_plots import plot_predictions
from dask_sketch.display.text import counted
from dask_sketch.distributions.learning.embeddings import embeddings_of
from dask_sketch.distributions.learning.group_estimators import DistributionRegressor
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup

Array = NDArray[np.float64]
MAX_WORST, MAX_NAMED = 10, 3  # groups in the table, and in a sentence
CONFIDENCE = 0.95  # confidence of intervals of the error
SQUARE = (4.6, 4.2)  # inches
_MAX_DRAWN = 500  # groups in the picture
_RESAMPLES = 1000
_UNLIKELY = 0.01  # chance of a coverage as low as an observed one
_LARGE_ERROR = 4.0  # standard errors above which an error is large
_N_THIRDS = 30  # groups from which there are thirds
_MOSTLY, _HARDLY = 0.5, 0.1  # shares of the numbers of rows in an error variance


@dataclass(frozen=True, eq=False)
class Findings:
    """Parts of a page that depend on the kind of the targets.

    Attributes
    ----------
    verdict, certainty, worst
        Answers on the error, on single predictions, and on the groups that are predicted worst.
    actions
        Advice.
    sections
        Tables.
    drawing
        Picture of the predictions.
    facts
        Names and values of the errors.
    warning
        Text of a warning; empty for none.
    is_perfect
        Whether all predictions are right, so that other settings would gain nothing.
    """

    verdict: Answer
    certainty: Answer
    worst: Answer
    actions: list[str]
    sections: list[Section]
    drawing: Drawing
    facts: dict[str, str]
    warning: str
    is_perfect: bool = False


def regression_findings(
    model: DistributionRegressor, groups: SketchGroup, y: Array, target: str, level: float
) -> Findings:
    """Evaluate a regression by its leave-one-out predictions.

    Parameters
    ----------
    model
        Fitted estimator.
    groups
        Sketches of the fit.
    y
        Targets of the fit, shape (n_groups,).
    target
        Name of the target.
    level
        Probability that a target lies outside of its interval.

    Returns
    -------
    findings
        Parts of the page.

    Raises
    ------
    InputError
        If the errors differ from the errors of the fit.
    """
    predictions = model.leave_one_out_
    predicted = np.isfinite(predictions)
    sizes = embeddings_of(groups).sizes
    deviations = np.sqrt(np.broadcast_to(model.error_variance_.of(sizes), y.shape))
    is_same = predictions.shape == y.shape and np.allclose(
        np.sort(np.abs(y - predictions)[predicted] / deviations[predicted]), model._scores
    )
    if not is_same:
        raise InputError(
            f"y: the errors of the {len(y):,} targets differ from the errors of the fit: give the "
            "groups and the targets that the model was fitted to.",
            parameter="y",
        )
    n = int(predicted.sum())
    has_intervals = math.ceil((1.0 - level) * (n + 1)) <= n
    # too few groups for intervals of this level: they would be infinite
    reach = np.full(len(y), np.inf)
    if has_intervals:
        reach = np.broadcast_to(model._reach(sizes, level), y.shape)
    labels, counts = groups.labels[predicted], groups.count[predicted]
    scores = np.abs(y - predictions)[predicted] / deviations[predicted]
    y, predictions, reach = y[predicted], predictions[predicted], reach[predicted]
    verdict, warning, facts = _error(y, predictions, target)
    coverage, low = _coverage(y, predictions, reach, counts, level)
    order = np.argsort(-scores, kind="stable")[:MAX_WORST]
    rows = [
        (
            str(labels[k]),
            f"{counts[k]:,.0f}",
            f"{y[k]:.4g}",
            f"{predictions[k]:.4g}" + (f" ± {reach[k]:.2g}" if has_intervals else ""),
            f"{scores[k]:.2g}",
        )
        for k in order
    ]
    worst = Section(
        f"Worst predicted {groups.dim}s",
        f"Those with the largest errors, in standard errors of a {groups.dim} of this size"
        + (", in colour where the interval misses the target." if has_intervals else "."),
        (groups.dim, "rows", target, "prediction", "standard errors"),
        rows,
        frozenset(i for i, k in enumerate(order) if abs(y[k] - predictions[k]) > reach[k]),
    )
    drawing = _predictions_drawing(
        y, predictions, reach if has_intervals else None, target, level, groups.dim
    )
    return Findings(
        verdict,
        _certainty(np.median(reach), coverage, level, groups.dim, n, low),
        _worst_numbers(labels, scores, order),
        _actions(model, sizes, groups.dim, low, bool(warning)),
        [worst, coverage] if has_intervals else [worst],
        drawing,
        facts,
        warning,
    )


def _predictions_drawing(
    y: Array, predictions: Array, reach: Array | None, target: str, level: float, dim: str
) -> Drawing:
    """Picture of predictions and targets, of 500 evenly chosen groups if there are more."""
    n = len(y)
    chosen = np.unique(np.linspace(0, n - 1, _MAX_DRAWN).astype(int)) if n else np.arange(0)
    few = f" of {len(chosen)} evenly chosen {dim}s" if n > len(chosen) else ""
    intervals = (
        ""
        if reach is None
        else f", with their intervals of {100 * (1 - level):.4g} %: orange where one misses its "
        "target"
    )
    return Drawing(
        "Predictions and targets",
        f"Leave-one-out predictions{few}{intervals}. On the dashed line, both are equal.",
        partial(
            plot_predictions,
            y[chosen],
            predictions[chosen],
            None if reach is None else reach[chosen],
            name=target,
        ),
        SQUARE,
    )


def _error(y: Array, predictions: Array, target: str) -> tuple[Answer, str, dict[str, str]]:
    """Error of the predictions, beside the error of the mean of all other groups."""
    n = len(y)
    squared = (y - predictions) ** 2
    constant = (n / (n - 1) * (y - y.mean())) ** 2
    if not constant.any():
        text = f"{target} is {y[0]:.4g} for all groups: there is nothing to predict."
        return Answer("Is it good?", [text], True), text, {}
    rng = np.random.default_rng(0)
    drawn = [rng.integers(n, size=n) for _ in range(_RESAMPLES)]
    ratios = [squared[k].sum() / max(constant[k].sum(), np.finfo(float).tiny) for k in drawn]
    r2 = 1.0 - float(squared.sum() / constant.sum())
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = 1.0 - np.quantile(ratios, [1.0 - tail, tail])
    score = f"R² = {r2:.3g}, within [{low:.3g}, {high:.3g}] with a confidence of 95 %"
    if r2 <= 0.0:
        short = f"No: the predictions are no better than a constant ({score})."
    elif low <= 0.0:
        short = f"Perhaps not: they may be no better than a constant ({score})."
    else:
        short = f"Better than the constant: {score}."
    errors = np.sqrt([squared.mean(), constant.mean()])
    sentences = [
        short,
        f"The root mean square of the leave-one-out errors is {errors[0]:.3g}; that of the "
        f"constant, the mean of all other groups, is {errors[1]:.3g}.",
        "Bandwidth and ridge were chosen by these errors, so that errors of new groups are a "
        "little larger.",
    ]
    warning = ""
    if low <= 0.0:
        warning = (
            f"target={target!r}: the leave-one-out predictions of {counted(n, 'group')} are not "
            f"significantly better than a constant ({score}). {advice('number')}"
        )
    facts = {"R²": f"{r2:.4g}", "error": f"{errors[0]:.4g}", "of the constant": f"{errors[1]:.4g}"}
    return Answer("Is it good?", sentences, bool(warning)), warning, facts


def _coverage(
    y: Array, predictions: Array, reach: Array, counts: NDArray[np.int64], level: float
) -> tuple[Section, list[str]]:
    """Coverage of the intervals, for all groups and for thirds; also the parts where it is low."""
    inside = np.abs(y - predictions) <= reach
    parts = [("all", np.arange(len(y)))]
    if len(y) >= _N_THIRDS:
        kinds: list[tuple[tuple[str, ...], str, NDArray[Any]]] = [
            (("small", "middle", "large"), "predictions", predictions)
        ]
        if np.ptp(counts):
            kinds.append((("few", "some", "many"), "rows", counts))
        for names, noun, values in kinds:
            thirds = np.array_split(np.argsort(values, kind="stable"), 3)
            parts += [(f"{name} {noun}", k) for name, k in zip(names, thirds, strict=True)]
    rows, low = [], []
    for name, k in parts:
        n_inside = int(inside[k].sum())
        if binom.cdf(n_inside, len(k), 1.0 - level) < _UNLIKELY:
            low.append(name)
        rows.append(
            (name, f"{len(k):,}", f"{n_inside / len(k):.1%}", f"± {np.median(reach[k]):.2g}")
        )
    text = (
        f"Share of the leave-one-out intervals of {100 * (1 - level):.4g} % with their targets. "
        "For all groups it is right by construction; for a third of them it shows whether the "
        f"intervals hold there. In colour: less than {1 - level:.4g}, which has a probability "
        f"under {_UNLIKELY:g} by chance."
    )
    strong = frozenset(i for i, (name, _) in enumerate(parts) if name in low)
    header = ("groups with", "number", "inside", "median interval")
    return Section("Coverage of the intervals", text, header, rows, strong), low


def _certainty(
    width: float, coverage: Section, level: float, dim: str, n: int, low: Sequence[str]
) -> Answer:
    question = "How sure is a prediction?"
    if not np.isfinite(width):
        text = f"There are too few {dim}s for intervals of {100 * (1 - level):.4g} %: {n}."
        return Answer(question, [text], True)
    sentences = [
        f"± {width:.2g}, with a chance of {100 * (1 - level):.4g} %.",
        f"The intervals of {coverage.rows[0][2]} of the {dim}s hold their targets, as the widths "
        "follow from the same errors.",
    ]
    if low:
        sentences.append(f"They are too narrow for the {dim}s with {' and '.join(low)}.")
    elif len(coverage.rows) > 1:
        sentences.append("No third has significantly fewer.")
    return Answer(question, sentences, bool(low))


def _worst_numbers(labels: NDArray[Any], scores: Array, order: NDArray[np.intp]) -> Answer:
    sentences = [", ".join(str(labels[k]) for k in order[:MAX_NAMED]) + "."]
    large = int(np.sum(scores > _LARGE_ERROR))
    if large:
        sentences.append(
            f"{counted(large, 'error')} above {_LARGE_ERROR:g} standard errors: check "
            "the labels and the rows there."
        )
    return Answer("Which are predicted worst?", sentences, bool(large))


def _actions(
    model: DistributionRegressor, sizes: Array | None, dim: str, low: Sequence[str], is_poor: bool
) -> list[str]:
    if is_poor:
        return [advice("number")]
    actions = []
    if any("predictions" in name for name in low):
        actions.append(
            "The errors depend on the target: learn its logarithm, or another function of it, for "
            "intervals of the right width everywhere."
        )
    variance = model.error_variance_
    if sizes is not None and np.ptp(sizes) > 0:
        fraction = 1.0 - variance.constant / float(np.mean(variance.of(sizes)))
        if fraction > _MOSTLY:
            actions.append(
                f"Take more rows for each {dim}: {fraction:.0%} of the error variance is due to "
                "their number."
            )
        elif fraction < _HARDLY:
            actions.append(
                f"More {dim}s, or other features, may lower the error; more rows of a {dim} will "
                f"hardly ({fraction:.0%} of the error variance)."
            )
    return actions


def advice(what: str) -> str:
    """Advice if predictions are no better than a constant; ``what`` is a noun for the target."""
    return (
        "Give more groups, more rows for each, another feature map, or columns on which the "
        f"{what} depends."
    )
