"""Commands of deploy/, run as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dask_sketch.jobs.ledger import open_ledger

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


def _ports() -> Iterator[int]:
    """Ports below those that the system gives to whoever asks for any; other ones in each process.

    One that the system gave would be free again once we know it, and might be given to somebody
    else before it is bound.
    """
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    least = int(given.read_text().split()[0]) if given.exists() else 32768
    mine = int("0" + os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw"))
    # processes that start one after the other have numbers in a row, and far ports
    first = least - 1 - mine % 16 - 16 * (os.getpid() * 37 % 256)
    return iter(range(first, 1024, -16))


PORTS = _ports()


def free_port() -> int:
    """A port that nobody listens at, and that is asked for once only."""
    for port in PORTS:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            return port
    raise AssertionError("no port is free")


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
