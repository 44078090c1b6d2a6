"""Evaluate a fitted classification of groups for its report."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn import clone
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from dask_sketch.diagnostics.report import Answer, Section
from dask_sketch.diagnostics.report_figures import Drawing
from dask_sketch.display.comparison_plots import plot_matrix
from dask_sketch.display.text import counted
from dask_sketch.distributions.comparison_report import shortened
from dask_sketch.distributions.learning.group_estimators import DistributionClassifier
from dask_sketch.distributions.learning.regression_findings import (
    CONFIDENCE,
    MAX_NAMED,
    MAX_WORST,
    SQUARE,
    Findings,
    advice,
)
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_MAX_CLASSES = 20  # classes in the table, and names at an axis, at most
_FOLDS = 5


def classification_findings(
    model: DistributionClassifier,
    groups: SketchGroup,
    y: NDArray[Any],
    target: str,
    together: NDArray[np.intp] | None = None,
) -> Findings:
    """Evaluate a classification by cross-validation.

    Parameters
    ----------
    model
        Fitted estimator.
    groups
        Sketches of the fit.
    y
        Classes of the fit, shape (n_groups,).
    target
        Name of the target.
    together
        Codes of the groups that are left out together, shape (n_groups,); None for one by one.

    Returns
    -------
    findings
        Parts of the page.

    Raises
    ------
    InputError
        If the classes differ from the classes of the fit, or fewer than two of them have two
        groups.
    """
    classes = model.classes_
    if not np.array_equal(np.unique(y), classes):
        raise InputError(
            f"y has other classes than the {len(classes)} classes of the fit: give the targets "
            "that the model was fitted to.",
            parameter="y",
        )
    codes = np.searchsorted(classes, y)
    n, dim = len(y), groups.dim
    probability = _cross_validated(model, groups, y, codes, together)
    predicted = probability.argmax(axis=1)
    wrong = predicted != codes
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (codes, predicted), 1.0)
    verdict, warning, facts = _wrong_fraction(counts, target, dim)
    mine = probability[np.arange(n), codes]
    order = np.argsort(mine, kind="stable")[:MAX_WORST]
    rows = [
        (
            str(groups.labels[k]),
            f"{groups.count[k]:,.0f}",
            str(y[k]),
            str(classes[predicted[k]]),
            f"{mine[k]:.2g}",
        )
        for k in order
    ]
    worst = Section(
        f"Worst predicted {dim}s",
        f"Those whose own class has the smallest probability, in colour where the predicted class "
        f"is wrong. Each {dim} was predicted by a fit without it.",
        (dim, "rows", target, "prediction", "probability of its class"),
        rows,
        frozenset(i for i, k in enumerate(order) if wrong[k]),
    )
    names = [str(name) for name in classes]
    confusion, never = _confusion(counts, names, dim)
    first = [
        f"{groups.labels[k]} ({y[k]}, not {classes[predicted[k]]})"
        for k in order[:MAX_NAMED]
        if wrong[k]
    ]
    actions = [advice("class")] if warning else []
    if never:
        actions.append(f"Give more {dim}s of {', '.join(never[:MAX_NAMED])}.")
    sentence = ", ".join(first) + "." if first else "None: all are right."
    return Findings(
        verdict,
        _confidence(probability.max(axis=1), wrong),
        Answer("Which are predicted worst?", [sentence]),
        actions,
        [worst, confusion],
        _confusion_drawing(counts, names, dim),
        facts,
        warning,
        is_perfect=not wrong.any(),
    )


def _confusion_drawing(counts: Array, names: list[str], dim: str) -> Drawing:
    """Picture of the share of the groups of each class that are predicted as each class."""
    labels = [shortened(name) for name in names]
    matrix = xr.DataArray(
        counts / counts.sum(axis=1, keepdims=True),
        {"class": labels, "prediction": labels},
        name=f"share of the {dim}s of a class",
    )
    return Drawing(
        "Confusion of the classes",
        f"Share of the {dim}s of each class (rows) that are predicted as each class (columns): "
        "without errors, all are on the diagonal.",
        partial(_draw_confusion, matrix),
        SQUARE,
    )


def _draw_confusion(fractions: xr.DataArray, *, ax: Axes) -> None:
    plot_matrix(fractions, ax, max_labels=_MAX_CLASSES)
    ax.images[0].set_clim(0.0, 1.0)
    ax.set_aspect("auto")


def _cross_validated(
    model: DistributionClassifier,
    groups: SketchGroup,
    y: NDArray[Any],
    codes: NDArray[np.intp],
    together: NDArray[np.intp] | None,
) -> Array:
    """Probability of each class for each group, by fits to the other folds."""
    known = np.sort(np.bincount(codes))[::-1]
    if known[1] < 2:
        raise InputError(
            f"y has {known[1]} group of its second largest class: cross-validation needs two "
            "groups or more of two classes.",
            parameter="y",
        )
    size = min(_FOLDS, int(known[1]))
    kind = StratifiedKFold if together is None else StratifiedGroupKFold
    folds = kind(size, shuffle=True, random_state=0)
    probabilities = np.zeros((len(y), len(model.classes_)))
    with warnings.catch_warnings():
        # a warning of scikit-learn of small classes, whose sizes are on the page
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        parts = list(folds.split(codes, codes, together))
    for train, test in parts:
        inside = np.isin(np.arange(len(y)), train)
        units = None if together is None else together[inside]
        unfitted = clone(model).set_params(solver="auto")
        fitted = unfitted.fit(groups.select(inside), y[inside], groups=units)
        columns = np.searchsorted(model.classes_, fitted.classes_)
        probabilities[np.ix_(test, columns)] = fitted.predict_proba(groups.select(~inside))
    return probabilities


def _wrong_fraction(counts: Array, target: str, dim: str) -> tuple[Answer, str, dict[str, str]]:
    """Share of wrong predictions, beside the share if the most frequent class is predicted."""
    n, right = int(counts.sum()), int(np.trace(counts))
    fraction, constant = 1.0 - right / n, 1.0 - float(counts.sum(axis=1).max()) / n
    interval = binomtest(n - right, n).proportion_ci(CONFIDENCE, "wilson")
    score = (
        f"{fraction:.1%} are wrong, within [{interval.low:.1%}, {interval.high:.1%}] with a "
        f"confidence of {CONFIDENCE:.0%}"
    )
    if fraction >= constant:
        short = f"No: the predictions are no better than a constant ({score})."
    elif interval.high >= constant:
        short = f"Perhaps not: they may be no better than a constant ({score})."
    else:
        short = f"Better than the constant: {score}."
    sentences = [
        short,
        f"The constant, the most frequent class, is wrong for {constant:.1%}.",
        f"Each {dim} was predicted by a fit to {dim}s without it, in cross-validation.",
    ]
    warning = ""
    if interval.high >= constant:
        warning = (
            f"target={target!r}: the cross-validated predictions of {counted(n, dim)} are not "
            f"significantly better than the most frequent class, which is wrong for "
            f"{constant:.1%} ({score}). {advice('class')}"
        )
    facts = {"wrong": f"{fraction:.4g}", "of the constant": f"{constant:.4g}"}
    return Answer("Is it good?", sentences, bool(warning)), warning, facts


def _confidence(largest: Array, wrong: NDArray[np.bool_]) -> Answer:
    """Compare the probabilities of predictions with the share of right predictions."""
    n, stated = len(wrong), float(largest.mean())
    interval = binomtest(int(n - wrong.sum()), n).proportion_ci(CONFIDENCE, "wilson")
    sentences = [
        f"{stated:.0%} on average, by the probabilities; {1.0 - wrong.mean():.0%} of the "
        "predictions are right."
    ]
    strong = bool(stated > interval.high)
    if strong:
        sentences.append(
            "The probabilities are too large: more groups, or a smaller size, make them better."
        )
    return Answer("How sure is a prediction?", sentences, strong)


def _confusion(counts: Array, names: list[str], dim: str) -> tuple[Section, list[str]]:
    """Table of the right predictions and errors of classes, and names of classes never right."""
    totals, right = counts.sum(axis=1), np.diag(counts)
    others = counts - np.diag(right)
    rows = []
    order = np.argsort(right / totals, kind="stable")[:_MAX_CLASSES]
    for k in order:
        frequent = int(others[k].argmax())
        taken = f"{names[frequent]} ({others[k, frequent]:,.0f})" if others[k, frequent] else "none"
        rows.append((names[k], f"{totals[k]:,.0f}", f"{right[k] / totals[k]:.1%}", taken))
    never = [name for name, number in zip(names, right, strict=True) if not number]
    text = "Classes of the most errors first, in colour where none is right." + (
        f" The first {len(rows)} of {len(names)} are shown." if len(rows) < len(names) else ""
    )
    strong = frozenset(i for i, k in enumerate(order) if not right[k])
    header = ("class", f"{dim}s", "right", "taken most often for")
    return Section("Classes", text, header, rows, strong), never
