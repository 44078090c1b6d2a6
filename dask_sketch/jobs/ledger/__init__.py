"""Ledger of sketches of partitions on disk, with exact totals and atomic commits."""

from __future__ import annotations

from dask_sketch.jobs.ledger.history import RunRecord
from dask_sketch.jobs.ledger.ledger import Ledger, create_ledger, open_ledger
from dask_sketch.jobs.ledger.lock import Lock
from dask_sketch.jobs.ledger.partitions import Changes, Entry, Partition
from dask_sketch.jobs.ledger.reader import Verification

__all__ = [
    "Changes",
    "Entry",
    "Ledger",
    "Lock",
    "Partition",
    "RunRecord",
    "Verification",
    "create_ledger",
    "open_ledger",
]
