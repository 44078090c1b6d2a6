from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.places import ROWS, Place, rows_of, write_rows

from dask_sketch.sources.zarr_rows import ZarrRowReader


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger waits for the disk at every object; a loss of power is not tested."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def make_place(tmp_path: Path) -> Callable[..., Place]:
    def make(
        n_partitions: int = 10, more: str = "", name: str = "here", sample: int | None = None
    ) -> Place:
        place = Place(tmp_path / name, sample)
        place.folder.mkdir()
        write_rows(place.store, rows_of(ROWS * n_partitions))
        place.write(more)
        return place

    return make


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First rows of what was read of any store, chunk by chunk."""
    seen: list[int] = []
    inner = ZarrRowReader.__getitem__

    def recorded(self, index):
        rows = index[0]
        seen.extend(range(self._start + rows.start, self._start + rows.stop, ROWS))
        return inner(self, index)

    monkeypatch.setattr(ZarrRowReader, "__getitem__", recorded)
    return seen
