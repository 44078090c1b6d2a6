"""What no state of the ledger needs any more is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger import batch, history
from dask_sketch.jobs.ledger.backends import Place
from dask_sketch.jobs.ledger.manifest import Manifest, commit_name, commit_numbers, read_commit

KEEP_COMMITS = 3  # whoever reads one of these can read on
_FOLDERS = (batch.FOLDER, batch.TOTALS, history.RUNS_FOLDER, history.MODELS_FOLDER)


def collect(place: Place, current: Manifest, models_kept: Collection[str]) -> None:
    """Remove commits but the last few, and objects that none of these refers to.

    Only for who holds the lock: what another writer has not yet committed looks like garbage.

    Parameters
    ----------
    place, current
        The ledger and its state.
    models_kept
        Folders of models that some run refers to.

    Raises
    ------
    LedgerError
        If something could not be removed.
    """
    kept = {current.number: current}
    numbers = commit_numbers(place)
    for number in reversed(numbers):
        if current.oldest <= number < current.number and len(kept) < KEEP_COMMITS:
            with contextlib.suppress(LedgerError, FileNotFoundError):  # then it never was a state
                kept[number] = read_commit(place, number)
    # commits first: a state never refers to what is gone
    for number in numbers:
        if number not in kept:
            place.remove(commit_name(number))
    needed = set(models_kept).union(*(state.names() for state in kept.values()))
    for folder in _FOLDERS:
        for name in place.names(folder):
            if f"{folder}/{name}" not in needed:
                place.remove(f"{folder}/{name}")
