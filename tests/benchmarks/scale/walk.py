"""The parts of the walk, in order, and what each adds to the results kept beside the store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.scale import report
from tests.benchmarks.scale.contest import rival_entries
from tests.benchmarks.scale.measuring import small_cluster
from tests.benchmarks.scale.merging import merge_on_cluster, merge_received
from tests.benchmarks.scale.passes import (
    decode_sketch,
    one_against_two,
    scores,
    sketch_store,
)
from tests.benchmarks.scale.store import (
    CHUNK_ROWS,
    N_COMPONENTS,
    heldout,
    truth,
    write_store,
)
from tests.benchmarks.table import machine


@dataclass
class Walk:
    """Measurements on one store, and their results.

    Attributes
    ----------
    folder
        Folder of stores, sketches and results.
    n_samples
        Size of the store.
    seed
        Seed of the samples.
    rivals
        Interpreter of the rivals' environment.
    cap
        CPU seconds after which a rival stops.
    chunk_rows, n_components
        Rows of a chunk, components decoded.
    few, enough
        Frequencies of the sketches: few for 64 components, and 5(2d+1)K.
    smaller
        Times that the smaller stores are smaller, on which peak memory is measured too.
    shared
        Most samples that one worker and two are compared on.
    n_parts, part_frequencies
        Partial sketches that are merged, and their frequencies.
    """

    folder: Path
    n_samples: int
    seed: int = 0
    rivals: Path = Path(".scale/rivals/bin/python")
    cap: float = 240.0
    chunk_rows: int = CHUNK_ROWS
    n_components: int = N_COMPONENTS
    few: int = 1000
    enough: int = 8000
    smaller: tuple[int, ...] = (100, 10)
    shared: int = 20_000_000
    n_parts: int = 10_000
    part_frequencies: int = 10_000

    @property
    def store(self) -> Path:
        """The store of all samples."""
        return self.folder / f"{self.n_samples}.zarr"

    @property
    def results(self) -> Path:
        """File of what was measured so far."""
        return self.folder / f"results-{self.n_samples}.json"

    def read(self) -> dict[str, Any]:
        """Results so far, by part."""
        return json.loads(self.results.read_text()) if self.results.exists() else {}

    def do(self, part: str) -> None:
        """Do one part; what it gives is kept as it comes."""
        start, entries = time.perf_counter(), []
        for entry in PARTS[part](self):
            entries.append(entry)
            held = self.read() | {"machine": machine()}
            held[part] = {"seconds": time.perf_counter() - start, "entries": entries}
            text = json.dumps(held | {"rows": report.rows(held)}, indent=1)
            self.results.write_text(text + "\n")

    def report(self) -> str:
        """All parts done so far, as text."""
        return report.text(self.read())


def write(walk: Walk) -> Iterator[dict[str, Any]]:
    """The store and the smaller ones, or what is missing of them."""
    with small_cluster() as client:
        for n in (*_smaller(walk), walk.n_samples):
            start = time.perf_counter()
            path, written = write_store(walk.folder, n, walk.seed, client, walk.chunk_rows)
            wall = time.perf_counter() - start
            yield {"store": path.name, "chunks_written": written, "wall": wall}


def sketch(walk: Walk) -> Iterator[dict[str, Any]]:
    """Every pass, each on fresh workers; that of few frequencies on smaller stores first."""
    runs = [(walk.folder / f"{n}.zarr", walk.few) for n in _smaller(walk)]
    runs += [(walk.store, m) for m in (walk.few, walk.enough)]
    for store, m in runs:
        yield sketch_store(store, m, walk.n_components)


def independent(walk: Walk) -> Iterator[dict[str, Any]]:
    """The same passes with independent frequencies, which cost the kernel several times more."""
    for m in (walk.few, walk.enough):
        yield sketch_store(walk.store, m, walk.n_components, "sparse-radius")


def decode(walk: Walk) -> Iterator[dict[str, Any]]:
    """Models from the kept sketches, and the truth, scored on held-out samples."""
    fresh = heldout(walk.seed)
    yield {"name": "the truth", **scores(truth(walk.seed), fresh)}
    for m, kind, refine in (
        (walk.few, "gaussian", None),
        (walk.enough, "dirac", None),
        (walk.enough, "gaussian", None),
        (walk.enough, "gaussian", "efficient"),
    ):
        model, told = decode_sketch(walk.store, m, walk.n_components, kind, refine)
        yield {"name": f"ours, m={m}", **told, **scores(model, fresh)}


def rivals(walk: Walk) -> Iterator[dict[str, Any]]:
    """The others on the same store."""
    fresh = heldout(walk.seed)
    yield from rival_entries(walk.rivals, walk.store, walk.n_samples, fresh, walk.cap)


def workers(walk: Walk) -> Iterator[dict[str, Any]]:
    """One worker against two, in turn."""
    n = min(walk.n_samples, walk.shared)
    with small_cluster() as client:
        path, _ = write_store(walk.folder, n, walk.seed, client, walk.chunk_rows)
    yield {"n_samples": n, **one_against_two(path, walk.enough, walk.n_components, rounds=3)}


def merge(walk: Walk) -> Iterator[dict[str, Any]]:
    """Partial sketches off the wire and through the tree, and the same in a real run."""
    yield {"where": "off the wire", **merge_received(walk.n_parts, walk.part_frequencies)}
    yield {"where": "on the cluster", **merge_on_cluster(walk.n_parts, walk.part_frequencies)}


def _smaller(walk: Walk) -> list[int]:
    return [walk.n_samples // times for times in walk.smaller]


PARTS: dict[str, Callable[[Walk], Iterator[dict[str, Any]]]] = {
    part.__name__: part for part in (write, sketch, independent, decode, rivals, workers, merge)
}
