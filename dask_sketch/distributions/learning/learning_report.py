"""Write the errors of a fitted estimator of groups as one HTML page (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_sketch.diagnostics.report import Answer, write_page
from dask_sketch.display.text import counted, describe
from dask_sketch.distributions.comparison_report import map_fields, range_of
from dask_sketch.distributions.learning.classification_findings import classification_findings
from dask_sketch.distributions.learning.group_estimators import (
    DistributionClassifier,
    DistributionRegressor,
)
from dask_sketch.distributions.learning.regression_findings import regression_findings
from dask_sketch.distributions.learning.ridge_selection import codes_left_out
from dask_sketch.errors import InputError
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.validation.arrays import require_number
from dask_sketch.validation.labels import values_by_label
from dask_sketch.validation.warn import warn_user

# the page has a table of the map, and errors without the weights of the fit
_OMITTED = {"feature_map": None, "mean_squared_error": None}


def write_learning(
    path: str | Path,
    model: DistributionRegressor | DistributionClassifier,
    groups: SketchGroup,
    y: Any,
    *,
    target: str = "target",
    left_out_together: Any = None,
    level: float = 0.1,
    source: Mapping[str, object] | None = None,
    command: str = "",
) -> Path:
    """Write the errors of a fitted estimator as one page, which loads nothing from elsewhere.

    The page has the error with an interval, beside the error of a constant; the certainty of single
    predictions; the groups with the worst predictions; the settings that were chosen; advice; and a
    picture of the predictions, or of the confusion of the classes. A regression is evaluated by its
    leave-one-out predictions. A classification is evaluated by cross-validation with five folds,
    each with its own choice of bandwidth and ridge: its probabilities are calibrated on
    leave-one-out predictions, so these cannot evaluate them. Groups that were left out together in
    the fit are in one fold.

    Parameters
    ----------
    path
        File to write, replaced if it exists; its folder is created.
    model
        Fitted estimator.
    groups
        Sketches of the groups of the fit.
    y
        Targets of the fit, as for its ``fit``.
    target
        Name of the target.
    left_out_together
        Labels of the groups that are left out together; by default the argument ``groups`` of the
        fit, except of a model that was stored.
    level
        Probability that a target lies outside of its interval, in (0, 1), for a regression.
    source
        Names and values that describe the data, for a table.
    command
        Command line that reproduces the page.

    Returns
    -------
    path
        Path of the page.

    Warns
    -----
    UserWarning
        If the predictions are not significantly better than the constant.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    InputError
        If matplotlib is missing, an argument is out of range, the model was fitted to other groups
        or targets, or fewer than two classes have two groups.

    Examples
    --------
    >>> import tempfile
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> rng, day = np.random.default_rng(0), np.repeat(np.arange(60), 50)
    >>> width = rng.uniform(0.5, 2.0, 60)
    >>> x = rng.normal(size=(3000, 2)) * width[day, None]
    >>> group = partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=day, dim="day")
    >>> model = DistributionRegressor(size=60).fit(group, width)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_learning(Path(folder) / "page.html", model, group, width, target="width")
    ...     "Better than the constant" in page.read_text()
    True
    """
    check_is_fitted(model)
    level = require_number("level", level, 0.0, 1.0, strict=True)
    if not isinstance(groups, SketchGroup):
        raise InputError(
            f"groups of type {type(groups).__name__}: give the sketches of groups of the fit, in "
            "memory.",
            parameter="groups",
        )
    targets = np.asarray(values_by_label(y, groups.labels, "y"))
    if targets.shape != (len(groups),):
        raise InputError(
            f"y has shape {targets.shape} for {counted(len(groups), 'group')}: give one target for "
            "each.",
            parameter="y",
        )
    together = codes_left_out(left_out_together, groups.labels, len(groups))
    if together is None:
        together = getattr(model, "_left_out", None)
    findings = (
        classification_findings(model, groups, targets, target, together)
        if isinstance(model, DistributionClassifier)
        else regression_findings(model, groups, targets.astype(np.float64), target, level)
    )
    if findings.warning:
        warn_user(findings.warning)
    # other settings are no remedy where nothing was learnt, and no gain where nothing is wrong
    settled = findings.warning or findings.is_perfect
    actions = findings.actions + ([] if settled else _advice_on_settings(model))
    feature_map = groups.feature_map
    return write_page(
        path,
        title=f"Can {target} be predicted for each {groups.dim}?",
        answers=[
            findings.verdict,
            findings.certainty,
            findings.worst,
            Answer("Which settings were chosen?", _settings(model, groups)),
            Answer("What is to be done?", actions or ["Nothing: no limit was found."]),
        ],
        sections=findings.sections,
        pictures=[findings.drawing.picture()],
        facts={
            "Data": dict(source or {})
            | {
                f"{groups.dim}s": f"{len(groups):,}",
                "rows": f"{int(groups.count.sum()):,}",
                f"rows of a {groups.dim}": range_of(groups.count),
            },
            "Model": describe(model.as_dict() | _OMITTED) | findings.facts,
            "Feature map": map_fields(feature_map),
        },
        command=command,
    )


def _settings(
    model: DistributionRegressor | DistributionClassifier, groups: SketchGroup
) -> list[str]:
    """Chosen bandwidth and ridge, and the features."""
    ridge = f"a ridge of {model.alpha_:g} of {_listed(model.alphas)}"
    sentences = [f"A linear kernel and {ridge}."]
    if model.kernel != "linear":
        sentences = [
            f"A bandwidth of {model.bandwidth_:g} of {_listed(model.bandwidths)} times the median "
            f"discrepancy, and {ridge}."
        ]
        size = len(model.features_.get_feature_names_out())
        kernel = {"matern": "Matérn", "rbf": "RBF"}[model.kernel]
        second = "random features" if model.layer == "random" else "landmarks"
        sentences.append(
            f"{size:,} {second} of a {kernel} kernel of {groups.feature_map.n_frequencies:,} "
            "frequencies"
            + (f", exact for {len(groups):,} {groups.dim}s." if size >= len(groups) and
               model.layer == "landmarks" else f" for {len(groups):,} {groups.dim}s.")
        )  # fmt: skip
    return sentences


def _listed(values: Sequence[float]) -> str:
    return "(" + ", ".join(f"{value:g}" for value in values) + ")"


def _advice_on_settings(model: DistributionRegressor | DistributionClassifier) -> list[str]:
    """Advice for chosen settings that are the smallest or the largest of those tried."""
    sentences = []
    tried = [("alphas", model.alpha_, model.alphas, "ridge")]
    if model.kernel != "linear":
        tried.insert(0, ("bandwidths", model.bandwidth_, model.bandwidths, "bandwidth"))
    for name, chosen, values, noun in tried:
        ends = {min(values): ("smallest", "smaller"), max(values): ("largest", "larger")}
        if chosen in ends and len(values) > 1:
            end, other = ends[chosen]
            sentences.append(
                f"The {noun} is the {end} that was tried, {chosen:g}: try {other} {name}, too."
            )
    return sentences
