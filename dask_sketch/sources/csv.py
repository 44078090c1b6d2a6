"""CSV files as samples."""

from __future__ import annotations

import re
from contextlib import suppress
from io import BytesIO
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.errors import ChunkError, InputError
from dask_sketch.sources.dataframe import column_or_values, frame_samples
from dask_sketch.sources.samples import Samples, target_bytes
from dask_sketch.validation.categories import Categories, Levels
from dask_sketch.validation.tables import first_few, require_columns, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

_END_OF_LINE = re.compile(rb"[\r\n]")
_SURPLUS = "values beyond the names"
_SAMPLE_ROWS = 10_000  # lines that decide how labels are written


def csv_samples(
    path: str,
    *,
    weights: Any = None,
    groups: Any = None,
    columns: Any = None,
    chunk_size: str | int | None = None,
    storage_options: dict[str, Any] | None = None,
    categories: Any = None,
) -> Samples:
    """Make samples of CSV files, whose first line has the names of the columns.

    Integers are read as float64, since later lines may have decimals or missing values. Labels
    are integers, real numbers or booleans if all in the first lines are written as Python writes
    them, so that different text is never one label; otherwise, as ``007`` is, they are text. Later
    labels must be written the same way. Cells of columns with stated levels are these levels.

    Parameters
    ----------
    path
        Path, URL or glob.
    weights, groups
        Names of the columns of weights and of labels, or arrays.
    columns
        Columns that are features.
    chunk_size
        Target size of one task in bytes.
    storage_options
        Options of the file system of a URL.
    categories
        Argument of :func:`dask_sketch.open_samples`.

    Raises
    ------
    InputError
        If the first line has numbers in place of names, no row follows, or the first lines cannot
        be read.
    """
    import pandas.api.types as kinds
    from dask.dataframe.io.csv import make_reader

    exact = {groups} if isinstance(groups, str) else set()
    if isinstance(categories, (dict, list, tuple)):
        exact |= {name for name in categories if isinstance(name, str)}
    options: dict[str, Any] = {
        "blocksize": "default" if chunk_size is None else target_bytes(chunk_size),
        "storage_options": storage_options,
        "index_col": False,
        "label": path,
        "exact": frozenset(exact),
    }
    if exact:  # more lines, which decide how labels are written
        options["sample_rows"] = _SAMPLE_ROWS
    read = make_reader(read_block, "read_csv", "CSV")
    frame = read(path, **options)
    _require_names(list(frame.columns), path)
    weight, weights = column_or_values(weights, frame.columns, "weights")
    group, groups = column_or_values(groups, frame.columns, "groups")
    if columns is not None:
        require_columns(columns, list(frame.columns), path)
        options["usecols"] = list(dict.fromkeys(n for n in [*columns, weight, group] if n))
    expected = {name: str(kind) for name, kind in frame.dtypes.items()}
    features = [name for name in frame.columns if name not in (weight, group)]
    levels = _stated_levels(categories, features if columns is None else columns)
    numeric = any(kinds.is_numeric_dtype(kind) for kind in frame.dtypes)
    if not numeric and not len(frame.partitions[0]):  # a file of an empty night has no rows
        raise InputError(f"x={path!r} has no rows under its first line: give files with rows.")
    expected |= dict.fromkeys(levels, "object")
    frame = read(path, expected=expected, levels=levels, **options)
    return frame_samples(
        frame, path, weight=weight, weights=weights, group=group, groups=groups, columns=columns,
        categories=categories,
    )  # fmt: skip


def read_block(
    source: BytesIO,
    *,
    label: str,
    exact: frozenset[str] = frozenset(),
    expected: Mapping[str, str] | None = None,
    levels: Mapping[str, Levels] | None = None,
    usecols: Any = None,
    **options: Any,
) -> pd.DataFrame:
    """Read a block of lines that begins with the names of the columns.

    Parameters
    ----------
    source
        Names of the columns in the first line, and rows in the others.
    label
        Name of the file for messages.
    exact
        Columns of labels and of levels.
    expected
        Types of all columns in the first lines of the first file.
    levels
        Levels of columns where they are stated.
    usecols
        Names of the columns to read; all by default.
    options
        Options of :func:`pandas.read_csv`.

    Raises
    ------
    ChunkError
        If the names differ from the first file, a row has more values than there are names, or a
        value is not of the type of its column.
    """
    import pandas as pd

    try:
        text = source.read()
        first = _END_OF_LINE.split(text, maxsplit=1)[0]
        names = list(pd.read_csv(BytesIO(first), nrows=0, index_col=False).columns)
    except Exception as error:  # the parser fails in many ways
        raise _unreadable(label, error) from error
    if expected is not None and names != list(expected):
        names_here, first_file = (
            first_few(shorten(str(name), 50) for name in each) for each in (names, expected)
        )
        raise ChunkError(
            f"{label} could not be read: a file has the names {names_here} in its first line, "
            f"where the first file has {first_file}. Give the files the same names in the same "
            "order, or sketch them one at a time and add the sketches."
        )
    try:
        # one more name: pandas would take the first of too many values as an index
        source = BytesIO(first + f',"{_SURPLUS}"'.encode() + text[len(first) :])
        chosen = names if usecols is None else list(usecols)
        levels = {} if levels is None else levels
        as_text = [name for name in chosen if name in exact or name in levels]
        texts = dict.fromkeys(as_text, str)
        frame = pd.read_csv(source, usecols=[*chosen, _SURPLUS], dtype=texts, **options)
    except Exception as error:
        raise _unreadable(label, error) from error
    surplus = frame.pop(_SURPLUS)
    if surplus.notna().any():
        row = _row_text(frame, int(np.flatnonzero(surplus.notna())[0]), surplus)
        raise ChunkError(
            f"{label} could not be read: the row {row} has more values than the "
            f"{len(names)} names in the first line. Correct the file."
        )
    for name in as_text:
        if name in levels:
            frame[name] = _as_levels(frame[name], levels[name], label)
        else:
            kind = None if expected is None else expected[name]
            frame[name] = _as_labels(frame[name], kind, label)
    for name, dtype in frame.dtypes.items():
        if name not in as_text and pd.api.types.is_integer_dtype(dtype):
            frame[name] = frame[name].astype(np.float64)
    if expected is not None:
        _require_types(frame, expected, label)
    return frame[chosen]


def _stated_levels(categories: Any, columns: Sequence[str]) -> dict[str, Levels]:
    """Levels of columns, where they are stated."""
    if isinstance(categories, Categories):
        return {str(name): levels for name, levels in categories.of_columns(columns).items()}
    if not isinstance(categories, dict):
        return {}
    return {name: tuple(levels) for name, levels in categories.items() if levels is not None}


def _as_levels(cells: pd.Series[Any], levels: Levels, label: str) -> Any:
    """Convert cells to numbers or booleans that are levels; levels of text need no conversion."""
    kinds = set(map(type, levels))
    if str in kinds:
        return cells

    def level_of(cell: str) -> Any:
        for kind in (int, float):
            with suppress(ValueError):
                return kind(cell)
        return {"true": True, "false": False}.get(cell.strip().lower())

    def is_level(cell: str) -> bool:
        return level_of(cell) in levels

    is_large = any(isinstance(level, int) and level >= 2**63 for level in levels)
    integers = "UInt64" if is_large else "Int64"
    kind = "boolean" if kinds == {bool} else integers if kinds == {int} else "Float64"
    expected = f"the levels {str(levels)[:80]}"
    return _convert(cells, kind, level_of, is_level, expected, label)


def _as_labels(cells: pd.Series[Any], kind: str | None, label: str) -> Any:
    """Convert cells to labels of a type that keeps different cells apart.

    This is the type of the first lines if ``kind`` is given, else the first type that all cells
    are written in; cells that fit no type stay text.

    Real numbers such as 1 and 1.0 are the same label.
    """
    distinct = cells.dropna().unique()
    for name, (convert, is_own) in _LABELS.items():
        if name == kind or (kind is None and len(distinct) and all(map(is_own, distinct))):
            return _convert(cells, name, convert, is_own, f"{name} in the first lines", label)
    return cells


def _convert(
    cells: pd.Series[Any],
    kind: Any,
    convert: Callable[[str], Any],
    is_own: Callable[[str], bool],
    expected: str,
    label: str,
) -> Any:
    """Convert text to an array of pandas with a mask, each distinct cell once."""
    import pandas as pd

    codes, uniques = pd.factorize(cells)
    wrong = [cell for cell in uniques if not is_own(cell)]
    if wrong:
        raise ChunkError(
            f"{label} could not be read: column {str(cells.name)!r} has {expected}, and "
            f"{str(wrong[0])[:50]!r} elsewhere. Correct the file; or, for labels, give "
            f"dask.dataframe.read_csv(path, dtype={{{str(cells.name)!r}: str}}), which reads text."
        )
    return pd.array([convert(cell) for cell in uniques], dtype=kind).take(codes, allow_fill=True)


def _is_integer(cell: str) -> bool:
    with suppress(ValueError):
        return str(int(cell)) == cell.strip() and -(2**63) <= int(cell) < 2**63
    return False


def _is_real(cell: str) -> bool:
    with suppress(ValueError):
        return repr(float(cell)) in (cell.strip(), f"{cell.strip()}.0")
    return False


# Types of labels: the conversion from text, and whether no other text is this label.
_LABELS: dict[str, tuple[Callable[[str], Any], Callable[[str], bool]]] = {
    "Int64": (int, _is_integer),
    "Float64": (float, _is_real),
    "boolean": ("True".__eq__, ("True", "False").__contains__),
}


def _unreadable(label: str, error: Exception) -> ChunkError:
    detail = " ".join(str(error).split())
    return ChunkError(
        f"{label} could not be read: {type(error).__name__}: {detail}. Correct the file: each "
        "line must have one value for each name in the first line."
    )


def _row_text(frame: pd.DataFrame, row: int, *more: pd.Series[Any]) -> str:
    """Values of a row as text; only the first few are shown."""
    values = [*frame.iloc[row].tolist(), *(column.iloc[row] for column in more)]
    return first_few(f"{value:g}" if isinstance(value, Real) else value for value in values)


def _require_names(names: list[str], path: str) -> None:
    """Raise InputError for a file whose first line has numbers, which would be taken as names."""

    def is_number(name: str) -> bool:
        try:
            float(name)
        except ValueError:
            return False
        return True

    if all(is_number(name) for name in names):
        raise InputError(
            f"x={path!r} has names in its first line that are numbers, {', '.join(names[:4])}: "
            "write a line of names above them, or pass pandas.read_csv(path, header=None) if the "
            "data fits in memory.",
            parameter="x",
        )


def _require_types(frame: pd.DataFrame, expected: Mapping[str, str], label: str) -> None:
    """Raise ChunkError for values of another type than the values of the first lines."""
    import pandas as pd

    for name, kind in frame.dtypes.items():
        first = expected.get(str(name), str(kind))
        if str(kind) == first or first not in ("float64", "int64", "uint64", "bool"):
            continue  # text takes all values
        column = frame[name]
        wrong = column.notna()
        if not pd.api.types.is_numeric_dtype(kind):
            wrong &= pd.to_numeric(column, errors="coerce").isna()
        examples = column[wrong if wrong.any() else column.notna()]
        example = f", such as {str(examples.iloc[0])[:50]!r}" if len(examples) else ""
        raise ChunkError(
            f"{label} could not be read: column {str(name)!r} has {first} in the first lines, and "
            f"{kind} in later ones{example}. Correct the file, or choose other columns."
        )
