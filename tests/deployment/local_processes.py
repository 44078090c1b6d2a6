"""What deploy/ says, run as processes of this machine."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path

from dask_sketch.ledger import open_ledger

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent
N_SAMPLES = 5000  # of the job's store


def job_text(folder: str, cluster: str) -> str:
    """deploy/job.toml with its data and results in a folder, for the job's small store."""
    text = (DEPLOY / "job.toml").read_text()
    for old, new in {
        '"/var/lib/dask-sketch/': f'"{folder}/',
        '"/data/frames"': f'"{folder}/x.zarr"',
        '"32MiB"': '"12KB"',
        "n_components = 64": "n_components = 2",
        'kind = "threads"': cluster,
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def total_of(folder: Path) -> int:
    """Samples in the ledger that the job makes."""
    return open_ledger(folder / "frames.ledger").total().count


def environment(**more: str) -> dict[str, str]:
    """Ours without what speaks to Dask, plus ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DASK_")}
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return kept | one | {"PATH": f"{BIN}:{os.environ['PATH']}"} | more


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def substituted(text: str, values: dict[str, str] | None = None) -> str:
    """``${NAME:-default}`` as the shell and compose read it."""
    return re.sub(
        r"\$\{(\w+)(?::-([^}]*))?[^}]*\}",
        lambda match: (values or {}).get(match[1], match[2] or ""),
        text,
    )


def wait_until(condition, what: str, seconds: float = 90.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.2)
    return found
