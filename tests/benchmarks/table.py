"""Rows of benchmarks: compute, print and write them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

FOLDER = Path(".bench")
PACKAGES = ("dask-sketch", "numpy", "numba", "llvmlite", "scipy", "dask", "distributed", "zarr")


class Row(TypedDict):
    """One measured case; made by :func:`row`.

    ``ours`` and ``rival`` come from the same run, in ``unit``. ``ratio`` tells how many times
    better ours is, whether more of the unit is better or less. ``floor`` is the best that the
    machine can do, and ``share`` the part of it that is reached.
    """

    case: str
    unit: str
    ours: float
    against: str
    rival: float | None
    ratio: float | None
    floor: float | None
    share: float | None


def more_is_better(unit: str) -> bool:
    """Rates (``"G pairs/s"``) and factors (``"times"``); seconds, bytes and tasks are costs."""
    return unit.endswith("/s") or unit == "times"


def times_better(new: float, old: float, unit: str) -> float:
    """Ratio by which ``new`` is better than ``old``; above one is better."""
    good, bad = (new, old) if more_is_better(unit) else (old, new)
    if good == bad:
        return 1.0
    return good / bad if bad else float("inf")


def row(
    case: str,
    ours: float,
    unit: str,
    *,
    against: str = "",
    rival: float | None = None,
    floor: float | None = None,
) -> Row:
    """One line of the table; ``against`` names the rival."""
    return {
        "case": case,
        "unit": unit,
        "ours": float(ours),
        "against": against,
        "rival": rival,
        "ratio": None if rival is None else times_better(ours, rival, unit),
        "floor": floor,
        "share": None if floor is None else times_better(ours, floor, unit),
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def table(rows: Sequence[Row]) -> str:
    """All rows as aligned text."""
    head = ("case", "unit", "ours", "against", "rival", "ratio", "floor", "share of floor")
    cells = [head] + [
        (
            r["case"],
            r["unit"],
            _number(r["ours"]),
            r["against"],
            _number(r["rival"]),
            "" if r["ratio"] is None else f"{r['ratio']:.3g}",
            _number(r["floor"]),
            "" if r["share"] is None else f"{r['share']:.0%}",
        )
        for r in rows
    ]
    widths = [max(len(line[k]) for line in cells) for k in range(len(head))]
    left = {0, 1, 3}
    return "\n".join(
        "  ".join(
            text.ljust(width) if k in left else text.rjust(width)
            for k, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def machine() -> dict[str, Any]:
    """Description of the machine and of the software."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write(rows: Sequence[Row], found: dict[str, Any]) -> Path:
    """The rows and the machine as JSON, in a new file of FOLDER named by date and commit."""
    FOLDER.mkdir(exist_ok=True)
    date = found["date"].partition("+")[0].replace(":", "")
    path = FOLDER / f"{date}-{found['commit'] or 'unknown'}.json"
    path.write_text(json.dumps({"machine": found, "rows": list(rows)}, indent=1) + "\n")
    return path


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Machine and rows of a written run."""
    held = json.loads(path.read_text())
    return held["machine"], held["rows"]
