"""Principal components beside IncrementalPCA and dask-ml: error, passes, CPU time and memory.

dask-ml has requirements of its own: it is run if the environment of `make scale` is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from scipy.fft import dct
from scipy.sparse.linalg import svds

from tests.benchmarks.table import Row, row

RUNNER = Path(__file__).with_name("components_fit.py")
RIVALS = Path(".scale/rivals/bin/python")
K = 10
REPEATS = 3
# samples, features, rows of a chunk, power of the decay of the eigenvalues
CASES = [
    (200_000, 100, 20_000, 1.0),
    (8_000, 2_000, 2_000, 1.0),
    (8_000, 2_000, 2_000, 1.5),
    (8_000, 2_000, 2_000, 2.0),
    (4_000, 20_000, 500, 1.0),
]
DASK_ML = ("dask-ml", "dask-ml power", "dask-ml tsqr", "dask-ml incremental")


def samples(n: int, d: int, power: float) -> np.ndarray:
    """Rows whose covariance has the eigenvalues ``i**-power``, in directions of many features."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), dtype=np.float32)
    x *= np.sqrt(np.arange(1.0, d + 1.0) ** -power).astype(np.float32)
    signs = rng.choice([-1.0, 1.0], d).astype(np.float32)
    return np.asarray(dct(x[:, rng.permutation(d)] * signs, norm="ortho", axis=1) + 3.0)


def losses(x: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Centered rows, their squares, and the smallest sum of squares that K components leave."""
    centered = x - x.mean(axis=0, dtype=np.float64)
    total = float(np.einsum("ij,ij->", centered, centered))
    explained = svds(centered, K, random_state=0, return_singular_vectors=False)
    return centered, total, total - float((explained**2).sum())


def fit(python: str | Path, method: str, store: Path, k: int) -> tuple[dict[str, Any], np.ndarray]:
    """Median cost of fits, each in a process of its own, and the components."""
    out = store.with_name(f"{method}.npy")
    costs = []
    for _ in range(REPEATS):
        done = subprocess.run(
            [python, RUNNER, method, store, str(k), out],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{method}: {done.stderr[-2000:]}")
        costs.append(json.loads(done.stdout.splitlines()[-1]))
    median = {name: float(np.median([cost[name] for cost in costs])) for name in costs[0]}
    return median, np.load(out)


def rows(quick: bool = False) -> list[Row]:
    """The table's rows; ``quick`` is a tiny form of two cases."""
    found = []
    for n, d, chunk, power in [(600, 60, 200, 1.0), (80, 100, 20, 1.0)] if quick else CASES:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "x.zarr"
            x = samples(n, d, power)
            zarr.create_array(store, data=x, chunks=(chunk, d))
            centered, total, best = losses(x)
            del x
            methods = {}
            if d > 500 or quick:
                methods[f"columns-{30 if quick else 80}"] = sys.executable
            if d <= 5000:
                methods["all"] = sys.executable
            ours = list(methods)
            methods["incremental"] = sys.executable
            if RIVALS.exists() and not quick:
                # the decomposition of tall matrices refuses wide ones
                names = [name for name in DASK_ML if n >= d or name != "dask-ml tsqr"]
                methods |= dict.fromkeys(names, str(RIVALS))
            costs = {}
            for method, python in methods.items():
                cost, components = fit(python, method, store, K)
                components = components[:K]  # tsqr of dask-ml returns all
                lost = total - float(((centered @ components.T) ** 2).sum())
                costs[method] = cost | {"excess": max(100.0 * (lost / best - 1.0), 0.0)}
        for method in ours:
            for rival in methods:
                if rival in ours:
                    continue
                for name, unit in (
                    ("excess", "% excess risk"), ("passes", "passes"), ("seconds", "CPU s"),
                    ("megabytes", "MB"),
                ):  # fmt: skip
                    case = f"{method}, n={n:,} d={d:,} 1/i^{power:g}: {name}"
                    mine, theirs = costs[method][name], costs[rival][name]
                    found.append(row(case, mine, unit, against=rival, rival=theirs))
    return found
