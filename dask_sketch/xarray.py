"""Accessor of xarray: ``import dask_sketch.xarray``, then ``dataset.sketch``.

>>> import numpy as np, xarray as xr
>>> import dask_sketch.xarray
>>> x = np.random.default_rng(0).normal(size=(1000, 2))
>>> frames = xr.DataArray(x, dims=("frame", "feature"), coords={"speaker": ("frame", x[:, 0] > 0)})
>>> group = frames.sketch.by("speaker", n_components=1)
>>> group.dim, group.labels, group.count.sum()
('speaker', array([False,  True]), np.int64(1000))

The nodes of a DataTree may have different variables and lengths, so choose the nodes to sketch
together. The sketches of the nodes form a group, which takes one pass if the nodes are lazy:

>>> import dask
>>> import dask_sketch as ds
>>> nodes = {f"/{name}": xr.Dataset({"z": frames[k::2]}) for k, name in enumerate("ab")}
>>> tree = xr.DataTree.from_dict(nodes)
>>> sketches = {
...     node.path: ds.sketch(node.to_dataset(), group.feature_map)
...     for node in tree.subtree
...     if node.has_data
... }
>>> found = ds.SketchGroup.from_sketches(dask.compute(sketches)[0], dim="node")
>>> found.labels, found.count
(array(['/a', '/b'], dtype='<U2'), array([500, 500]))

or a tree, whose nodes have the sums of their sketches as variables:

>>> sums = tree.map_over_datasets(
...     lambda node: (
...         ds.sketch(node, group.feature_map, sample=False).to_xarray() if node.data_vars else node
...     )
... )
>>> sums["a"].attrs["count"]
500
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from dask_sketch.distributions.testing.two_sample import compare
from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.compute import compute_plain
from dask_sketch.graph.design import design
from dask_sketch.graph.plan import Plan, plan
from dask_sketch.graph.sketch import sketch

if TYPE_CHECKING:
    from dask_sketch.distributions.testing.result import TwoSampleTest

_FREQUENCIES = 512  # frequencies of a designed feature map for comparing


@xr.register_dataset_accessor("sketch")
@xr.register_dataarray_accessor("sketch")
class SketchAccessor:
    """Accessor ``sketch`` of a Dataset or DataArray: passes over its samples.

    All dimensions except the features are samples. The features of a Dataset are its variables, or
    lie along a dimension of one variable. Options are those of :func:`dask_sketch.open_samples`:
    ``columns`` (variables) and ``feature_dim``. Lazy data gives lazy sketches.

    Parameters
    ----------
    x
        Dataset or DataArray of the samples.
    """

    def __init__(self, x: xr.Dataset | xr.DataArray):
        self._x = x

    def __call__(self, feature_map: FeatureMap, weights: Any = None, **options: Any) -> Any:
        """Sketch all samples; see :func:`dask_sketch.sketch`."""
        return sketch(self._x, feature_map, weights, **options)

    def by(
        self,
        groups: Any,
        feature_map: FeatureMap | None = None,
        weights: Any = None,
        *,
        n_components: int | None = None,
        n_frequencies: int | None = None,
        columns: list[str] | None = None,
        feature_dim: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Sketch each group of samples, in one pass.

        Parameters
        ----------
        groups
            Name of a variable or coordinate with the labels, or a DataArray of them; along some of
            the dimensions of the samples, or along one whose entries a variable numbers (with the
            attribute ``instance_dimension``).
        feature_map
            Feature map to average. When not given, one is designed, which reads a few chunks now.
        weights
            Weights of the samples; see :func:`dask_sketch.sketch`.
        n_components, n_frequencies, seed
            Arguments of :func:`dask_sketch.design`: number of components of the model that will be
            decoded from each sketch, or number of frequencies; and the seed.
        columns, feature_dim
            Arguments of :func:`dask_sketch.open_samples`.
        options
            Further keyword arguments of :func:`dask_sketch.sketch`.

        Returns
        -------
        group
            :class:`SketchGroup` for data in memory, and for lazy data a lazy result, whose
            ``.compute()`` gives it.

        Raises
        ------
        InputError
            If both a feature map and a size for one are given, or neither; and in the cases of
            :func:`dask_sketch.sketch`.
        """
        given: dict[str, Any] = {"columns": columns, "feature_dim": feature_dim}
        input_arguments = {name: value for name, value in given.items() if value is not None}
        sized = n_components is not None or n_frequencies is not None
        if (feature_map is None) != sized:
            raise InputError(
                f"feature_map={feature_map!r}, n_components={n_components!r}, n_frequencies="
                f"{n_frequencies!r}: give a feature map, or a size to have one designed"
                + (", not both." if sized else ".")
            )
        if feature_map is None:
            feature_map = design(
                self._x, n_frequencies=n_frequencies, n_components=n_components, seed=seed,
                weights=weights, groups=groups, **input_arguments,
            )  # fmt: skip
        return sketch(self._x, feature_map, weights, groups=groups, **input_arguments, **options)

    def design(
        self, *, n_frequencies: int | None = None, n_components: int | None = None, **options: Any
    ) -> FeatureMap:
        """Design a feature map for the samples; see :func:`dask_sketch.design`."""
        return design(self._x, n_frequencies=n_frequencies, n_components=n_components, **options)

    def plan(self, feature_map: FeatureMap, weights: Any = None, **options: Any) -> Plan:
        """Project the cost of a pass; see :func:`dask_sketch.plan`."""
        return plan(self._x, feature_map, weights, **options)

    def compare(
        self,
        other: xr.Dataset | xr.DataArray,
        by: str,
        feature_map: FeatureMap | None = None,
        *,
        n_frequencies: int | None = None,
        columns: list[str] | None = None,
        feature_dim: str | None = None,
        seed: int = 0,
        **options: Any,
    ) -> TwoSampleTest:
        """Test whether these samples and others have the same distribution; computes now.

        Parameters
        ----------
        other
            Samples to compare with: the same variables and dimensions.
        by
            Name of the variable or coordinate that has the independent unit of each sample, such as
            its day, file or speaker. Whole units are permuted.
        feature_map
            Feature map of both. When not given, one for comparing is designed for the samples of
            both sides, joined along the dimension of ``by``, which reads a few chunks.
        n_frequencies
            Number of frequencies of a designed feature map, 512 by default.
        columns, feature_dim
            Arguments of :func:`dask_sketch.open_samples`.
        seed
            Seed of the designed feature map and of the permutations.
        options
            Further keyword arguments of :func:`dask_sketch.distributions.compare`.

        Returns
        -------
        test
            P-value, size of the difference with its interval, and the features that differ.

        Raises
        ------
        InputError
            If both a feature map and a number of frequencies are given, or the sides do not join;
            and in the cases of :func:`dask_sketch.distributions.compare`.

        Examples
        --------
        >>> import numpy as np
        >>> x, day = np.random.default_rng(0).normal(size=(2, 2000, 2)), np.arange(2000) // 100
        >>> early, late = (
        ...     xr.DataArray(rows, dims=("time", "feature"), coords={"day": ("time", day)})
        ...     for rows in (x[0], 2.0 * x[1])
        ... )
        >>> late.sketch.compare(early, by="day").is_different
        True
        """
        given: dict[str, Any] = {"columns": columns, "feature_dim": feature_dim}
        input_arguments = {name: value for name, value in given.items() if value is not None}
        if feature_map is not None and n_frequencies is not None:
            raise InputError(
                f"n_frequencies={n_frequencies} with a feature map, which has its own: give one."
            )
        if feature_map is None:
            feature_map = design(
                self._joined(other, by), n_frequencies=n_frequencies or _FREQUENCIES,
                task="comparison", groups=by, seed=seed, **input_arguments,
            )  # fmt: skip
        groups = [sketch(x, feature_map, groups=by, **input_arguments) for x in (self._x, other)]
        return compare(*compute_plain(*groups), seed=seed, **options)

    def _joined(self, other: xr.Dataset | xr.DataArray, by: str) -> Any:
        """Samples of both sides, so that a feature map does not depend on the sides."""
        try:
            (dim,) = self._x[by].dims
            # an index that repeats itself, or an order of it, means nothing here
            sides: list[Any] = [
                x.drop_indexes([name for name in x.xindexes if dim in x[name].dims])
                for x in (self._x, other)
            ]
            return xr.concat(sides, dim, join="exact")
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"other of type {type(other).__name__} and by={by!r}: the sides do not join along "
                f"one dimension of by ({error}). Give a feature map, such as that of design(x, "
                "task='comparison').",
                parameter="other",
            ) from error
