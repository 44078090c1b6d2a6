"""Graphs of a pass, compared with those of the same sums written with Dask alone."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import zarr

import dask_sketch as ds
from dask_sketch.graph.tree import batch_chunks
from tests.benchmarks.million import FEATURES, ROWS, usage
from tests.benchmarks.table import Row, row

FREQUENCIES = 1000
PLAIN = "da.exp(-1j * x @ w).mean()"
ONE_GRAPH = "one graph"


def tiny_chunks(n_chunks: int, place: Path) -> str:
    """An array of tiny stored chunks, none of which is written: only graphs are made."""
    path = str(place / f"{n_chunks}.zarr")
    shape, chunk = (n_chunks * ROWS, FEATURES), (ROWS, FEATURES)
    zarr.create_array(path, shape=shape, chunks=chunk, dtype="f4")
    return path


def feature_map() -> ds.FeatureMap:
    """The map of all cases."""
    return ds.FeatureMap(FEATURES, FREQUENCIES, scale=1.0)


def plain(x: da.Array) -> da.Array:
    """The sketch as a user of Dask would write it."""
    return da.exp(-1j * (x @ feature_map().frequencies)).mean(axis=0)


def tasks_of(lazy: Any) -> dict[Any, Any]:
    """Tasks that remain after Dask's optimisation."""
    (optimised,) = dask.optimize(lazy)
    return dict(optimised.__dask_graph__())


def counts(lazy: Any) -> tuple[int, int, int]:
    """Tasks, layers before they are fused, and bytes of all tasks in one pickle."""
    tasks = tasks_of(lazy)
    return len(tasks), len(lazy.__dask_graph__().layers), len(cloudpickle.dumps(tasks))


def rows(quick: bool = False) -> list[Row]:
    """Counts for tiny stored chunks, for chunks of any array, and of memory.

    Parameters
    ----------
    quick
        Fewer chunks.
    """
    n = 500 if quick else 20_000
    with tempfile.TemporaryDirectory() as place:
        path = tiny_chunks(n, Path(place))
        stored = counts(ds.sketch(path, feature_map())), counts(plain(da.from_zarr(path)))
        blocks = da.ones((n * ROWS, FEATURES), chunks=(ROWS, FEATURES), dtype="f4")
        made = counts(ds.sketch(blocks, feature_map())), counts(plain(blocks))
        # more chunks of one task: what one of them adds
        twice = da.ones((2 * n * ROWS, FEATURES), chunks=(ROWS, FEATURES), dtype="f4")
        more = counts(ds.sketch(twice, feature_map())), counts(plain(twice))
    growth = [(b[2] - a[2]) / n for a, b in zip(made, more, strict=True)]
    found = [
        row(f"tasks for {n:,} stored chunks of {ROWS} rows", stored[0][0], "tasks",
            against=PLAIN, rival=stored[1][0]),
        row("the graph for them", stored[0][2] / n, "B/chunk", against=PLAIN,
            rival=stored[1][2] / n),
        row(f"tasks for an array of {n:,} chunks", made[0][0] / n, "tasks/chunk", against=PLAIN,
            rival=made[1][0] / n, floor=1),
        row("layers of its graph", made[0][1], "layers", against=PLAIN, rival=made[1][1]),
        row("one chunk more of it", growth[0], "B/chunk", against=PLAIN, rival=growth[1]),
    ]  # fmt: skip
    large = 10_000 if quick else 100_000
    in_batches, whole = (client_memory(large, kind) for kind in ("batches", ONE_GRAPH))
    found.append(
        row(f"memory of the client, {large:,} chunks", in_batches, "MB", against=ONE_GRAPH,
            rival=whole)
    )  # fmt: skip
    return found


def client_memory(n_chunks: int, kind: str) -> float:
    """MB by which a process grows that makes and packs the graph of a pass, and does no more."""
    command = [sys.executable, "-m", __name__, kind, str(n_chunks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def graph_memory(n_chunks: int, kind: str) -> float:
    """The same, in this process."""
    _pack(ds.sketch(da.ones((40, FEATURES), chunks=(10, FEATURES), dtype="f4"), feature_map()))
    before = usage()["peak"]
    x = da.ones((n_chunks * ROWS, FEATURES), chunks=(ROWS, FEATURES), dtype="f4")
    lazy = ds.sketch(x, feature_map())
    if kind == ONE_GRAPH:
        _pack(lazy)
    else:
        # the setting's own 5000 of 100,000 chunks, and of fewer the same share
        batches = {"sketch.task-limit": 1000, "sketch.batch-tasks": n_chunks // 20}
        with dask.config.set(batches):
            size = batch_chunks(n_chunks, lazy.split_every) or n_chunks
        for start in range(0, n_chunks, size):
            _pack(lazy.part(range(start, min(start + size, n_chunks))))
    return usage()["peak"] - before


def _pack(lazy: Any) -> None:
    cloudpickle.dumps(tasks_of(lazy))


if __name__ == "__main__":
    print(graph_memory(int(sys.argv[2]), sys.argv[1]))  # noqa: T201
