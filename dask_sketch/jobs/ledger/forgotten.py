"""Recognise partitions with forgotten rows, whatever their keys."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

_RANGE = re.compile(r"(.*)\[([0-9]+):([0-9]+)\]", re.DOTALL)
# fingerprints of stored objects; other fingerprints may be equal for different partitions
_DIGEST = re.compile(r"(auto|checksum):[0-9a-f]{32}")
_KEEP = 100  # earlier fingerprints of a forgotten partition that are kept


def file_of(key: str) -> str:
    """File or array of a key, without the range of rows or row groups.

    Examples
    --------
    >>> file_of("log/a.parquet[0:4]"), file_of("log/a.parquet")
    ('log/a.parquet', 'log/a.parquet')
    """
    return _range_of(key)[0]


def _range_of(key: str) -> tuple[str, int, float]:
    """File of a key, its first row or row group, and the row or row group after the last."""
    match = _RANGE.fullmatch(key)
    return (match[1], int(match[2]), int(match[3])) if match else (key, 0, float("inf"))


class RowRanges:
    """Rows of some partitions, which are described by their keys and fingerprints.

    The partitions of a file may change, and a source may get another name. Partitions have common
    rows if their ranges of one file overlap, or if they have the same fingerprint.

    Parameters
    ----------
    partitions
        Fingerprints of each partition, by its key.

    Examples
    --------
    >>> rows = RowRanges({"log/a.parquet[2:4]": ()})
    >>> rows.overlap("log/a.parquet"), rows.overlap("log/a.parquet[0:2]")
    (True, False)
    """

    def __init__(self, partitions: Mapping[str, Iterable[str]]):
        ranges: dict[str, list[tuple[int, float, str]]] = defaultdict(list)
        self._holders: dict[str, set[str]] = defaultdict(set)  # keys, by fingerprint
        for key, fingerprints in partitions.items():
            file, start, stop = _range_of(key)
            ranges[file].append((start, stop, key))
            for fingerprint in filter(_DIGEST.fullmatch, fingerprints):
                self._holders[fingerprint].add(key)
        # for each file: sorted starts, the largest stop of the ranges up to each start, and ranges
        self._ranges: dict[str, tuple[list[int], list[float], list[tuple[int, float, str]]]] = {}
        for file, file_ranges in ranges.items():
            file_ranges.sort()
            starts, stops, _ = zip(*file_ranges, strict=True)
            self._ranges[file] = list(starts), list(accumulate(stops, max)), file_ranges

    def overlap(self, key: str, *fingerprints: str) -> bool:
        """Whether a partition, with its fingerprints if they are known, holds any of the rows."""
        file, start, stop = _range_of(key)
        starts, stops, _ = self._ranges.get(file, ((), (), ()))
        before = bisect_left(starts, stop)  # ranges that start before this one stops
        return any(fingerprint in self._holders for fingerprint in fingerprints) or (
            before > 0 and stops[before - 1] > start
        )

    def overlapping(self, key: str, fingerprint: str) -> set[str]:
        """Keys of the partitions whose rows a partition holds."""
        file, start, stop = _range_of(key)
        starts, stops, file_ranges = self._ranges.get(file, ((), (), ()))
        overlapping_keys = set(self._holders.get(fingerprint, ()))
        before = bisect_left(starts, stop)
        while before > 0 and stops[before - 1] > start:
            before -= 1
            if file_ranges[before][1] > start:
                overlapping_keys.add(file_ranges[before][2])
        return overlapping_keys


def updated_identities(
    forgotten: Mapping[str, Iterable[str]], partitions: Iterable[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Identities by which forgotten rows will be recognised.

    The fingerprint of a partition with forgotten rows is added to the forgotten partitions of its
    file. If a partition is recognised by its fingerprint alone, the file has another name now, and
    the same range of this file is forgotten too. So later changes are compared with the newest
    identity.

    Parameters
    ----------
    forgotten
        Fingerprints of the forgotten partitions, by key.
    partitions
        Keys and fingerprints of present partitions.

    Returns
    -------
    changed
        Fingerprints of the forgotten partitions that are new or have other fingerprints, by key.

    Examples
    --------
    >>> one, two = "auto:" + 32 * "1", "auto:" + 32 * "2"
    >>> found = updated_identities({"log/a": (one,)}, [("log/a[0:4]", two)])
    >>> found == {"log/a": (one, two)}
    True
    >>> updated_identities(found, [("other/a[0:4]", two)]) == {"other/a": (two,)}
    True
    """
    known = {key: tuple(fingerprints) for key, fingerprints in forgotten.items()}
    if not known:
        return {}
    present = [one for one in partitions if _DIGEST.fullmatch(one[1])]
    met: dict[str, dict[str, None]] = defaultdict(dict)  # ordered fingerprints, by key
    size = -1
    while size != sum(map(len, met.values())):  # a new name may lead to further ones
        size = sum(map(len, met.values()))
        names = {**known, **met}
        rows = RowRanges({key: (*known.get(key, ()), *met.get(key, ())) for key in names})
        for key, fingerprint in present:
            file = file_of(key)
            for one in rows.overlapping(key, fingerprint):
                met[file + one.removeprefix(file_of(one))][fingerprint] = None
    changed = {}
    for key, fingerprints in met.items():
        before = known.get(key, ())
        if not set(before).issuperset(fingerprints):
            earlier = [one for one in before if one not in fingerprints]
            changed[key] = (*earlier[-_KEEP:], *fingerprints)
    return changed


def same_rows(forgotten: Mapping[str, Iterable[str]], keys: Iterable[str]) -> set[str]:
    """Keys, and all other keys under which the same forgotten rows are known.

    Examples
    --------
    >>> one = "auto:" + 32 * "1"
    >>> sorted(same_rows({"log/a": (one,), "other/a": (one,), "log/b": ()}, ["log/a"]))
    ['log/a', 'other/a']
    """
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)
    marks = {
        key: [
            (key.removeprefix(file_of(key)), mark)
            for mark in fingerprints
            if _DIGEST.fullmatch(mark)
        ]
        for key, fingerprints in forgotten.items()
    }
    for key, key_marks in marks.items():
        for mark in key_marks:
            holders[mark].add(key)
    same = set(keys)
    todo = list(same)
    while todo:
        for mark in marks.get(todo.pop(), ()):
            todo += holders[mark] - same
            same |= holders[mark]
    return same
