"""A pass that gives a sketch for each group beside one that gives one sketch, in CPU time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr

import dask_sketch as ds
from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.graph.memory import group_bytes
from tests.benchmarks.million import FEATURES, usage
from tests.benchmarks.table import Row, row

ROWS, STORED = 10**7, 2**16  # of the store, and of one stored chunk
CHUNK = 700_000  # rows that one task reads of it by default: 32 MiB
CASES = [(10**4, 200), (10**4, 1000), (10**2, 200)]  # groups and frequencies
MANY = (10**5, 200)  # whose memory is told
SCATTERED, IN_RUNS = "scattered", "in runs"
REPEATS = 3
UNGROUPED = "one sketch"


def labels_of(n_groups: int, n_rows: int, order: str) -> np.ndarray:
    """A label for each row: anywhere, or the rows of a group after each other."""
    if order == IN_RUNS:
        return (np.arange(n_rows) * n_groups // n_rows).astype(np.int32)
    return np.random.default_rng(1).integers(n_groups, size=n_rows, dtype=np.int32)


def write_store(path: str, n_rows: int, n_groups: list[int]) -> None:
    """Rows in float32, and the labels of each number of groups, in each order."""
    group = zarr.open_group(path, mode="w")
    stored = min(STORED, n_rows)
    x = group.create_array("x", shape=(n_rows, FEATURES), chunks=(stored, FEATURES), dtype="f4")
    rng = np.random.default_rng(0)
    for start in range(0, n_rows, 16 * stored):
        size = min(16 * stored, n_rows - start)
        x[start : start + size] = rng.standard_normal((size, FEATURES), dtype=np.float32)
    for n in n_groups:
        for order in (SCATTERED, IN_RUNS):
            group.create_array(
                f"{order} {n}", data=labels_of(n, n_rows, order), chunks=(stored,),
                config={"write_empty_chunks": True},
            )  # fmt: skip


def in_turn(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of process CPU time, by turns, so that a busy machine slows all alike.

    Every second round is in reverse order: what follows a call may take 3 % longer than what
    precedes it.
    """
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for run in range(repeats + 1):
        for name, call in list(calls.items())[:: 1 - 2 * (run % 2)]:
            start = time.process_time()
            call()
            if run:  # the first round compiles
                spent[name].append(time.process_time() - start)
    return spent


def _paired(case: str, spent: dict[str, list[float]]) -> Iterator[Row]:
    """A row for each way: its median, beside the same times its median ratio to one sketch."""
    alone = spent.pop(UNGROUPED)
    for name, seconds in spent.items():
        ratio = median(a / b for a, b in zip(seconds, alone, strict=True))
        mine = median(seconds)
        yield row(f"{case}, {name}", mine, "s of CPU", against=UNGROUPED, rival=mine / ratio)


def chunk_rows(quick: bool = False) -> list[Row]:
    """One chunk in memory, sketched group by group."""
    out: list[Row] = []
    n = 2000 if quick else CHUNK
    x = np.random.default_rng(0).standard_normal((n, FEATURES), dtype=np.float32)
    for m in (16,) if quick else (200, 1000):
        feature_map = FeatureMap(FEATURES, m, scale=1.0)
        calls: dict[str, Callable[[], object]] = {
            UNGROUPED: lambda fm=feature_map: partial_sketch(x, fm)
        }
        for n_groups in (10,) if quick else (10**2, 10**4):
            labels = labels_of(n_groups, n, SCATTERED)
            calls[f"{n_groups:,} groups"] = lambda fm=feature_map, labels=labels: partial_sketch(
                x, fm, groups=labels
            )
        out += _paired(
            f"chunk of {n:,} rows d={FEATURES} m={m}", in_turn(calls, 1 if quick else REPEATS)
        )
    return out


def rows(quick: bool = False) -> list[Row]:
    """Whole passes over a store, on the threads of this process; and memory of many groups."""
    n_rows, cases = (5000, [(20, 16)]) if quick else (ROWS, CASES)
    many, many_m = (100, 16) if quick else MANY
    out: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        path = str(Path(place) / "x.zarr")
        write_store(path, n_rows, sorted({n for n, _ in cases} | {many}))
        for n_groups, m in cases:
            feature_map = FeatureMap(FEATURES, m, scale=1.0)
            calls: dict[str, Callable[[], object]] = {
                UNGROUPED: lambda fm=feature_map: sketched(path, fm, None)
            }
            for order in (SCATTERED, IN_RUNS):
                name = f"{order} {n_groups}"
                calls[f"{n_groups:,} groups {order}"] = lambda fm=feature_map, name=name: sketched(
                    path, fm, name
                )
            case = f"pass over {n_rows:,} rows d={FEATURES} m={m}"
            out += _paired(case, in_turn(calls, 1 if quick else REPEATS))
        alone = float(_alone(path, "", many_m))
        for order in (SCATTERED,) if quick else (SCATTERED, IN_RUNS):
            held = float(_alone(path, f"{order} {many}", many_m))
            result = many * group_bytes(FeatureMap(FEATURES, many_m, scale=1.0), weighted=False)
            out.append(
                row(
                    f"peak of a pass for {many:,} groups {order}, m={many_m}", held, "MB",
                    against=UNGROUPED, rival=alone, floor=result / 1e6,
                )
            )  # fmt: skip
    return out


def sketched(path: str, feature_map: FeatureMap, name: str | None) -> Any:
    """The pass."""
    return ds.sketch(path, feature_map, groups=name, array="x").compute()


def _alone(path: str, name: str, m: int) -> str:
    command = [sys.executable, "-m", __name__, path, name, str(m)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def peak(path: str, name: str, m: int) -> float:
    """MB by which this process grows in a pass; it has compiled before."""
    feature_map = FeatureMap(FEATURES, m, scale=1.0)
    x = np.zeros((1000, FEATURES), dtype=np.float32)
    partial_sketch(x, feature_map)
    partial_sketch(x, feature_map, groups=np.arange(1000) % 10)
    before = usage()["peak"]
    sketched(path, feature_map, name or None)
    return usage()["peak"] - before


if __name__ == "__main__":
    print(peak(sys.argv[1], sys.argv[2], int(sys.argv[3])))  # noqa: T201
