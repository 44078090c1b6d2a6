from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.places import ROWS, Place, rows_of, write_rows


@pytest.fixture
def make_place(tmp_path: Path) -> Callable[..., Place]:
    def make(n_partitions: int = 10, more: str = "", name: str = "here") -> Place:
        place = Place(tmp_path / name)
        place.folder.mkdir()
        write_rows(place.store, rows_of(ROWS * n_partitions))
        place.write(more)
        return place

    return make
