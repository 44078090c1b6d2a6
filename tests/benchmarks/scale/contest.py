"""Runs the rivals one after another, each in a process and an environment of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import dask_sketch as ds
from tests.benchmarks.scale.passes import scores
from tests.benchmarks.scale.rivals import RIVALS

SCRIPT = Path(__file__).with_name("rivals.py")
PACKAGES = {"coreset": "bico", "dask-ml": "dask_ml"}  # of the others it is sklearn
LONGER = 4  # times the cap, for a rival that cannot stop by itself; CPU, as the machine may be busy
START = 60  # CPU seconds more
HUNG = 3600  # seconds of wall time after which a rival is taken for dead
FEWER = 10  # times fewer samples, after a failure
LEAST = 10_000


def rival_entries(
    python: Path, store: Path, n_samples: int, heldout: NDArray[np.floating], cap: float
) -> Iterator[dict[str, Any]]:
    """Held-out score and cost of each rival, or the reason why there is none.

    Parameters
    ----------
    python
        Interpreter of the rivals' environment.
    store, n_samples
        The samples.
    heldout
        Samples to score with.
    cap
        CPU seconds after which a rival that can stop does so, and tells how far it came.
    """
    for name in RIVALS:
        reason = absent(python, PACKAGES.get(name, "sklearn"))
        if reason:
            yield {"name": name, "note": f"skipped: {reason}"}
            continue
        yield from _tries(python, name, store, n_samples, heldout, cap)


def absent(python: Path, package: str) -> str:
    """Why a package cannot be imported there; empty if it can."""
    if not python.exists():
        return f"no environment of the rivals at {python}; make scale makes it"
    code = f"import {package}"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else last_line(done.stderr)


def _tries(
    python: Path,
    name: str,
    store: Path,
    n_samples: int,
    heldout: NDArray[np.floating],
    cap: float,
) -> Iterator[dict[str, Any]]:
    """One entry for each number of samples, less and less, until it works."""
    n = n_samples
    while n >= min(LEAST, n_samples):
        entry = run_rival(python, name, store, n, cap, heldout)
        yield entry
        if "peak" in entry:
            return
        n //= FEWER


def run_rival(
    python: Path, name: str, store: Path, n: int, cap: float, heldout: NDArray[np.floating]
) -> dict[str, Any]:
    """One run of a rival in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="rival-") as folder:
        out, said, wrong = (Path(folder) / file for file in ("found.npz", "said", "wrong"))
        # -P: the folder of the script is no place to import from
        command = [python, "-P", SCRIPT, name, store, n, cap, out]
        with said.open("w") as told_to, wrong.open("w") as complained_to:
            child = subprocess.Popen(list(map(str, command)), stdout=told_to, stderr=complained_to)
            cpu = _wait(child, START + LONGER * cap)
        if cpu is not None:
            note = f"stopped by us, not done after {cpu:,.0f} CPU s of all its processes"
            return {"name": name, "tried": n, "note": note}
        if child.returncode:
            note = f"ended with {child.returncode}: {last_line(wrong.read_text())}"
            return {"name": name, "tried": n, "note": note}
        told = json.loads(said.read_text().splitlines()[-1])
        found = dict(np.load(out))
    return {"name": name, "tried": n, **told, **scores(_model(found), heldout)}


def _wait(child: subprocess.Popen[bytes], limit: float) -> float | None:
    """Wait for a process; stop it, and give its CPU seconds, when they are over the limit."""
    started = time.perf_counter()
    process, cpu = psutil.Process(child.pid), 0.0
    while child.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, or a child of it
            family = [process, *process.children(recursive=True)]
            cpu = max(cpu, sum(sum(member.cpu_times()[:2]) for member in family))
            if cpu > limit or time.perf_counter() - started > HUNG:
                for member in reversed(family):
                    member.kill()
                child.wait()
                return cpu
        time.sleep(0.2)
    return None


def _model(found: dict[str, NDArray[Any]]) -> ds.GaussianMixture | ds.Centroids:
    if "centers" in found:
        centers = found["centers"].astype(float)
        return ds.Centroids(np.full(len(centers), 1 / len(centers)), centers)
    weights = found["weights"].astype(float)
    return ds.GaussianMixture(
        weights / weights.sum(), found["means"].astype(float), found["covariances"].astype(float)
    )


def last_line(text: str) -> str:
    """Last line of a text that is not blank, cut to 300 characters."""
    lines: Sequence[str] = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no message"
