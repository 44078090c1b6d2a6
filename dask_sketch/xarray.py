"""Sketches as methods of xarray's objects: ``import dask_sketch.xarray``, then ``dataset.sketch``.

>>> import numpy as np, xarray as xr
>>> import dask_sketch.xarray
>>> x = np.random.default_rng(0).normal(size=(1000, 2))
>>> frames = xr.DataArray(x, dims=("frame", "feature"), coords={"speaker": ("frame", x[:, 0] > 0)})
>>> group = frames.sketch.by("speaker", n_components=1)
>>> group.dim, group.labels, group.count.sum()
('speaker', array([False,  True]), np.int64(1000))
"""

from __future__ import annotations

from typing import Any

import xarray as xr

from dask_sketch.errors import InputError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.design import design
from dask_sketch.graph.plan import Plan, plan
from dask_sketch.graph.sketch import sketch


@xr.register_dataset_accessor("sketch")
@xr.register_dataarray_accessor("sketch")
class SketchAccessor:
    """``dataset.sketch`` and ``array.sketch``: passes over the samples of a Dataset or DataArray.

    All dimensions but that of the features are samples; of a Dataset the variables are the
    features, or one of them has them. The options are those of :func:`dask_sketch.open_samples`:
    ``columns`` (variables) and ``feature_dim``. Lazy data gives lazy sketches.
    """

    def __init__(self, x: xr.Dataset | xr.DataArray):
        self._x = x

    def __call__(self, feature_map: FeatureMap, weights: Any = None, **options: Any) -> Any:
        """The sketch of all samples; see :func:`dask_sketch.sketch`."""
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
        """Sketch each group in one pass.

        Parameters
        ----------
        groups
            Name of a variable or coordinate with the labels, or a DataArray of them; along some of
            the dimensions of the samples, or along one whose entries a variable numbers (with the
            attribute ``instance_dimension``).
        feature_map
            Feature map. By default one is designed, which reads a few chunks immediately.
        weights
            Weights of the samples, as for :func:`dask_sketch.sketch`.
        n_components, n_frequencies, seed
            Arguments of :func:`dask_sketch.design`: number of components to be decoded from each
            sketch, or number of frequencies; and the seed.
        columns, feature_dim
            Arguments of :func:`dask_sketch.open_samples`.
        options
            Keyword arguments of :func:`dask_sketch.sketch`.

        Returns
        -------
        group
            A :class:`SketchGroup` for data in memory, a lazy result for lazy data.

        Raises
        ------
        InputError
            If there is neither a feature map nor a size for one, or both; or as
            :func:`dask_sketch.sketch`.
        """
        opening: dict[str, Any] = {"columns": columns, "feature_dim": feature_dim}
        opening = {name: value for name, value in opening.items() if value is not None}
        sized = n_components is not None or n_frequencies is not None
        if (feature_map is None) != sized:
            raise InputError(
                "give a feature map, or n_components or n_frequencies to have one designed"
                + (": not both." if sized else ".")
            )
        if feature_map is None:
            feature_map = design(
                self._x, n_frequencies, n_components, seed=seed, weights=weights, groups=groups,
                **opening,
            )  # fmt: skip
        return sketch(self._x, feature_map, weights, groups=groups, **opening, **options)

    def design(
        self, n_frequencies: int | None = None, n_components: int | None = None, **options: Any
    ) -> FeatureMap:
        """Design a feature map for these samples; see :func:`dask_sketch.design`."""
        return design(self._x, n_frequencies, n_components, **options)

    def plan(self, feature_map: FeatureMap, weights: Any = None, **options: Any) -> Plan:
        """Estimate the cost of a pass; see :func:`dask_sketch.plan`."""
        return plan(self._x, feature_map, weights, **options)
