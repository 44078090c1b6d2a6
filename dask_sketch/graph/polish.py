"""Polish a model with further passes over the samples: EM for mixtures, Lloyd for centroids."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dask_sketch.display.progress import Show, progress_bar
from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.plan import require_chunks_fit
from dask_sketch.graph.reduction import Reduction, no_samples
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import Polishing
from dask_sketch.models.open import refuse_other_families
from dask_sketch.sketching.arguments import require_nan_policy
from dask_sketch.sketching.expectation import (
    FINER,
    ExpectationStatistics,
    ExpectationStep,
    merge_statistics,
)
from dask_sketch.sources.named_columns import with_named_columns
from dask_sketch.sources.open import open_samples, require_options
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.warn import warn_user

CONVERGED = "until converged"
MAX_PASSES = 100  # passes of "until converged", at most
VARIANCE_FLOOR = 1e-6  # smallest variance, as a fraction of the mean variance of the components
TOLERANCE = 1e-4  # nats for each sample

AnyModel = TypeVar("AnyModel", bound=GaussianMixture | Centroids)


def polish(
    model: AnyModel,
    x: Any,
    passes: int | str = 2,
    *,
    weights: Any = None,
    variance_floor: float = VARIANCE_FLOOR,
    tolerance: float = TOLERANCE,
    nan_policy: str = "raise",
    split_every: int | None = None,
    progress: bool = False,
    **options: Any,
) -> AnyModel:
    """Move a model towards maximum likelihood, with further passes over the samples.

    Each pass is one step of expectation-maximisation for a mixture (Dempster et al. 1977), or of
    Lloyd's algorithm for centroids. No step makes the model worse on the samples. The pass runs on
    the active Dask client, or on threads. The sums of a pass are exact, so that the result has the
    same bits for any chunks, order of the samples and number of workers.

    A mixture that was decoded with one variance for each component, or with known variances, keeps
    this restriction, and covariance matrices keep their ``covariance_type``. Components without
    samples keep their parameters, with zero weight.

    Parameters
    ----------
    model
        :class:`GaussianMixture` or :class:`Centroids` to start from.
    x
        Samples, shape (n_samples, n_features), in any form that :func:`open_samples` takes.
    passes
        Number of passes over the samples, or ``"until converged"``: until a pass gains less than
        ``tolerance``, at most 100. The first pass of centroids reads the samples twice if the
        clusters are far narrower than the data.
    weights
        Non-negative weight of each sample; an array-like or a name, see :func:`open_samples`.
    variance_floor
        Smallest variance of a component of a mixture in each feature, as a fraction of the mean
        variance of the components, in [0, 1]. Smaller variances of ``model`` may stay.
    tolerance
        Gain of a pass below which ``"until converged"`` stops, ``>= 0``, in nats for each sample;
        for centroids, as a fraction of the mean squared error.
    nan_policy
        Treatment of rows with NaN or infinite values: ``"raise"`` stops and names the row,
        ``"omit"`` leaves such rows out and counts them.
    split_every
        Maximum number of partial results that one task combines, ``>= 2``; the setting
        ``sketch.split-every`` by default.
    progress
        Whether to show a bar of all passes, in a notebook or on the standard error stream.
    options
        Further keyword arguments of :func:`open_samples`. Where a table has other columns as well,
        ``columns`` are those that the model knows by name.

    Returns
    -------
    model
        Polished model of the same class; it is computed at once, also for lazy input. Its attribute
        ``polishing`` has the log-likelihood, or the mean squared error, before each step.

    Raises
    ------
    InputError
        If an argument is not valid, the input cannot be opened, or has other features than the
        model or no samples.
    PlanError
        If the largest chunk cannot fit in the memory of a thread.
    ChunkError
        If a chunk cannot be read or holds refused values; the message names it.

    Warns
    -----
    UserWarning
        If ``"until converged"`` ends at 100 passes.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal([[-4.0]] * 700 + [[4.0]] * 300)
    >>> start = GaussianMixture([0.5, 0.5], [[-1.0], [1.0]], [[9.0], [9.0]])
    >>> better = polish(start, x, passes="until converged")
    >>> better.weights.round(2), bool(better.score(x) > start.score(x))
    (array([0.7, 0.3]), True)
    >>> polish(Centroids([0.5, 0.5], [[-1.0], [1.0]]), x).centers.round()
    array([[-4.],
           [ 4.]])
    """
    _require_arguments(model, passes, variance_floor, tolerance)
    require_nan_policy(
        nan_policy,
        without="in polish: its steps take complete rows only. Pass 'omit', which biases nothing "
        "where values are missing completely at random.",
    )
    require_options(polish, options)
    if options.get("groups") is not None:
        raise InputError("groups: one model is polished with all samples; leave it out.")
    options = with_named_columns(x, model.feature_names, options)
    samples = open_samples(x, weights=weights, **options)
    samples = samples.named_like(model.feature_names, "the model")
    samples.require_features(model.n_features, "the model", model.feature_names)
    until = passes == CONVERGED
    n_passes = MAX_PASSES if until else int(passes)
    floor = _smallest_variances(model, variance_floor)
    start_time, statistics = time.perf_counter(), None
    current: Any = model
    unit: float | None = None
    trace: list[float] = []
    converged = None
    with progress_bar(progress) as show:
        for number in range(n_passes):
            shown = _part_of(show, n_passes, trace) if progress else False
            step = ExpectationStep(current, unit)
            statistics = _pass(samples, step, nan_policy, split_every, shown)
            if step.is_coarse(statistics):
                step = ExpectationStep(current, FINER * step.length)
                statistics = _pass(samples, step, nan_policy, split_every, shown)
            if isinstance(model, Centroids):
                unit = step.length
            trace.append(step.objective(statistics))
            current = step.maximize(statistics, floor)
            if until and number:
                converged = _gain(model, trace[-2], trace[-1]) < tolerance
                if converged:
                    break
    assert statistics is not None
    if converged is False:
        warn_user(
            f"passes={passes!r}: after {n_passes} passes the last one gained "
            f"{_gain(model, trace[-2], trace[-1]):.3g}, more than tolerance={tolerance:g}. Polish "
            "the result further, or raise the tolerance."
        )
    record = Polishing(
        objective="log-likelihood" if isinstance(model, GaussianMixture) else "mean squared error",
        trace=tuple(trace),
        bound=trace[-1] + step.gain(statistics, current),
        n_samples=statistics.count,
        omitted=statistics.omitted,
        seconds=time.perf_counter() - start_time,
        variance_floor=float(variance_floor) if isinstance(model, GaussianMixture) else None,
        converged=converged,
    )
    polished: AnyModel = replace(current, polishing=record)
    return polished


def _require_arguments(model: Any, passes: Any, variance_floor: Any, tolerance: Any) -> None:
    refuse_other_families("polish", model)
    if not isinstance(model, (GaussianMixture, Centroids)):
        raise InputError(
            f"model of type {type(model).__name__}: give a GaussianMixture or Centroids, from "
            "decode()."
        )
    if isinstance(passes, str):
        if passes != CONVERGED:
            raise InputError(f"passes={passes!r}: give a number of passes, or {CONVERGED!r}.")
    else:
        require_integer("passes", passes, 1)
    for name, value, maximum in (
        ("variance_floor", variance_floor, 1.0),
        ("tolerance", tolerance, 1e9),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not (
            0.0 <= value <= maximum
        ):  # fmt: skip
            raise InputError(f"{name}={value!r}: give a number from 0 to {maximum:g}.")


def _smallest_variances(model: GaussianMixture | Centroids, variance_floor: float) -> Any:
    """Lower bounds of the variances in all passes.

    They are at most the variances of the model. So the model satisfies them, and its likelihood
    cannot fall.
    """
    if isinstance(model, Centroids):
        return 0.0
    return np.minimum(variance_floor * (model.weights @ model.variances), model.variances)


def _gain(model: GaussianMixture | Centroids, before: float, after: float) -> float:
    if isinstance(model, Centroids):
        return (before - after) / before if before > 0.0 else 0.0
    return after - before


def _part_of(show: Show, n_passes: int, trace: list[float]) -> Show:
    """Show the tasks of the next pass as a part of the tasks of all passes."""
    before = len(trace)
    reached = f", {trace[-1]:.6g} so far" if trace else ""

    def show_pass(done: int, total: int, description: str) -> None:
        show(before * total + done, n_passes * total, f"pass {before + 1} of {n_passes}{reached}")

    return show_pass


def _pass(
    samples: Samples,
    step: ExpectationStep,
    nan_policy: str,
    split_every: int | None,
    progress: bool | Show,
) -> ExpectationStatistics:
    """Statistics of all samples."""
    reduction = Reduction(
        "polish",
        partial(_statistics_of_chunk, step=step, nan_policy=nan_policy),
        merge_statistics,
        partial(_require_samples, label=samples.label),
        partial(step.prepare, samples.dtype),
        require_fit=partial(require_chunks_fit, part_bytes=16 * step.n_sums),
    )
    lazy = LazyResult(samples, reduction, split_every)
    # compiled while the graph is built: threads and workers of this machine find it cached
    step.prepare(samples.dtype)
    if samples.lazy:
        return lazy.compute(progress=progress)
    return lazy.compute(progress=progress, scheduler="threads")


def _statistics_of_chunk(
    rows: Any, weights: Any, label: str, step: ExpectationStep, nan_policy: str
) -> ExpectationStatistics:
    return step.statistics(rows, weights, nan_policy=nan_policy, label=label)


def _require_samples(statistics: ExpectationStatistics | None, label: str) -> ExpectationStatistics:
    if statistics is None or not statistics.sums.any():
        count, omitted = (0, 0) if statistics is None else (statistics.count, statistics.omitted)
        raise no_samples(label, count, omitted)
    return statistics
