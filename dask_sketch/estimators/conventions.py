"""Conventions of scikit-learn that estimators share: pickles of one version, and lazy output."""

from __future__ import annotations

import functools
import os
from importlib.metadata import version
from typing import Any

from dask.base import is_dask_collection

from dask_sketch.errors import InputError
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.device import on_device
from dask_sketch.validation.warn import warn_user

_VERSION = "_dask_sketch_version"  # in the state of a pickled estimator


def is_lazy(x: Any) -> bool:
    """Whether samples are lazy or on a GPU, rather than an array-like in memory."""
    outside = is_dask_collection(x) or isinstance(x, (str, os.PathLike, Samples)) or on_device(x)
    return outside or type(x).__module__.partition(".")[0] in ("xarray", "zarr")


def require_numbers(x: Any, name: str) -> None:
    """Refuse a table in memory with columns of categories or text, with the way to fit them.

    Parameters
    ----------
    x
        Samples in memory.
    name
        Name of the estimator.

    Raises
    ------
    InputError
        If a column is of a categorical type, or of a type of text.
    """
    if not hasattr(x, "dtypes") or not hasattr(x, "columns"):
        return
    kinds = [str(dtype).lower().partition("[")[0] for dtype in x.dtypes]
    if any(kind in ("category", "categorical", "enum", "str", "string") for kind in kinds):
        raise InputError(
            f"X has columns of categories or text, which {name} does not take: choose numeric ones "
            "by columns=[...]; or decode latent classes, by decode(sketch(X, feature_map), K) with "
            "feature_map = design(X, n_components=K, categories={column: [...]}).",
            parameter="X",
        )


@functools.cache
def _installed() -> str:
    return version("dask-sketch")


class VersionedPickle:
    """Estimator whose pickle is read by another version of the package with a warning."""

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return state | {_VERSION: _installed()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, and warn if another version wrote it.

        Warns
        -----
        UserWarning
            If the versions differ.
        """
        state = dict(state)
        written = state.pop(_VERSION, "an earlier version")
        if written != _installed():
            warn_user(
                f"this pickle of {type(self).__name__} was written by dask-sketch {written}, and "
                f"dask-sketch {_installed()} reads it: results may differ, or fail. Fit again, or "
                "store what lasts with to_zarr: sketches, moments, models, estimators of groups."
            )
        super().__setstate__(state)  # type: ignore[misc]


class LazyOutput:
    """Transformer whose output for lazy input stays lazy, whatever ``set_output`` asks for."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        wrapped = cls.__dict__.get("transform")
        plain = getattr(wrapped, "__wrapped__", None)
        if wrapped is None or plain is None:
            return

        @functools.wraps(plain)
        def transform(self: Any, X: Any) -> Any:
            return plain(self, X) if is_lazy(X) else wrapped(self, X)

        cls.transform = transform  # type: ignore[attr-defined]

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and transform the same samples.

        Parameters
        ----------
        X
            Samples, as for ``fit``.
        y
            Ignored.
        fit_params
            Further arguments of ``fit``.

        Returns
        -------
        transformed
            Result of ``transform``, lazy for lazy samples.
        """
        if is_lazy(X):
            fitted: Any = self.fit(X, y, **fit_params)  # type: ignore[attr-defined]
            return fitted.transform(X)
        return super().fit_transform(X, y, **fit_params)  # type: ignore[misc]
