"""Tables of other libraries as samples: objects that export Arrow data, and Arrow datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_sketch.errors import ChunkError, InputError, install_command
from dask_sketch.sources.dataframe import column_or_values, frame_samples, pandas_samples
from dask_sketch.sources.samples import Samples

if TYPE_CHECKING:
    import pandas as pd


def is_arrow(x: Any) -> bool:
    """Whether an object exports Arrow data in memory through the PyCapsule interface.

    Readers of record batches also do, but can be read only once: they are streams.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"height": [1.0, 2.0]})
    >>> is_arrow(table), is_arrow(table.to_reader())
    (True, False)
    """
    exports = hasattr(x, "__arrow_c_stream__") or hasattr(x, "__arrow_c_array__")
    return exports and not hasattr(x, "__next__")


def arrow_samples(x: Any, **given: Any) -> Samples:
    """Make samples of a table of Arrow, Polars, DuckDB or any library that exports Arrow data.

    Parameters
    ----------
    x
        Table, record batch, frame or relation. The result of a relation is held in memory.
    given
        Arguments of :func:`~dask_sketch.sources.dataframe.pandas_samples`.

    Raises
    ------
    InputError
        If pyarrow is missing, the data has no columns, or a column is not numeric.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            f"x of type {type(x).__module__}.{type(x).__name__} needs pyarrow: "
            f"{install_command('pyarrow')}.",
            parameter="x",
        ) from error
    try:
        table = pa.table(x) if hasattr(x, "__arrow_c_stream__") else pa.table([x])
    except (ValueError, TypeError, pa.ArrowException) as error:  # a column without a table
        raise InputError(
            f"x of type {type(x).__module__}.{type(x).__name__} is not a table ({error}): give a "
            "table with one column for each feature.",
            parameter="x",
        ) from error
    columns = given.get("columns")
    if columns is not None:  # others may be long texts
        beside = {given[name] for name in ("weights", "groups") if isinstance(given.get(name), str)}
        needed, names = {*columns, *beside}, table.column_names
        # otherwise the error lists all columns
        if needed <= set(names) and len(set(names)) == len(names):
            table = table.select(list(needed))
    return pandas_samples(to_frame(table).reset_index(drop=True), label="the table", **given)


def is_arrow_dataset(x: Any) -> bool:
    """Whether an object is a dataset of ``pyarrow.dataset``."""
    return type(x).__module__.startswith("pyarrow._dataset") and hasattr(x, "get_fragments")


def arrow_dataset_samples(
    x: Any,
    *,
    weights: Any = None,
    groups: Any = None,
    columns: list[str] | None = None,
    categories: Any = None,
) -> Samples:
    """Make samples of a dataset of ``pyarrow.dataset``: one task for each file or row group.

    Parameters
    ----------
    x
        Dataset without a filter. Only the columns needed are read.
    weights, groups
        Names of the columns of weights and of labels, or values. Keys of partitioned folders are
        columns.
    columns
        Columns that are features; all but the weights and the labels by default.
    categories
        Argument of :func:`dask_sketch.open_samples`.

    Raises
    ------
    InputError
        If the dataset has a filter or no files, or a column is missing or not numeric.
    """
    import dask.dataframe as dd

    try:
        fragments = [part for file in x.get_fragments() for part in _parts(file)]
    except ValueError as error:
        raise InputError(
            f"x of type {type(x).__name__} cannot be divided into files ({error}): give the "
            "dataset without a filter, or sketch the stream of its batches, "
            "x.scanner().to_reader().",
            parameter="x",
        ) from error
    if not fragments:
        raise InputError(
            f"x of type {type(x).__name__} has no files. Check its path.", parameter="x"
        )
    meta = empty_frame(x.schema)
    weight, weights = column_or_values(weights, meta.columns, "weights")
    group, groups = column_or_values(groups, meta.columns, "groups")
    frame = dd.from_map(_read_fragment, fragments, schema=x.schema, meta=meta)
    return frame_samples(
        frame, "the Arrow dataset", weight=weight, weights=weights, group=group, groups=groups,
        columns=columns, categories=categories,
    )  # fmt: skip


def _read_fragment(fragment: Any, schema: Any, columns: list[str] | None = None) -> pd.DataFrame:
    """Read columns of one part of a dataset; Dask passes those that are needed."""
    try:
        return to_frame(fragment.to_table(schema=schema, columns=columns), self_destruct=True)
    except Exception as error:  # decoders raise errors of many kinds
        raise ChunkError(
            f"{getattr(fragment, 'path', fragment)} could not be read: {type(error).__name__}: "
            f"{error}. Restore the file, or leave it out."
        ) from error


def _parts(fragment: Any) -> list[Any]:
    """Row groups of a Parquet file, or a file of another format as a whole."""
    if not hasattr(fragment, "split_by_row_group"):
        return [fragment]
    return list(fragment.split_by_row_group()) or [fragment]


def to_frame(table: Any, *, self_destruct: bool = False) -> pd.DataFrame:
    """Convert an Arrow table to pandas, with decimals as float64 and masks of missing values.

    Booleans, and integers with missing values, have a mask: as float64, which pyarrow would make of
    these integers, identifiers of 2**53 or more would be equal.

    Parameters
    ----------
    table
        Table of pyarrow.
    self_destruct
        Whether the memory of each column is freed as soon as the column is converted. The table
        cannot be used afterwards.
    """
    import pandas as pd
    import pyarrow as pa

    table = _with_floats(table)
    integers = {
        field.name: (field.type, table.column(k).null_count)
        for k, field in enumerate(table.schema)
        if pa.types.is_integer(field.type)
    }
    masked = {kind for kind, n_missing in integers.values() if n_missing}
    # booleans with missing values would become Python objects
    kinds = {pa.bool_(): pd.BooleanDtype()}
    kinds |= {kind: _masked_type(str(kind)) for kind in masked}
    frame: pd.DataFrame = table.to_pandas(
        types_mapper=kinds.get, split_blocks=True, self_destruct=self_destruct
    )
    # the type of a column without missing values does not depend on other columns
    complete = {name: str(kind) for name, (kind, n) in integers.items() if kind in masked and not n}
    return frame.astype({name: kind for name, kind in complete.items() if name in frame})


def _masked_type(name: str) -> Any:
    """Type of pandas for integers with missing values, such as Int64 for int64."""
    import pandas as pd

    return pd.api.types.pandas_dtype(name.replace("int", "Int").replace("uI", "UI"))


def empty_frame(schema: Any) -> pd.DataFrame:
    """Frame without rows that has the columns of a schema, but no index of several columns."""
    frame: pd.DataFrame = _with_floats(schema.empty_table()).to_pandas()
    return frame.reset_index(drop=True)


def _with_floats(table: Any) -> Any:
    """Convert decimals, and columns without any value, to float64, and decode run-end encoding."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for k, field in enumerate(table.schema):
        column = table.column(k)
        if pa.types.is_run_end_encoded(field.type):
            column = pc.run_end_decode(column)
        if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        if column.type != field.type:
            table = table.set_column(k, field.name, column)
    return table
