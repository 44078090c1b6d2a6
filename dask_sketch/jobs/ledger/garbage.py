"""Remove the objects that no state of a ledger needs any more."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import batch, history
from dask_sketch.jobs.ledger.backends import Backend
from dask_sketch.jobs.ledger.manifest import (
    PILOTS,
    Manifest,
    commit_name,
    commit_numbers,
    read_commit,
)
from dask_sketch.jobs.ledger.objects import is_object_name

KEEP_COMMITS = 3  # readers of one of these can continue to read
_FOLDERS = (batch.FOLDER, batch.TOTALS, history.RUNS_FOLDER, history.MODELS_FOLDER, PILOTS)


def collect(backend: Backend, current: Manifest, models_kept: Collection[str]) -> None:
    """Remove all but the last commits, and the objects that none of these refers to.

    Objects whose names no ledger makes are left alone.

    Only the holder of the lock may call this, because the uncommitted objects of another writer
    look like garbage.

    Parameters
    ----------
    backend
        Backend of the ledger.
    current
        State of the ledger.
    models_kept
        Folders of the models that the records of runs refer to.

    Raises
    ------
    LedgerError
        If an object could not be removed.
    """
    kept = {current.number: current}
    numbers = commit_numbers(backend)
    for number in reversed(numbers):
        if current.oldest <= number < current.number and len(kept) < KEEP_COMMITS:
            with contextlib.suppress(
                LedgerError, FileNotFoundError
            ):  # an incomplete commit was never a state
                kept[number] = read_commit(backend, number)
    # commits first, so that no state refers to a missing object
    for number in numbers:
        if number not in kept:
            backend.remove(commit_name(number))
    needed = set(models_kept).union(*(state.names() for state in kept.values()))
    for folder in _FOLDERS:
        for name in backend.names(folder):
            if f"{folder}/{name}" not in needed and is_object_name(f"{folder}/{name}"):
                backend.remove(f"{folder}/{name}")
