"""Records of fits, one JSON line each: fits already made are not repeated."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import sklearn

import dask_sketch
from tests.benchmarks.paper.records import compile_once
from tests.benchmarks.real.methods import METHODS, Fit, fit

FITTING = ("features", "sketching", "models", "decoders", "graph", "estimators")
KEY = ("experiment", "case", "n_components", "seed", "method", "max_rows")


@dataclass(frozen=True)
class Cell:
    """One fit of one method: its name among all, and the call that makes it.

    ``depends`` tells whether the fit changes with the source of the package; otherwise it changes
    with the version of scikit-learn only.
    """

    experiment: str  # "real", "far" or "coverage"
    case: str
    n_components: int
    seed: int
    method: str
    run: Callable[[], Fit]
    max_rows: int | None = None
    depends: bool = True

    @property
    def source(self) -> str:
        """Digest of all code that the fit depends on."""
        own = source_digest() if self.depends else f"sklearn {sklearn.__version__}"
        return f"{own}, {benchmark_digest()}"


Record = dict[str, Any]


@cache
def source_digest() -> str:
    """Digest of the source of the modules that fits run through."""
    digest = hashlib.sha256(numpy.__version__.encode())
    folder = Path(dask_sketch.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).parts[0] in FITTING:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def benchmark_digest() -> str:
    """Digest of the benchmark's own fits and data."""
    folder = Path(__file__).parent
    parts = [(folder / f"{name}.py").read_bytes() for name in ("methods", "sets", "far")]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:6]


def key(record: Record) -> tuple[Any, ...]:
    """Name of a record among all."""
    return tuple(record[name] for name in KEY)


def read(path: Path) -> list[Record]:
    """Records of a file; a last line that was cut off by an interruption is dropped."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def perform(
    cells: Iterable[Cell], path: Path, *, stale: bool = False, say: Callable[[str], Any] = print
) -> Iterator[Record]:
    """Run the cells that the file has no record of with the same source; append each record.

    Parameters
    ----------
    cells
        Fits, in the order in which they run.
    path
        JSON lines of earlier fits, to which each new one is appended immediately.
    stale
        Whether records of another source of the package are used as well, rather than run again.
    say
        Function that receives a line for each new fit.

    Yields
    ------
    record
        Record of each cell, old or new.
    """
    known = {(*key(each), each["source"]): each for each in read(path)}
    if stale:
        known |= {key(each): each for each in known.values()}
    path.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        record = {name: getattr(cell, name) for name in KEY} | {"source": cell.source}
        found = known.get((*key(record), cell.source)) or known.get(key(record))
        if found is None:
            prepare()
            found = record | asdict(cell.run())
            with path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            say(describe(found))
        yield found


@cache
def prepare() -> None:
    """Have all compiled code ready, so that no fit is charged for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # poor fits
        compile_once()
    x = numpy.random.default_rng(0).normal(size=(500, 2))
    for method in METHODS.values():
        if method.depends:
            fit(method, x, x, 2, 0)


def describe(record: Record) -> str:
    """One line of progress."""
    value = "failed" if record["value"] is None else f"{record['value']:.4f}"
    name = f"{record['case']}, K={record['n_components']}, seed {record['seed']}"
    text = f"{name}, {record['method']}: {value}, {record['seconds']:.1f} s"
    if record["error"]:
        text += f", {record['error'].splitlines()[0][:120]}"
    return text + (", warned" if record["warned"] else "")
