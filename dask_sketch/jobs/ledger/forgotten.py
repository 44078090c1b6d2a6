"""Rows that are forgotten: partitions that hold any of them are recognised under every key."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

_RANGE = re.compile(r"(.*)\[([0-9]+):([0-9]+)\]", re.DOTALL)
# fingerprints of stored objects; those of other origin need not differ between partitions
_DIGEST = re.compile(r"(auto|checksum):[0-9a-f]{32}")


def file_of(key: str) -> str:
    """File or array of a key, without the range of rows or row groups.

    Examples
    --------
    >>> file_of("log/a.parquet[0:4]"), file_of("log/a.parquet")
    ('log/a.parquet', 'log/a.parquet')
    """
    return _range_of(key)[0]


def _range_of(key: str) -> tuple[str, int, float]:
    """File of a key, and its first row or row group and the one after the last."""
    found = _RANGE.fullmatch(key)
    return (found[1], int(found[2]), int(found[3])) if found else (key, 0, float("inf"))


class Rows:
    """Rows of some partitions, each described by its key and its fingerprints.

    A file may be divided otherwise than before, and a source may get another name. Partitions hold
    the same rows if their ranges of one file overlap, or if they have the same fingerprint.

    Parameters
    ----------
    partitions
        Fingerprints of each partition, by its key.

    Examples
    --------
    >>> rows = Rows({"log/a.parquet[2:4]": ()})
    >>> rows.overlap("log/a.parquet"), rows.overlap("log/a.parquet[0:2]")
    (True, False)
    """

    def __init__(self, partitions: Mapping[str, Iterable[str]]):
        ranges: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._fingerprints: set[str] = set()
        for key, fingerprints in partitions.items():
            file, start, stop = _range_of(key)
            ranges[file].append((start, stop))
            self._fingerprints |= {one for one in fingerprints if _DIGEST.fullmatch(one)}
        # of each file: the sorted starts, and the largest stop of the ranges up to each of them
        self._ranges: dict[str, tuple[list[int], list[float]]] = {}
        for file, those in ranges.items():
            starts, stops = zip(*sorted(those), strict=True)
            self._ranges[file] = list(starts), list(accumulate(stops, max))

    def overlap(self, key: str, *fingerprints: str) -> bool:
        """Whether a partition, with its fingerprints if they are known, holds any of the rows."""
        file, start, stop = _range_of(key)
        starts, stops = self._ranges.get(file, ((), ()))
        before = bisect_left(starts, stop)  # ranges that start before this one stops
        return not self._fingerprints.isdisjoint(fingerprints) or (
            before > 0 and stops[before - 1] > start
        )
