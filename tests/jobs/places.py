"""Small jobs over Zarr stores of tiny chunks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dask_sketch import Sketch, merge, partial_sketch
from dask_sketch.diagnostics.report_figures import Picture
from dask_sketch.jobs.job_file import read_job
from dask_sketch.jobs.ledger import Ledger
from dask_sketch.jobs.open import ledger_of
from dask_sketch.jobs.outcome import Outcome
from dask_sketch.jobs.run import run_job

ROWS = 20  # of a partition
N_FEATURES = 2
CHUNK_BYTES = ROWS * N_FEATURES * 4


def rows_of(n: int, seed: int = 0, shift: float = 0.0) -> np.ndarray:
    """Rows of two clusters, float32, shape (n, 2)."""
    rng = np.random.default_rng(seed)
    centres = np.where(rng.random((n, 1)) < 0.4, 4.0, -4.0)
    return (rng.normal(size=(n, N_FEATURES)) + centres + shift).astype("f4")


def answers_in(page: Path) -> dict[str, str]:
    """Answers of a report, by the last word of their question; those to act on begin with ``!``."""
    text = page.read_text()
    (table,) = re.findall(r'<table class="answers">.*?</table>', text, re.DOTALL)
    assert text.index(table) < text.index("<h2>Drift") < text.index('role="img"')
    rows = re.findall(r"<tr(.*?)><th[^>]*>([^<]*)</th><td>(.*?)</td>", table)
    return {
        question.split()[-1].rstrip("?"): "!" * bool(strong) + re.sub("<[^>]+>", "", answer)
        for strong, question, answer in rows
    }


def draw_nothing(*subjects: Any) -> list[Picture]:
    """Pictures of a report, without their drawings."""
    *_, drawings = subjects
    titles = ["Nothing", *(one.title for one in drawings)]
    return [Picture(title, "An empty picture.", "<svg></svg>") for title in titles]


def write_rows(path: Path, rows: np.ndarray) -> zarr.Array:
    store = zarr.create_array(
        str(path),
        shape=rows.shape,
        chunks=(ROWS, rows.shape[1]),
        dtype="float32",
        compressors=None,  # so that a change need not change the size
        overwrite=True,
    )
    store[:] = rows
    return store


@dataclass
class Place:
    """A folder with a store `x.zarr` and a job file."""

    folder: Path
    sample: int | None = None  # random rows of each partition

    @property
    def file(self) -> Path:
        return self.folder / "job.toml"

    @property
    def store(self) -> Path:
        return self.folder / "x.zarr"

    def write(self, more: str = "", *, sources: str | None = None, map_: str = "") -> None:
        one = f'[[sources]]\npath = "x.zarr"\nchunk_size = {CHUNK_BYTES}\n'
        self.file.write_text(
            '[job]\nname = "nightly"\nledger = "ledger.zarr"\n'
            + ("" if self.sample is None else f"sample = {self.sample}\n")
            + (one if sources is None else sources)
            + f"[feature_map]\n{map_ or 'n_components = 2'}\n{more}"
        )

    def run(self) -> Outcome:
        return run_job(self.file)

    def ledger(self) -> Ledger:
        found = ledger_of(read_job(self.file))
        assert found is not None
        return found

    def append(self, rows: np.ndarray) -> None:
        store = zarr.open_array(str(self.store), mode="r+")
        store.append(rows)

    def scratch(self, *leave_out: int) -> Sketch:
        """Sketch of all rows of `x.zarr` in one go, without those of some partitions."""
        store = zarr.open_array(str(self.store), mode="r")
        numbers = [i for i in range(-(-store.shape[0] // ROWS)) if i not in leave_out]
        rows = np.concatenate([store[ROWS * i : ROWS * (i + 1)] for i in numbers])
        return partial_sketch(rows, self.ledger().feature_map)

    def require_whole(self) -> None:
        """The total is the sum of what the ledger holds, and each partition is there once."""
        ledger = self.ledger()
        keys = list(ledger.entries)
        assert ledger.total().identical(
            merge([Sketch.empty(ledger.feature_map), *(s for _, s in ledger.sketches(keys))])
        )


def days(place: Place, n_rows: int, **more: int) -> None:
    """Parquet files `days/<day>.parquet` of a job, with a number of rows."""
    import pandas as pd

    (place.folder / "days").mkdir(exist_ok=True)
    for name, seed in more.items():
        frame = pd.DataFrame(rows_of(n_rows, seed=seed), columns=["a", "b"]).astype(float)
        frame.to_parquet(place.folder / f"days/{name}.parquet", row_group_size=100)
