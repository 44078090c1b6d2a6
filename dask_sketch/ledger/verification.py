"""Sketches made again, and compared with those that are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_sketch.sketching import Sketch, merge

if TYPE_CHECKING:
    from dask_sketch.ledger.reader import LedgerReader

AT_ONCE = 256  # partitions whose sketches are held


@dataclass(frozen=True)
class Verification:
    """What :meth:`Ledger.verify` found.

    Attributes
    ----------
    checked
        Keys whose sketches were made again.
    differing
        Keys of those that came out otherwise.
    missing
        Keys that could not be sketched again.
    total_differs
        Whether the stored total is not the sum of what is stored; ``None`` where only a share was
        looked at.
    """

    checked: tuple[str, ...]
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    total_differs: bool | None

    @property
    def is_sound(self) -> bool:
        """Whether all that was looked at is as it should be."""
        return not (self.differing or self.missing or self.total_differs)


def verify(
    ledger: LedgerReader,
    keys: Sequence[str],
    resketch: Callable[[list[str]], Mapping[str, Sketch]],
) -> Verification:
    """Compare the stored sketches of ``keys`` with new ones."""
    whole = len(keys) == len(ledger.entries)
    total = Sketch.empty(ledger.feature_map)
    checked, differing, missing = [], [], []
    for start in range(0, len(keys), AT_ONCE):
        part = list(keys[start : start + AT_ONCE])
        stored = dict(ledger.sketches(part))
        again = resketch(part)
        total = merge([total, *stored.values()])
        for key in part:
            if key not in again:
                missing.append(key)
                continue
            checked.append(key)
            if not stored[key].identical(again[key]):
                differing.append(key)
    return Verification(
        tuple(checked),
        tuple(differing),
        tuple(missing),
        not total.identical(ledger.total()) if whole else None,
    )
