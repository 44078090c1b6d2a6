"""Ridge regression on lazy groups, by normal equations that are summed over chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.linear_model import RidgeCV

from dask_sketch.distributions.learning.embeddings import embeddings_of
from dask_sketch.distributions.learning.group_features import DistributionFeatures
from dask_sketch.distributions.learning.grouped_ridge import ridge_of
from dask_sketch.distributions.learning.ridge_selection import (
    ErrorVariance,
    SelectedRidge,
    positive_numbers,
    select_ridge,
)
from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.merge import merge
from dask_sketch.validation.labels import values_by_label
from dask_sketch.validation.threads import one_blas_thread

Array = NDArray[np.float64]
_N_PILOT = 2000  # groups that choose the bandwidth and the ridge


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets and weights of groups, by sorted labels.

    Attributes
    ----------
    labels
        Sorted labels, shape (n_groups,).
    values
        Targets of each label, shape (n_groups, n_targets).
    weights
        Weight of each label, shape (n_groups,).
    names
        Labels of the groups, if the sketches have positions in them as their labels; else None.
    """

    labels: NDArray[Any]
    values: Array
    weights: Array
    names: NDArray[Any] | None

    def find(self, labels: NDArray[Any]) -> NDArray[np.intp]:
        """Find the positions of the targets of groups.

        Parameters
        ----------
        labels
            Labels of sketches, shape (n,).

        Returns
        -------
        positions
            Positions in the sorted labels, shape (n,).

        Raises
        ------
        InputError
            If a group has no target.
        """
        wanted = labels if self.names is None else self.names[labels]
        positions = np.minimum(np.searchsorted(self.labels, wanted), len(self.labels) - 1)
        missing = self.labels[positions] != wanted
        if missing.any():
            values_by_label({}, wanted[missing], "y")  # raises for the first of them
        return positions


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Sums of products of features and targets over whole groups, and parts of other groups.

    Attributes
    ----------
    products
        Weighted sums of the products of the features, the targets and one, shape
        (n_features + n_targets + 1, n_features + n_targets + 1).
    positions
        Positions in the targets of the groups that were summed.
    incomplete
        Sketches of groups that may continue in other chunks.
    """

    products: Array
    positions: NDArray[np.intp]
    incomplete: SketchGroup


def labelled_targets(
    y: Any,
    sample_weight: Any,
    names: NDArray[Any] | None,
    encode: Callable[[NDArray[Any], Array], Array],
) -> Targets:
    """Validate targets that have the labels of their groups, and sort them by label.

    Parameters
    ----------
    y
        Mapping from labels, or series of pandas with labels as its index.
    sample_weight
        Weight of each group in the order of the sorted labels; None for equal weights.
    names
        Labels of the groups, if the sketches have positions in them as their labels; else None.
    encode
        Function of the given targets and the weights, both in the order of the labels, that returns
        numbers, shape (n_groups, n_targets).

    Returns
    -------
    targets
        Targets and weights in the order of the sorted labels.

    Raises
    ------
    InputError
        If the targets have no labels, or are not finite, or a label occurs twice.
    """
    if hasattr(y, "to_series"):  # an array of xarray
        y = y.to_series()
    if isinstance(y, Mapping):
        labels, targets = np.array(list(y)), np.array(list(y.values()))
    elif hasattr(y, "reindex"):
        labels, targets = y.index.to_numpy(), y.to_numpy()
        labels = labels.astype(str) if labels.dtype.kind == "O" else labels
    else:
        raise InputError(
            f"y of type {type(y).__name__} has no labels of the groups, which solver='normal' "
            "needs: give a mapping from labels, or a series of pandas.",
            parameter="y",
        )
    order = np.argsort(labels, kind="stable")
    labels, targets = labels[order], targets[order]
    if sample_weight is not None:
        sample_weight = values_by_label(sample_weight, labels, "sample_weight")
    if (labels[1:] == labels[:-1]).any():
        raise InputError("y has a label twice: give one target for each group.", parameter="y")
    weights = np.ones(len(targets)) if sample_weight is None else np.asarray(sample_weight, float)
    if weights.shape != targets.shape or not (weights >= 0).all():
        raise InputError(
            f"sample_weight of shape {weights.shape} for {len(targets)} targets: give a weight of "
            "at least 0 for each, in the order of the sorted labels.",
            parameter="sample_weight",
        )
    values = encode(targets, weights)
    if not np.isfinite(values).all():
        raise InputError(f"y is {values[~np.isfinite(values)][0]} for a group.", parameter="y")
    return Targets(labels, values, weights, names)


def fit_lazily(
    lazy: LazyResult,
    targets: Targets,
    features: DistributionFeatures,
    bandwidths: Any,
    alphas: Any,
    *,
    weight_sizes: bool,
) -> tuple[SelectedRidge, Array]:
    """Fit a ridge regression in one pass over the rows, with the groups of one chunk in memory.

    Some chunks are read before. Their groups determine the landmarks, the bandwidth and the error
    variance. After the pass, the ridge is chosen by the leave-one-out errors of these groups in the
    fit to all groups.

    Parameters
    ----------
    lazy
        Lazy sketches of groups whose rows are consecutive.
    targets
        Targets by labels.
    features
        Transformer with its other parameters set.
    bandwidths, alphas
        Relative bandwidths and ridges to choose from.
    weight_sizes
        Whether groups are weighted by the inverse of their error variance as well.

    Returns
    -------
    selected
        Fit. Its predictions are NaN, except for the groups of the chunks that were read before.
    sizes
        Effective sizes of these groups, in the order of their labels.

    Raises
    ------
    InputError
        If the rows of a group are not consecutive, or a group has no target.
    """
    alphas = positive_numbers("alphas", alphas)
    pilot = _pilot(lazy, max(_N_PILOT, int(features.size)))
    opened = embeddings_of(pilot)
    assert opened.sizes is not None
    positions = targets.find(pilot.labels)
    y = targets.values[positions]
    first = select_ridge(
        opened,
        y,
        targets.weights[positions],
        features,
        bandwidths,
        alphas,
        weight_sizes=weight_sizes,
    )
    weighted = weight_sizes and first.error_variance.per_sample > 0
    variance = first.error_variance if weighted else ErrorVariance(1.0, 0.0)
    products_of = partial(_products, features=first.features, targets=targets, variance=variance)
    reduction = lazy.reduction
    total = LazyResult(
        lazy.samples,
        replace(
            reduction,
            name="fit-groups",
            chunk=partial(_chunk, sketch=reduction.chunk, products_of=products_of),
            combine=_combine,
            finalize=partial(_finalize, products_of=products_of, targets=targets),
            require_room=None,
        ),
        lazy.split_every,
    ).compute()
    weights = targets.weights[positions] / variance.of(opened.sizes)
    points = first.features.transformed(opened)
    n_groups = int(np.count_nonzero(targets.weights[total.positions]))
    ridge, predictions = _solve(total.products, n_groups, points, y, weights, alphas)
    positive = weights > 0
    squared = np.mean((predictions - y)[positive] ** 2, axis=1)
    spread = ErrorVariance.fit(squared, opened.sizes[positive])
    everywhere, masses = np.full(targets.values.shape, np.nan), np.zeros(len(targets.values))
    everywhere[positions[positive]], masses[positions] = predictions[positive], weights
    selected = SelectedRidge(first.features, ridge, first.bandwidth, everywhere, masses, spread)
    return selected, opened.sizes[positive]


def _pilot(lazy: LazyResult, n_groups: int) -> SketchGroup:
    """Sketches of whole groups, from chunks that are spread over the rows."""
    reduction = replace(lazy.reduction, chunk=partial(_whole_groups, sketch=lazy.reduction.chunk))
    source = LazyResult(lazy.samples, reduction, lazy.split_every)
    n_chunks, number, pilot = source.n_chunks, 1, None
    while True:
        step = n_chunks // number
        pilot = source.part(range((n_chunks - 1) % step // 2, n_chunks, step)).compute()
        known = 0 if pilot is None else len(pilot)
        if known >= n_groups or number == n_chunks:
            break
        # twice as many chunks, or as many as the groups in a chunk so far suggest
        number = min(max(2 * number, number * n_groups // max(known, 1) + 1), n_chunks)
    if pilot is None or known < 2:
        raise InputError(
            f"X has {known} whole groups within its {n_chunks} chunks, too few for "
            "solver='normal': give larger chunks, or solver='svd'.",
            parameter="X",
        )
    return pilot


def _chunk(
    rows: Any, weights: Any, label: str, groups: Any, sketch: Any, products_of: Any
) -> NormalEquations:
    part: SketchGroup = sketch(rows, weights, label, groups=groups)
    inside = _is_whole(part, groups)
    products, positions = products_of(part.select(inside))
    return NormalEquations(products, positions, part.select(~inside))


def _whole_groups(rows: Any, weights: Any, label: str, groups: Any, sketch: Any) -> SketchGroup:
    part: SketchGroup = sketch(rows, weights, label, groups=groups)
    return part.select(_is_whole(part, groups))


def _is_whole(part: SketchGroup, groups: Any) -> NDArray[np.bool_]:
    """Whether groups have all rows in a chunk: not its first or last labelled row."""
    values, whole = np.asarray(groups), np.ones(len(part), dtype=bool)
    for ends in (values, values[::-1]):
        for value in ends:
            position = np.searchsorted(part.labels, value) if len(part) else 0
            if position < len(part) and part.labels[position] == value:
                whole[position] = False
                break
    return whole


def _products(
    group: SketchGroup, features: DistributionFeatures, targets: Targets, variance: ErrorVariance
) -> tuple[Array, NDArray[np.intp]]:
    """Weighted products of the features, the targets and one, and the positions of the targets."""
    width = features._n_features_out
    positions = targets.find(group.labels)
    n_columns = width + targets.values.shape[1] + 1
    columns = np.ones((len(group), n_columns))
    if not len(group):
        return np.zeros((n_columns, n_columns)), positions
    with one_blas_thread():
        opened = embeddings_of(group)
        columns[:, :width] = features.transformed(opened)
        columns[:, width:-1] = targets.values[positions]
        columns *= np.sqrt(targets.weights[positions] / variance.of(opened.sizes))[:, None]
        return columns.T @ columns, positions


def _combine(parts: list[NormalEquations]) -> NormalEquations:
    products = parts[0].products.copy()
    for part in parts[1:]:
        products += part.products
    return NormalEquations(
        products,
        np.concatenate([part.positions for part in parts]),
        merge([part.incomplete for part in parts]),
    )


def _finalize(total: NormalEquations, products_of: Any, targets: Targets) -> NormalEquations:
    """Add the groups that chunks divide, and require that each group was summed once."""
    products, last = products_of(total.incomplete)
    positions = np.sort(np.concatenate([total.positions, last]))
    twice = positions[1:] == positions[:-1]
    if twice.any():
        label = targets.labels[positions[1:][twice][0]]
        raise InputError(
            f"X has rows of the group {label!s} in several places: sort the rows by their groups, "
            "or give solver='svd', which holds the sketches of all groups in memory.",
            parameter="X",
        )
    return replace(total, products=total.products + products, positions=positions)


def _solve(
    products: Array, n_groups: int, points: Array, y: Array, weights: Array, alphas: Array
) -> tuple[RidgeCV, Array]:
    """Choose the ridge with the smallest leave-one-out error of some groups.

    Parameters
    ----------
    products
        Products of :class:`NormalEquations`, over all groups.
    n_groups
        Number of groups of weight above 0.
    points, y
        Features and targets of the groups that choose the ridge.
    weights
        Weights of these groups, including the inverse error variances.
    alphas
        Ridges to choose from.

    Returns
    -------
    ridge
        Fitted regression.
    predictions
        Leave-one-out predictions of the groups that choose the ridge, shape (n, n_targets).
    """
    n = points.shape[1]
    with one_blas_thread():
        mass = products[-1, -1]
        mean = products[:-1, -1] / mass
        # the ridges are relative to weights of mean one
        scale = n_groups / mass
        centered = scale * (products[:-1, :-1] - mass * np.outer(mean, mean))
        eigenvalues, vectors = eigh(centered[:n, :n])
        target = vectors.T @ centered[:n, n:]
        turned = (points - mean[:n]) @ vectors
        best: tuple[float, float, Array, Array] | None = None
        for alpha in alphas.tolist():
            inverse = 1.0 / (np.maximum(eigenvalues, 0.0) + alpha)
            solution = inverse[:, None] * target
            leverage = (weights * scale * (1.0 / n_groups + turned**2 @ inverse))[:, None]
            predictions = (mean[n:] + turned @ solution - leverage * y) / (1.0 - leverage)
            errors = np.mean((predictions - y) ** 2, axis=1)
            score = -float(np.average(errors, weights=weights))
            if best is None or score > best[0]:
                best = score, alpha, vectors @ solution, predictions
    assert best is not None
    score, alpha, coefficients, predictions = best
    intercept = mean[n:] - mean[:n] @ coefficients
    return ridge_of(alphas, alpha, score, coefficients, intercept), predictions
