"""Columns of a table that a feature map or a model knows by their names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dask_sketch.sources.open import has_columns
from dask_sketch.validation.tables import has_more_names


def with_named_columns(
    x: Any, names: Sequence[str] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Add the columns of a table that are features by name, where it has others as well.

    Parameters
    ----------
    x
        Samples, in any form that :func:`dask_sketch.open_samples` takes.
    names
        Names of the features of a feature map or a model, or None.
    options
        Keyword arguments of :func:`dask_sketch.open_samples`. Columns that are given are kept.

    Returns
    -------
    options
        With these names as ``columns`` for Parquet and CSV files, and for a table or a Dataset in
        memory or of Dask that has all of them and more; else the given ones.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [30.0], "name": ["Ada"], "height": [1.7]})
    >>> with_named_columns(table, ("height", "age"), {})
    {'columns': ['height', 'age']}
    """
    if names is None or options.get("columns"):
        return options
    if isinstance(x, (str, os.PathLike)):
        chosen = has_columns(os.fspath(x), options.get("storage_options"))
    else:
        chosen = has_more_names(_column_names(x), names)
    return options | {"columns": list(names)} if chosen else options


def _column_names(x: Any) -> Any:
    """Names of columns or variables; None of anything else."""
    if hasattr(x, "collect_schema"):  # Polars warns of the columns of a query
        return x.collect_schema().names()
    attributes = ("data_vars", "column_names", "columns")  # of xarray; of Arrow; of the others
    found = (getattr(x, name, None) for name in attributes)
    return next((each for each in found if each is not None), None)
