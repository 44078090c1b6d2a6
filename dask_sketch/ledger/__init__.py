"""Sketches of partitions on disk: nothing is read twice, nothing lost, nothing counted twice."""

from dask_sketch.ledger.ledger import Ledger, create_ledger, open_ledger
from dask_sketch.ledger.lock import Lock
from dask_sketch.ledger.partition import Changes, Entry, Partition
from dask_sketch.ledger.records import RunRecord
from dask_sketch.ledger.verification import Verification

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
