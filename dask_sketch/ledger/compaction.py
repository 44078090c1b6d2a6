"""Small batches are merged into larger ones, so that there are few after years of nights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from dask_sketch.ledger.batch import Batch

FAN = 8  # batches of about one size that become one


def mergeable(batches: Sequence[Batch], most: int) -> list[list[Batch]]:
    """Batches that should be merged with one another.

    Batches of one to 7 live members are of one size, those of 8 to 63 of the next, and so on; eight
    of one size are merged. So a partition is written anew once for each size: at most three times
    for batches of 500, and there are never more than some dozens of batches that are not full.

    Parameters
    ----------
    batches
        All that there are.
    most
        Members that a batch may have.

    Examples
    --------
    >>> from dask_sketch.ledger.group import Reference
    >>> sizes = [500, 1, 2, 1, 9, 1, 1, 3, 1, 1]
    >>> batches = [Batch(Reference(f"b{n}", 1, "0" * 64), n) for n in sizes]
    >>> [[batch.n_members for batch in group] for group in mergeable(batches, 500)]
    [[1, 2, 1, 1, 1, 3, 1, 1]]
    """
    by_size: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        if 2 * batch.n_live <= most:
            by_size[int(math.log(batch.n_live, FAN))].append(batch)
    groups = []
    for alike in by_size.values():
        if len(alike) < FAN:
            continue
        group: list[Batch] = []
        for batch in alike:
            if sum(one.n_live for one in group) + batch.n_live > most:
                groups.append(group)
                group = []
            group.append(batch)
        groups.append(group)
    return [group for group in groups if len(group) > 1]
