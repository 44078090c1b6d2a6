"""What the estimators share: check the input, sketch it, decode; at once or batch by batch."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Literal

import dask
import numpy as np
from dask.base import is_dask_collection
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dask_sketch.decoders import decode
from dask_sketch.errors import InputError
from dask_sketch.features import FeatureMap
from dask_sketch.features.arguments import whole_number
from dask_sketch.features.device import on_device
from dask_sketch.features.masked import require_unmasked
from dask_sketch.graph import design, sketch
from dask_sketch.models import Centroids, GaussianMixture
from dask_sketch.sketching import Sketch
from dask_sketch.sources import Samples


def number(value: Any) -> float:
    """A score as scikit-learn wants it: computed, where the samples were lazy."""
    return float(dask.compute(value)[0])


def is_lazy(x: Any) -> bool:
    """Whether samples stay where they are, rather than being an array-like of scikit-learn's."""
    kept = is_dask_collection(x) or isinstance(x, (str, os.PathLike, Samples)) or on_device(x)
    return kept or type(x).__module__.partition(".")[0] in ("xarray", "zarr")


class SketchEstimator(BaseEstimator):
    """Base of the estimators: a sketch that grows, and a model decoded from it.

    Input in memory is checked as scikit-learn does. Anything lazy (Dask array, DataFrame or bag,
    xarray, Zarr, a path) is sketched in one pass where it lies, never gathered.
    """

    _task: ClassVar[Literal["mixture", "clustering"]]
    _size: ClassVar[str]  # name of the parameter that holds the number of components

    feature_map_: FeatureMap
    sketch_: Sketch
    model_: Any

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Any:
        """Sketch ``X`` in one pass and decode.

        Parameters
        ----------
        X
            Samples, shape (n_samples, n_features), or anything that :func:`dask_sketch.sketch`
            takes.
        y
            Ignored.
        sample_weight
            Non-negative weight of each sample; for lazy input also lazy, or the name of a column.

        Returns
        -------
        self
        """
        return self._learn(X, sample_weight, fresh=True)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Any:
        """Add samples to the sketch and decode again.

        The first call chooses the feature map, which then stays: its samples should be like the
        others. In how many batches the samples come makes no difference to the sketch, and so none
        to the model.

        Parameters
        ----------
        X, y, sample_weight
            As for :meth:`fit`.

        Returns
        -------
        self
        """
        return self._learn(X, sample_weight, fresh=not hasattr(self, "sketch_"))

    def _learn(self, x: Any, sample_weight: Any, *, fresh: bool) -> Any:
        n_components = whole_number(self._size, getattr(self, self._size), 1)
        x, weights = self._checked(x, sample_weight, n_components, reset=fresh)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if fresh:
            self.feature_map_ = design(
                x, self.n_frequencies, n_components, task=self._task, seed=seed, weights=weights,
                **self._design(),
            )  # fmt: skip
        part = sketch(x, self.feature_map_, weights)
        found = part if isinstance(part, Sketch) else part.compute()
        if not fresh:
            found = self.sketch_ + found
        model = decode(found, n_components, seed=seed, replicates=self.n_init, **self._decoding())
        # only now: an error above leaves what was fitted before
        self.sketch_, self.model_ = found, model
        self.n_features_in_ = self.feature_map_.n_features
        self._told(model, x)
        return self

    def _checked(
        self, x: Any, weights: Any, n_components: int, *, reset: bool
    ) -> tuple[Any, NDArray[np.floating] | Any]:
        if is_lazy(x):
            return x, weights
        rows = self._validated(x, reset=reset)
        if reset and len(rows) < max(n_components, 2):
            raise InputError(
                f"n_samples={len(rows)} is too few for {self._size}={n_components}: give at least "
                f"{max(n_components, 2)}."
            )
        if weights is None:
            return rows, None
        require_unmasked(weights, "weights", "sample_weight")
        share = check_array(
            weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight",
            ensure_non_negative=True,
        )  # fmt: skip
        if share.shape != rows.shape[:1]:
            raise InputError(
                f"sample_weight has shape {share.shape}, X has {len(rows)} rows: give one for each."
            )
        return rows, share

    def _given(self, x: Any) -> Any:
        """Input of a method that needs the model: checked if it is in memory."""
        check_is_fitted(self)
        if is_lazy(x):
            return x
        return self._validated(x, reset=False)

    def _validated(self, x: Any, *, reset: bool) -> NDArray[np.floating]:
        require_unmasked(x, "rows", "the values of X")  # scikit-learn drops the mask
        rows: NDArray[np.floating] = validate_data(
            self, x, reset=reset, dtype=[np.float64, np.float32]
        )
        return rows

    def _design(self) -> dict[str, Any]:
        """Further arguments of :func:`dask_sketch.design`."""
        raise NotImplementedError

    def _decoding(self) -> dict[str, Any]:
        """Further arguments of :func:`dask_sketch.decode`."""
        raise NotImplementedError

    def _told(self, model: GaussianMixture | Centroids, x: Any) -> None:
        """Set the fitted attributes; ``x`` are the samples of the last fit."""
        raise NotImplementedError
