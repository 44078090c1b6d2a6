"""Mean embeddings: each group of samples as a point in the space of the random features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from dask.base import is_dask_collection
from numpy.typing import NDArray

from dask_sketch.diagnostics.mmd import group_vectors
from dask_sketch.errors import InputError, MergeError
from dask_sketch.estimators.conventions import is_lazy
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.sketch import sketch
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.missing import refuse_missing
from dask_sketch.sketching.sketch import Sketch

Array = NDArray[np.float64]
_FEATURES = "random_feature"  # dimension of the features
_SIZES = "effective_count"  # coordinate of the groups
_OFFER = "give a SketchGroup, in memory or lazy, or its mean_embedding()"


def mean_embedding(groups: SketchGroup | LazyResult) -> xr.DataArray:
    """Mean embedding of each group: its sketch vector as real numbers.

    Inner products of two embeddings approximate the mean map kernel: the mean of the kernel of the
    feature map over all pairs of samples of the two groups. Distances approximate the maximum mean
    discrepancy (MMD). So any method for vectors works on groups of samples, such as clustering or
    regression; neighbours among many groups are found by :func:`nearest_groups`. Estimators of
    scikit-learn take the array as it is, and cross-validation divides it by groups.
    ``PCA(whiten=True)`` of scikit-learn gives whitened embeddings, where all directions count the
    same, however little groups differ along them.

    Parameters
    ----------
    groups
        Sketches of groups, or the lazy result of :func:`dask_sketch.sketch` with groups, which is
        computed in one pass.

    Returns
    -------
    embedding
        Real and imaginary parts of the sketch vectors side by side, multiplied by the weights of
        the features if the map has them, shape (n_groups, 2 * n_frequencies). The coordinates are
        the labels and the effective numbers of samples.

    Raises
    ------
    InputError
        If there are no sketches of groups, a group has no samples, or rows have missing values.

    References
    ----------
    Sutherland (2016), Scalable, flexible and active learning on distributions, section 4.1.

    Examples
    --------
    >>> from dask_sketch import mmd, partial_sketch
    >>> x, day = np.random.default_rng(0).normal(size=(600, 2)), np.arange(600) % 3
    >>> group = partial_sketch(x, FeatureMap(2, 50, scale=1.0), groups=day, dim="day")
    >>> embedding = mean_embedding(group)
    >>> embedding.dims, embedding.shape
    (('day', 'random_feature'), (3, 100))
    >>> squared = float(((embedding[0] - embedding[1]) ** 2).sum())
    >>> noise = float((1.0 - (embedding[:2] ** 2).sum("random_feature")).sum() / 199)
    >>> bool(np.isclose(squared - noise, mmd(group, squared=True)[0, 1]))
    True
    """
    group = groups.compute() if isinstance(groups, LazyResult) else groups
    if not isinstance(group, SketchGroup):
        raise InputError(
            f"groups of type {type(groups).__name__}: give sketches of groups, of "
            "sketch(x, feature_map, groups=labels)."
        )
    refuse_missing("groups", group)
    empty = ~(group.total_weight > 0)
    if empty.any():
        label = group.labels[int(np.argmax(empty))]
        raise InputError(
            f"groups: {group.dim}={label!s} has no samples. Leave such groups out: "
            "groups.select(groups.total_weight > 0)."
        )
    feature_map = group.feature_map
    names = [f"{part}{k}" for part in ("real", "imag") for k in range(feature_map.n_frequencies)]
    return xr.DataArray(
        group_vectors(group),
        coords={
            group.dim: group.labels,
            _SIZES: (group.dim, group.effective_count),
            _FEATURES: names,
        },
        dims=(group.dim, _FEATURES),
        name="mean_embedding",
        attrs={"feature_map": feature_map.spec, "digest": feature_map.digest},
    )


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Points that an estimator learns from; their sizes, labels and feature map if they are known.

    Attributes
    ----------
    values
        Points, array-like of shape (n_groups, n_features), not validated.
    sizes
        Effective number of samples of each group, shape (n_groups,), or None.
    labels
        Labels of the groups, shape (n_groups,), or None.
    feature_map
        Feature map of the sketches, or None.
    """

    values: Any
    sizes: Array | None = None
    labels: NDArray[Any] | None = None
    feature_map: FeatureMap | None = None

    def block(self, rows: slice | NDArray[np.intp]) -> Embeddings:
        """Select some of the points; their values must be an array.

        Parameters
        ----------
        rows
            Positions of the points.
        """
        return replace(
            self,
            values=self.values[rows],
            sizes=None if self.sizes is None else self.sizes[rows],
            labels=None if self.labels is None else self.labels[rows],
        )


def embeddings_of(x: Any, groups: Any = None, feature_map: FeatureMap | None = None) -> Embeddings:
    """Open the input of an estimator.

    Parameters
    ----------
    x
        Sketches of groups, in memory or lazy; a mean embedding; an array of points; or, with
        ``groups``, rows in any form that :func:`dask_sketch.sketch` takes.
    groups
        Label of the group of each row.
    feature_map
        Feature map of the fit; None in a fit, or where it is unknown.

    Returns
    -------
    embeddings
        Points, not validated.

    Raises
    ------
    InputError
        If the input is of another type, or rows cannot be sketched without a feature map.
    MergeError
        If the feature maps differ.
    """
    if groups is not None:
        if feature_map is None:
            raise InputError(
                "groups: rows can be sketched only with the feature map of a fit to sketches. "
                f"Here, {_OFFER}.",
                parameter="groups",
            )
        x = sketch(x, feature_map, groups=groups)
    if isinstance(x, (LazyResult, SketchGroup)):
        x = mean_embedding(x)
    elif isinstance(x, Sketch) or (isinstance(x, list) and x and isinstance(x[0], Sketch)):
        raise InputError(
            f"X of type {type(x).__name__} holds single sketches: {_OFFER}, which is also the "
            "form for cross-validation.",
            parameter="X",
        )
    if not (isinstance(x, xr.DataArray) and _SIZES in x.coords and "digest" in x.attrs):
        if is_dask_collection(x) or (is_lazy(x) and not isinstance(x, xr.DataArray)):
            raise InputError(
                f"X of type {type(x).__name__} has no groups: {_OFFER}; or rows and the label of "
                "the group of each as groups, for predictions.",
                parameter="X",
            )
        return Embeddings(x)
    origin = FeatureMap.from_spec(x.attrs["feature_map"], x.attrs["digest"])
    if feature_map is not None:
        feature_map.require_same(origin)
    if x.shape[1:] != (2 * origin.n_frequencies,):
        raise MergeError(
            f"X has shape {x.shape}, its feature map {origin.n_frequencies} frequencies: give all "
            "random features, real and imaginary parts."
        )
    return Embeddings(
        values=x.to_numpy(),
        sizes=np.asarray(x.coords[_SIZES], dtype=np.float64),
        labels=x[x.dims[0]].to_numpy(),
        feature_map=origin,
    )
