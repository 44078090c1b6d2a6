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

from tests.benchmarks.table import Row, row

RUNNER = Path(__file__).with_name("components_fit.py")
RIVALS = Path(".scale/rivals/bin/python")
K = 10
# samples, features, rows of a chunk, power of the decay of the eigenvalues
CASES = [
    (200_000, 100, 20_000, 1.0),
    (8_000, 2_000, 2_000, 1.0),
    (8_000, 2_000, 2_000, 1.5),
    (2_000, 20_000, 500, 1.0),
]


def samples(n: int, d: int, power: float) -> np.ndarray:
    """Rows whose covariance has the eigenvalues ``i**-power``, in directions of many features."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), dtype=np.float32)
    x *= np.sqrt(np.arange(1.0, d + 1.0) ** -power).astype(np.float32)
    signs = rng.choice([-1.0, 1.0], d).astype(np.float32)
    return np.asarray(dct(x[:, rng.permutation(d)] * signs, norm="ortho", axis=1) + 3.0)


def losses(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Centered rows, and the smallest variance that K components leave unexplained."""
    centered = x - x.mean(axis=0, dtype=np.float64)
    small = centered @ centered.T if len(x) < x.shape[1] else centered.T @ centered
    values = np.linalg.eigvalsh(small)
    return centered, float(values[:-K].sum())


def fit(python: str | Path, method: str, store: Path, k: int) -> tuple[dict[str, Any], np.ndarray]:
    """Cost of a fit in a process of its own, and its components."""
    out = store.with_name(f"{method}.npy")
    done = subprocess.run(
        [python, RUNNER, method, store, str(k), out], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{method}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1]), np.load(out)


def rows(quick: bool = False) -> list[Row]:
    """The table's rows; ``quick`` is a tiny form of two cases."""
    found = []
    for n, d, chunk, power in [(600, 60, 200, 1.0), (80, 100, 20, 1.0)] if quick else CASES:
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "x.zarr"
            x = samples(n, d, power)
            zarr.create_array(store, data=x, chunks=(chunk, d))
            centered, best = losses(x)
            total = float((centered**2).sum())
            del x
            methods = {}
            if d > 500 or quick:
                methods[f"columns-{30 if quick else 80}"] = sys.executable
            if d <= 5000:
                methods["all"] = sys.executable
            methods["incremental"] = sys.executable
            if RIVALS.exists() and not quick:
                methods["dask-ml"] = str(RIVALS)
            costs = {}
            for method, python in methods.items():
                cost, components = fit(python, method, store, K)
                lost = total - float(((centered @ components.T) ** 2).sum())
                costs[method] = cost | {"excess": max(100.0 * (lost / best - 1.0), 0.0)}
        rivals = [name for name in methods if name in ("incremental", "dask-ml")]
        for method in methods:
            if method in rivals:
                continue
            for rival in rivals:
                for name, unit in (
                    ("excess", "% excess risk"), ("passes", "passes"), ("seconds", "CPU s"),
                    ("megabytes", "MB"),
                ):  # fmt: skip
                    case = f"{method}, n={n:,} d={d:,} 1/i^{power:g}: {name}"
                    mine, theirs = costs[method][name], costs[rival][name]
                    found.append(row(case, mine, unit, against=rival, rival=theirs))
    return found
