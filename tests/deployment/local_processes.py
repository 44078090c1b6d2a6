"""What deploy/ says, run as processes of this machine."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent
N_SAMPLES = 5000  # of the job's store


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
