"""Cost of merging the partial sketches of very many chunks."""

from __future__ import annotations

import time
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from distributed.protocol import deserialize, serialize

import dask_sketch as ds
from dask_sketch.sketching import sketch as sketching
from tests.benchmarks.scale.measuring import probe, ready, small_cluster

FAN_IN = 16
ROWS = 8  # of a chunk: so few that merging is what there is to do
DISTINCT = 512  # partial sketches that take turns: 82 MB at m = 10**4, more than any cache
_CLOCK = {"merge": 0.0}


def merge_received(n_parts: int, n_frequencies: int) -> dict[str, Any]:
    """CPU seconds to take partial sketches off the wire and to merge them, through the whole tree.

    The dearest case: every partial sketch comes from another worker. Each is deserialised as
    distributed does it, and merged with 15 others; so are the results, level by level.
    """
    feature_map = ds.FeatureMap(12, n_frequencies, scale=1.0)
    rng = np.random.default_rng(0)
    wires = []
    for _ in range(min(DISTINCT, n_parts)):
        part = ds.partial_sketch(rng.standard_normal((ROWS, 12), dtype=np.float32), feature_map)
        wires.append(_sent(part))
    level: list[Any] = [wires[k % len(wires)] for k in range(n_parts)]
    spent = {"receive": 0.0, "merge": 0.0}
    while len(level) > 1:
        above = []
        for start in range(0, len(level), FAN_IN):
            clock = time.process_time()
            parts = [deserialize(*wire).item() for wire in level[start : start + FAN_IN]]
            spent["receive"] += time.process_time() - clock
            clock = time.process_time()
            merged = ds.merge(parts)
            spent["merge"] += time.process_time() - clock
            above.append(_sent(merged))
        level = above
    count = deserialize(*level[0]).item().count
    return {"n_parts": n_parts, "n_frequencies": n_frequencies, "count": count, **spent}


def _sent(part: ds.Sketch) -> Any:
    """As it arrives: header and frames, in bytes of their own."""
    held = np.empty((), dtype=object)
    held[()] = part
    header, frames = serialize(held)
    return header, [bytearray(frame) for frame in frames]


def merge_on_cluster(n_parts: int, n_frequencies: int) -> dict[str, Any]:
    """The same in a real run: as many tiny chunks, on 2 workers."""
    feature_map = ds.FeatureMap(12, n_frequencies, scale=1.0)
    x = da.random.default_rng(0).standard_normal((n_parts * ROWS, 12), chunks=(ROWS, 12))
    with small_cluster() as client:
        ready(client, feature_map)
        client.run(time_merges)
        before = _sums(client)
        start, process = time.perf_counter(), time.process_time()
        count = ds.sketch(x, feature_map, split_every=FAN_IN).compute().count
        wall, process = time.perf_counter() - start, time.process_time() - process
        after = _sums(client)
    return {
        "n_parts": n_parts,
        "n_frequencies": n_frequencies,
        "count": count,
        "merge": after["merge"] - before["merge"],
        "kernel": after["kernel"] - before["kernel"],
        "workers": after["cpu"] - before["cpu"],
        "client": process,
        "wall": wall,
        "peak": after["peak"],
    }


def _sums(client: Client) -> dict[str, float]:
    both = zip(client.run(probe).values(), client.run(_merges).values(), strict=True)
    found = [one | other for one, other in both]
    return {
        key: max(f[key] for f in found) if key == "peak" else sum(f[key] for f in found)
        for key in ("cpu", "kernel", "merge", "peak")
    }


def _merges() -> dict[str, float]:
    return dict(_CLOCK)


def time_merges() -> None:
    """Measure the thread's CPU time in every merge of this process."""
    merge = sketching.merge

    def timed(sketches: Any) -> ds.Sketch:
        start = time.thread_time()
        merged = merge(sketches)
        _CLOCK["merge"] += time.thread_time() - start
        return merged

    sketching.merge = timed
