"""Random rows of partitions: choice of the rows, and their arrays in a batch.

The rows of a partition are chosen by its key and by their positions in it, so that they depend
neither on other partitions nor on the run that reads them. They are stored beside its sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import LedgerError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.sketching.row_sample import RowSample, RowSampling, default_size

HEADS = "sample_heads"  # array with a row for each partition
ROWS, VALUES = "sample_rows", "sample_values"  # arrays of all partitions, one after the other
LAYOUT = (
    "sample_heads: number of random rows of each partition, and threshold: they are all rows of "
    "the partition whose key is under it. sample_rows: these rows of the partitions, one partition "
    "after the other, by ascending key. sample_values: weight, importance and key of each row, as "
    "dask-sketch/sketch version 2 has them."
)
_KINDS = ("float32", "float64")
# Default number of rows of a partition: all partitions together have 1.5 times the rows of a
# sketch, within bounds for one partition.
_SURPLUS, _MIN_ROWS, _MAX_ROWS = 1.5, 1_000, 5_000
# Rows of many features are limited by their bytes, but not below a number.
_BYTES, _MIN_LONG_ROWS = 2**18, 100


def default_rows(n_features: int, n_partitions: int) -> int:
    """Default number of rows of each partition, from the number of partitions at the first run.

    Examples
    --------
    >>> [default_rows(12, n) for n in (1, 10, 1000)], default_rows(784, 1)
    ([5000, 3000, 1000], 100)
    """
    n_rows = int(_SURPLUS * default_size(n_features)) // max(n_partitions, 1)
    long = max(_BYTES // (4 * n_features), _MIN_LONG_ROWS)
    return min(max(n_rows, _MIN_ROWS), _MAX_ROWS, long)


def sampling_of(feature_map: FeatureMap, n_rows: int) -> RowSampling | None:
    """Choice of the rows of each partition; None for no rows.

    The variances that scale the importance of rows come from the pilot rows. They are rounded to
    powers of four, because they are kept when a partition is forgotten, whose rows may be among the
    pilot rows.

    Parameters
    ----------
    feature_map
        Feature map of the ledger.
    n_rows
        Maximum number of rows of each partition, ``>= 0``.

    Returns
    -------
    sampling
        Number of rows, seed and variances.
    """
    if not n_rows:
        return None
    pilot = feature_map.pilot
    if pilot is None:
        return RowSampling(n_rows, feature_map.seed)
    variance = np.zeros(feature_map.n_features)
    varies = pilot.variance > 0
    variance[varies] = 4.0 ** np.round(np.log2(pilot.variance[varies]) / 2.0)
    return RowSampling(n_rows, feature_map.seed, variance=tuple(map(float, variance)))


def to_json(sampling: RowSampling | None) -> dict[str, Any]:
    """Form of a choice of rows in the root of a ledger; empty for no rows."""
    if sampling is None:
        return {}
    return {"sample": {"rows": sampling.size, "variance": sampling.variance}}


def from_json(content: Mapping[str, Any], feature_map: FeatureMap) -> RowSampling | None:
    """Restore from :func:`to_json`; ``ValueError`` or ``TypeError`` for anything else."""
    if "sample" not in content:
        return None
    n_rows, variance = content["sample"]["rows"], content["sample"]["variance"]
    if not isinstance(n_rows, int) or n_rows < 1:
        raise ValueError(f"{n_rows!r} is not a number of rows")
    if variance is not None:
        values = np.array(variance, dtype=np.float64)
        if values.shape != (feature_map.n_features,) or not (np.isfinite(values).all()
                                                             and (values >= 0).all()):  # fmt: skip
            raise ValueError(f"{variance!r:.60} are not variances")
        variance = tuple(map(float, values))
    return RowSampling(n_rows, feature_map.seed, variance=variance)


def identity_of(key: str) -> tuple[int, ...]:
    """Numbers that identify the partition of a key in the choice of its rows.

    Examples
    --------
    >>> identity_of("data/[0:100]")
    (263935057, 935789456, 270812443, 2580838343)
    """
    digest = hashlib.sha256(key.encode()).digest()
    return tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4))


def total_size(sampling: RowSampling, n_features: int) -> int:
    """Maximum number of rows of the total: the default of a sketch, or more if a partition has."""
    return max(sampling.size, default_size(n_features))


def stack(samples: Sequence[RowSample | None], n_features: int) -> dict[str, NDArray[Any]]:
    """Arrays of the rows of some partitions; None for a partition without rows."""
    empty = RowSample.empty(n_features, 1)
    filled = [empty if sample is None else sample for sample in samples]
    values = [np.stack([each.row_weights, each.importance, each.keys], axis=1) for each in filled]
    return {
        HEADS: np.array([[len(each), each.threshold] for each in filled], dtype=np.float64),
        ROWS: np.concatenate([each.rows for each in filled]),
        VALUES: np.concatenate(values),
    }


def layout_attributes(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Attributes of a batch that describe its random rows; empty without rows."""
    if ROWS not in arrays:
        return {}
    rows = arrays[ROWS]
    return {"sample": {"rows": len(rows), "dtype": str(rows.dtype)}, "sample_layout": LAYOUT}


def shapes(
    attributes: Mapping[str, Any], n: int, n_features: int, max_rows: int, label: str
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the arrays of ``n`` partitions of at most ``max_rows`` rows each.

    Raises
    ------
    LedgerError
        If the attributes of the batch state no random rows, or impossible numbers of them.
    """
    try:
        n_rows, kind = attributes["sample"]["rows"], attributes["sample"]["dtype"]
    except (KeyError, TypeError) as error:
        raise LedgerError(f"{label} does not state its random rows: {error!r}.") from error
    if not isinstance(n_rows, int) or not 0 <= n_rows <= n * max_rows or kind not in _KINDS:
        raise LedgerError(
            f"{label} states {n_rows!r:.40} random rows of type {kind!r:.40}: {n} partitions have "
            f"at most {n * max_rows:,}."
        )
    return {
        HEADS: ((n, 2), "float64"),
        ROWS: ((n_rows, n_features), kind),
        VALUES: ((n_rows, 3), "float64"),
    }


def select(arrays: Mapping[str, NDArray[Any]], members: Iterable[int]) -> dict[str, NDArray[Any]]:
    """Arrays of some of the partitions; arrays of other names have one row for each partition."""
    wanted = list(members)
    selected = {
        name: values[wanted] for name, values in arrays.items() if name not in (ROWS, VALUES)
    }
    if ROWS in arrays:
        counts = arrays[HEADS][:, 0].astype(np.int64)
        ends = np.cumsum(counts)
        parts = [np.arange(ends[i] - counts[i], ends[i]) for i in wanted]
        rows = np.concatenate([np.empty(0, np.int64), *parts])
        selected |= {name: arrays[name][rows] for name in (ROWS, VALUES)}
    return selected


def unstack(
    arrays: Mapping[str, NDArray[Any]],
    members: Iterable[int],
    max_rows: int,
    size: int,
    label: str,
) -> list[RowSample]:
    """Restore the rows of some partitions.

    Parameters
    ----------
    arrays
        Arrays of a batch.
    members
        Numbers of the partitions in the batch.
    max_rows
        Maximum number of rows of each partition.
    size
        Maximum number of rows of a merge.
    label
        Name of the batch for messages.

    Raises
    ------
    LedgerError
        If the arrays cannot be random rows of partitions.
    """
    values, (numbers, thresholds) = arrays[VALUES], arrays[HEADS].T
    counts = np.nan_to_num(numbers, nan=-1.0).clip(-1, max_rows + 1).astype(np.int64)
    ends = np.cumsum(counts)
    possible = (counts == numbers) & (counts >= 0) & (counts <= max_rows)
    if not possible.all() or ends[-1] != len(values):
        raise LedgerError(f"{label} holds impossible numbers of random rows: it was edited.")
    samples = []
    for i in members:
        part = slice(ends[i] - counts[i], ends[i])
        weights, importance, keys = np.ascontiguousarray(values[part].T)
        sample = RowSample(
            arrays[ROWS][part].copy(), weights, importance, keys, float(thresholds[i]), size
        )
        if not sample.is_possible:
            raise LedgerError(f"{label} holds impossible random rows: it was edited or damaged.")
        samples.append(sample)
    return samples
