"""What every model is: components with weights and places, and a record of their decoding."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.features.rebuilt import Rebuilt
from dask_sketch.models.parameters import check_places, finite
from dask_sketch.storage import Stored

if TYPE_CHECKING:
    import xarray as xr

    from dask_sketch.diagnostics.pictures import ModelPictures
    from dask_sketch.models.decoding import Decoding

Array = NDArray[np.float64]


class Model(Stored, Rebuilt):
    """Base of the models, which are frozen dataclasses of arrays; a subclass says what they mean.

    The second of the arrays holds the places of the components, shape (n_components, n_features).
    """

    _arrays: ClassVar[tuple[str, ...]]
    weights: Array
    decoding: Decoding | None

    def __post_init__(self) -> None:
        for name in self._arrays:
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        check_places(self._arrays[1], self._places, self.weights)

    @property
    def _places(self) -> Array:
        places: Array = getattr(self, self._arrays[1])
        return places

    @property
    def n_components(self) -> int:
        """Number of components ``K``."""
        return int(self._places.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features ``d``."""
        return int(self._places.shape[1])

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features, if the model was decoded from a sketch that knows them.

        Samples that name their features otherwise, or in another order, are refused.
        """
        return None if self.decoding is None else self.decoding.feature_names

    def _omega(self, frequencies: ArrayLike) -> Array:
        """Argument ``frequencies``, checked."""
        omega = np.asarray(frequencies, dtype=np.float64)
        if omega.ndim != 2 or len(omega) != self.n_features:
            raise InputError(
                f"frequencies has shape {omega.shape}; for this model give ({self.n_features}, m)."
            )
        return omega

    def _artifact(self) -> tuple[xr.Dataset, str, int]:
        from dask_sketch.models.artifact import VERSION, schema_of, to_dataset

        return to_dataset(self), schema_of(self), VERSION

    def __dask_tokenize__(self) -> tuple[str, str]:
        content = b"".join(getattr(self, name).tobytes() for name in self._arrays)
        shape = f"{self._places.shape}".encode()
        return f"dask_sketch.{type(self).__name__}", hashlib.sha256(shape + content).hexdigest()

    def __sizeof__(self) -> int:
        # what Dask's memory accounting sees
        return object.__sizeof__(self) + sum(getattr(self, name).nbytes for name in self._arrays)

    @property
    def plot(self) -> ModelPictures:
        """Pictures (extra ``plot``): ``model.plot.ellipses(sample)``, ``model.plot.trace()``."""
        from dask_sketch.diagnostics.pictures import ModelPictures

        own: Any = self  # a mixture or centroids
        return ModelPictures(own)

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        out = {"components": f"{self.n_components}", "features": f"{self.n_features}"}
        return out if self.decoding is None else out | self.decoding._fields()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in self._fields().items())
        return f"<{type(self).__name__}: {shown}>"
