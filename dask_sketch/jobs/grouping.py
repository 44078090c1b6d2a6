"""Which partitions belong together, and their sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask_sketch.errors import JobError

if TYPE_CHECKING:
    from dask_sketch.jobs.settings import GroupsTable

MOST_KEY = 512  # characters of a key that a pattern is matched to; its time is bounded for these


def group_keys(table: GroupsTable, keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys of partitions, sorted, by the name of their group; those in none are left out.

    Raises
    ------
    JobError
        If there are more groups than the job file allows.

    Examples
    --------
    >>> from dask_sketch.jobs.checks import pattern
    >>> from dask_sketch.jobs.settings import GroupsTable
    >>> table = GroupsTable(pattern=pattern("[^/]+/([a-z]+)-"))
    >>> group_keys(table, ["x/b-1", "x/a-2", "x/a-1", "x/9"])
    {'a': ['x/a-1', 'x/a-2'], 'b': ['x/b-1']}
    """
    found: dict[str, list[str]] = defaultdict(list)
    for key in sorted(keys):
        name = _group(table, key)
        if name:
            found[name].append(key)
    if len(found) > table.most:
        raise JobError(
            f"groups: there are {len(found):,} of them, and groups.most allows {table.most}: "
            "choose a coarser pattern, or raise it."
        )
    return dict(sorted(found.items()))


def _group(table: GroupsTable, key: str) -> str | None:
    if table.pattern is None:
        return key.partition("/")[0]
    match = table.pattern.match(key[:MOST_KEY])
    if match is None:
        return None
    pattern = match.re
    if "group" in pattern.groupindex:
        return match["group"]
    return match[1] if pattern.groups else match[0]
