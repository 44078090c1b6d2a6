"""Conventions of scikit-learn that estimators share: pickles of one version, and lazy output."""

from __future__ import annotations

import functools
import numbers
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from importlib.metadata import version
from typing import Any, TypeVar, cast

import numpy as np
from dask.base import is_dask_collection
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from dask_sketch.errors import InputError
from dask_sketch.sources.open import open_samples
from dask_sketch.sources.samples import Samples
from dask_sketch.validation.arrays import package_of, require_unmasked
from dask_sketch.validation.device import on_device
from dask_sketch.validation.tables import require_columns, require_same_index
from dask_sketch.validation.warn import warn_user

# Beginnings of the names of types whose values are not numbers, of pandas and Polars.
_NO_NUMBERS = (
    "datetime", "timedelta", "period", "interval", "complex", "date", "time", "duration", "list",
    "struct", "binary", "array",
)  # fmt: skip
_TEXT = ("category", "categorical", "enum", "str", "string")
_VERSION = "_dask_sketch_version"  # key of the version in the state of a pickled estimator


_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def restores_on_error(fit: _Fit) -> _Fit:
    """Decorate a fitting method so that an error leaves the earlier fit unchanged."""

    @functools.wraps(fit)
    def fit_or_restore(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast("_Fit", fit_or_restore)


def is_lazy(x: Any) -> bool:
    """Whether samples are lazy or on a GPU, rather than an array-like in memory."""
    if package_of(x) == "polars" and hasattr(x, "collect"):
        return True
    if package_of(x) == "pyarrow" and hasattr(x, "scanner"):  # a dataset of files
        return True
    outside = is_dask_collection(x) or isinstance(x, (str, os.PathLike, Samples)) or on_device(x)
    return outside or package_of(x) in ("xarray", "zarr")


def open_lazy(x: Any, columns: Sequence[str] | None, weights: Any = None) -> Samples:
    """Open lazy samples: the chosen columns of tables, and all columns of arrays."""
    chosen = None if isinstance(x, Samples) or hasattr(x, "dtype") else columns
    return open_samples(x, weights=weights, columns=chosen)


def require_table(x: Any, name: str) -> None:
    """Refuse anything but arrays of numbers and tables of numbers, and state the remedy.

    Parameters
    ----------
    x
        Samples in memory.
    name
        Name of the estimator.

    Raises
    ------
    InputError
        If the samples are of a type without rows, or a column of a table is of categories, text or
        dates, is sparse, or has the name of another one.
    """
    _require_rows(x, name)
    columns = _columns_of(x)
    if columns is None:
        return
    twice = sorted({str(column) for column in columns if columns.count(column) > 1})
    if twice:
        raise InputError(
            f"X has several columns named {', '.join(twice)}: rename them.", parameter="X"
        )
    if not columns:
        raise InputError("X has no columns: give those of the features.", parameter="X")
    kinds = {
        column: re.split(r"[\[(]", str(dtype).lower())[0]
        for column, dtype in zip(columns, getattr(x, "dtypes", ()), strict=False)
    }
    text = [f"{column} ({kind})" for column, kind in kinds.items() if kind in _TEXT]
    if text:
        raise InputError(
            f"X has columns of categories or text, which {name} does not take: {', '.join(text)}. "
            "Choose numeric ones by columns=[...]; or decode latent classes, by decode(sketch(X, "
            "feature_map), K) with feature_map = design(X, n_components=K, categories={column: "
            "[...]}).",
            parameter="X",
        )
    wrong = [f"{column} ({kind})" for column, kind in kinds.items() if kind.startswith(_NO_NUMBERS)]
    if wrong:
        raise InputError(
            f"X has columns that are not numeric: {', '.join(wrong)}. Choose numeric ones by "
            "columns=[...], or convert these to numbers, such as seconds since a date.",
            parameter="X",
        )
    if "sparse" in kinds.values():
        raise InputError(
            "X has sparse columns, and rows are read as arrays: give X.sparse.to_dense().",
            parameter="X",
        )


def _require_rows(x: Any, name: str) -> None:
    """Refuse containers that do not hold rows, and arrays of dates or of named fields."""
    kind = type(x).__name__
    if package_of(x) == "dask_sketch":
        instead = (
            "dask_sketch.SecondMoments, such as total() of a ledger of them"
            if name == "SketchPCA"
            else "decode a sketch, such as total() of a ledger, by dask_sketch.decode(sketch, K)"
        )
        raise InputError(
            f"X of type {kind} has no rows: give an array of shape (n_samples, n_features); or "
            f"{instead}.",
            parameter="X",
        )
    # some sparse matrices are dictionaries; scikit-learn refuses them
    if isinstance(x, Iterator) and not hasattr(x, "shape"):
        raise InputError(
            f"X of type {kind} is read only once, and the feature map is designed before: call "
            "partial_fit for each block of rows.",
            parameter="X",
        )
    if x is None or (isinstance(x, (Mapping, Set)) and not hasattr(x, "shape")):
        raise InputError(
            f"X of type {kind} has no rows: give an array of shape (n_samples, n_features), or a "
            "table, such as pandas.DataFrame(X) of a dictionary of columns.",
            parameter="X",
        )
    if isinstance(x, Sequence) and len(x) and isinstance(x[0], Mapping):
        raise InputError(
            f"X of type {kind} holds dictionaries: give the table pandas.DataFrame(X).",
            parameter="X",
        )
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "mMV":
        what = "named fields: give a table" if dtype.kind == "V" else "dates: give numbers"
        raise InputError(
            f"X has dtype={dtype!s:.80}, which has {what}, such as "
            + ("pandas.DataFrame(X)." if dtype.kind == "V" else "seconds since a date."),
            parameter="X",
        )


def _columns_of(x: Any) -> list[Any] | None:
    """Names of the columns of a table of pandas, Polars or Arrow; None for other samples."""
    names = getattr(x, "column_names", getattr(x, "columns", None))
    return None if names is None else list(names)


def validate_rows(
    estimator: Any, x: Any, *, reset: bool = False, finite: bool | str = True, remedy: str
) -> NDArray[np.floating]:
    """Validate samples in memory as scikit-learn does, and name the value that is refused.

    Parameters
    ----------
    estimator
        Estimator, whose parameter ``columns`` chooses the columns of tables.
    x
        Samples, shape (n_samples, n_features).
    reset
        Whether the number and names of features are set rather than compared.
    finite
        Whether values must be finite, or ``"allow-nan"`` for finite or NaN.
    remedy
        Remedy for other values, in the imperative.

    Returns
    -------
    rows
        Samples, float64 or float32.

    Raises
    ------
    ValueError
        If the samples are masked, have other columns, are not numbers, or hold refused values.
    """
    require_unmasked(x, "rows", "the values of X")  # scikit-learn ignores masks
    names = _columns_of(x)
    if estimator.columns is not None and (reset or names is not None):
        if names is None:
            raise InputError(f"columns={estimator.columns!r}: X has no names, leave it out.")
        chosen = list(estimator.columns)
        require_columns(chosen, names, "X")
        x = x.select(chosen) if hasattr(x, "column_names") else x[chosen]
    require_table(x, type(estimator).__name__)
    rows: NDArray[np.floating]
    try:
        rows = validate_data(
            estimator, x, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=finite
        )
    except ValueError as error:
        _refuse_value(x, finite, remedy, error)
        raise
    except TypeError as error:  # objects, such as missing values, in a column of a table
        if _columns_of(x) is not None:
            _refuse_value(x, finite, remedy, error)
        raise
    return rows


def _refuse_value(x: Any, finite: bool | str, remedy: str, error: Exception) -> None:
    """Raise an error that names the first value that is not a finite number, if there is one."""
    if np.iscomplexobj(x):
        return
    try:
        values = np.asarray(x, np.float64)
    except (TypeError, ValueError):
        values = _numbers(x, error)
    refused = np.isinf(values) if finite == "allow-nan" else ~np.isfinite(values)
    if finite is False or values.ndim != 2 or not refused.any():
        return
    row, feature = (int(index[0]) for index in np.nonzero(refused))
    value = "NaN" if np.isnan(values[row, feature]) else str(values[row, feature])
    raise InputError(
        f"X holds {value} at row {row}, feature {_name(x, feature)}; "
        f"{int(refused.any(axis=1).sum()):,} of {len(values):,} rows hold such values: {remedy}.",
        parameter="X",
    ) from error


def _numbers(x: Any, error: Exception) -> NDArray[np.float64]:
    """Numbers of an array of objects, NaN where one is missing; texts are refused by place."""
    objects = np.asarray(x, object)
    values = np.full(objects.shape, np.nan)
    for index, value in np.ndenumerate(objects):
        if value is None or str(value) == "<NA>":  # missing value of the nullable types of pandas
            continue
        try:
            values[index] = float(value)
        except (TypeError, ValueError):
            if len(index) != 2:
                return values
            raise InputError(
                f"X holds {value!r} at row {index[0]}, feature {_name(x, index[1])}, which is no "
                "number: choose numeric columns by columns=[...], or remove such rows.",
                parameter="X",
            ) from error
    return values


def _name(x: Any, feature: int) -> str:
    columns = _columns_of(x)
    return str(feature) if columns is None else repr(columns[feature])


def validate_weights(weights: ArrayLike, n_samples: int, x: Any) -> NDArray[np.float64]:
    """Validate the weights of samples in memory.

    Parameters
    ----------
    weights
        Weight of each sample, finite and non-negative, shape (n_samples,), or one number for all.
    n_samples
        Number of samples.
    x
        Samples, for their index.

    Returns
    -------
    weights
        The same, float64.

    Raises
    ------
    ValueError
        If there is another number of weights, or one is masked, negative or not finite, or they
        have another index than the samples.
    """
    if isinstance(weights, str):
        raise InputError(
            f"sample_weight={weights!r} is the name of a column only for input that is read by "
            "dask-sketch, such as a path or a Dask collection: give one number for each row.",
            parameter="sample_weight",
        )
    require_same_index(weights, x, "sample_weight")
    require_unmasked(weights, "weights", "sample_weight")
    if isinstance(weights, numbers.Real):  # scikit-learn takes one weight for all samples
        weights = np.full(n_samples, weights)
    values: NDArray[np.float64] = check_array(
        weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight",
        ensure_all_finite=False,
    )  # fmt: skip
    if values.shape != (n_samples,):
        raise InputError(
            f"sample_weight has shape {values.shape}, X has {n_samples} rows: give one for each.",
            parameter="sample_weight",
        )
    refused = ~np.isfinite(values) | (values < 0.0)
    if refused.any():
        row = int(np.argmax(refused))
        value = "NaN" if np.isnan(values[row]) else str(values[row])
        raise InputError(
            f"sample_weight holds {value} at row {row}: give finite weights of at least zero, and "
            "zero for samples to be left out.",
            parameter="sample_weight",
        )
    return values


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
