"""Attack files, ledgers and running jobs at random for a stated time, and print what held.

``python -m tests.soak --seconds 600`` makes one table: attack, tries, failures. A failure is an
error that is not of the package, a result that is wrong without an error, or much memory. Its seed
repeats it: ``--attack NAME --first SEED``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import zarr

import dask_sketch as ds
from dask_sketch.display.text import text_table
from dask_sketch.errors import SketchError
from dask_sketch.jobs.job_file import parse_job
from dask_sketch.jobs.run import run_job

sys.path.insert(0, str(Path(__file__).parent))  # as for the tests
from every_artifact import MAKERS, content, edited, made, mutated, use
from jobs.test_job_file import WHOLE
from storage.test_untrusted import BOMBS, HIDDEN_BOMBS, write_v2

Attack = Callable[[np.random.Generator, Path], str | None]
MAX_BYTES = 2**27  # of memory that one try may take
MAX_SECONDS = 30.0
PRELOADED = [
    "dask_sketch.jobs.run", "dask.dataframe", "pyarrow.parquet", "pytest", "hypothesis",
    "jobs.test_job_file", "storage.test_untrusted",
]  # fmt: skip
MAP = ds.FeatureMap(2, 30, scale=1.0)
JOB = """
[job]
name = "nightly"
ledger = "ledger"
[[sources]]
path = "days"
[feature_map]
file = "map.json"
[limits]
commit_partitions = 1
changed = 1.0
deleted = 1.0
"""


def files_below(root: Path) -> list[Path]:
    """All files below a folder, sorted."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def damage(rng: np.random.Generator, root: Path) -> None:
    """Mutate one file below a folder."""
    files = files_below(root)
    path = files[int(rng.integers(len(files)))]
    path.write_bytes(mutated(rng, path.read_bytes()))


def rows_of(seed: int, n: int = 60) -> np.ndarray:
    """Rows of two clusters, float32."""
    rng = np.random.default_rng(seed)
    centres = rng.choice([-3.0, 3.0], size=(n, 1))
    return (rng.normal(size=(n, 2)) + centres).astype("f4")


def artifacts(rng: np.random.Generator, folder: Path) -> str | None:
    """Artifacts of every kind whose files or bytes were changed."""
    kind = str(rng.choice(list(MAKERS)))
    artifact, expected = made(kind), content(made(kind))
    if kind == "feature map":
        (folder / "map.json").write_bytes(mutated(rng, expected))
        found: Any = ds.open(folder / "map.json")
    elif rng.random() < 0.5:
        found = ds.open(mutated(rng, expected))
    else:
        artifact.to_zarr(folder / "x.zarr")
        damage(rng, folder / "x.zarr")
        found = ds.open(folder / "x.zarr")
    return None if content(found) == expected else f"another {kind} without an error"


def edited_artifacts(rng: np.random.Generator, folder: Path) -> str | None:
    """Artifacts of every kind that were edited, with a checksum that agrees, and then used."""
    kinds = [kind for kind in MAKERS if kind != "feature map"]
    use(ds.open(edited(rng, content(made(str(rng.choice(kinds)))))))
    return None


def job_files(rng: np.random.Generator, folder: Path) -> str | None:
    """Job files whose text was changed."""
    text = mutated(rng, WHOLE.encode()).decode(errors="replace")
    parse_job(text, folder / "job.toml")
    return None


def parquet(rng: np.random.Generator, folder: Path) -> str | None:
    """Parquet files whose bytes were changed."""
    frame = pd.DataFrame(rows_of(1), columns=["a", "b"])
    frame.to_parquet(folder / "x.parquet", row_group_size=20)
    damage(rng, folder)
    ds.sketch(str(folder / "x.parquet"), MAP).compute(scheduler="synchronous")
    return None  # a file has no checksum by default: other numbers cannot be noticed


def zarr_stores(rng: np.random.Generator, folder: Path) -> str | None:
    """Zarr stores whose metadata or chunks were changed."""
    path = folder / "x.zarr"
    zarr.save_array(str(path), rows_of(2), zarr_format=int(rng.integers(2, 4)))
    damage(rng, path)
    ds.sketch(str(path), MAP).compute(scheduler="synchronous")
    return None


def bombs(rng: np.random.Generator, folder: Path) -> str | None:
    """Chunks that decompress to far more than their metadata states, and changed ones."""
    names = [*BOMBS, *HIDDEN_BOMBS]
    name = names[int(rng.integers(len(names)))]
    if name in BOMBS:
        chunk, compressor = BOMBS[name]
        options: dict[str, Any] = {"compressor": compressor}
    else:
        chunk, codecs = HIDDEN_BOMBS[name]
        options = {"filters": codecs}
    if rng.random() < 0.5:
        chunk = mutated(rng, chunk)
    path = write_v2(folder / "b.zarr", chunk, **options)
    ds.sketch(str(path), ds.FeatureMap(1, 10, scale=1.0)).compute(scheduler="synchronous")
    return None


def ledgers(rng: np.random.Generator, folder: Path) -> str | None:
    """Ledgers one object of which was changed: never another total in silence."""
    place = folder / "ledger"
    ledger = ds.create_ledger(place, MAP)
    with ledger.lock():
        for number in range(3):
            sketch = ds.partial_sketch(rows_of(number), MAP)
            ledger.commit([(ds.jobs.ledger.Partition(f"p{number}", "v0", 60, 100), sketch)])
    total = ledger.total()
    damage(rng, place)
    again = ds.open_ledger(place)
    if again.damage is None and not again.total().identical(total):
        return "another total without a word of damage"
    return None


def replacements(rng: np.random.Generator, folder: Path) -> str | None:
    """Readers of a sketch that is replaced again and again see one of both."""
    one, other = (ds.partial_sketch(rows_of(seed), MAP) for seed in (1, 2))
    path = folder / "s.zarr"
    one.to_zarr(path)
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            for sketch in (other, one):
                sketch.to_zarr(path, overwrite=True)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            found = ds.open(path)
            if not (found.identical(one) or found.identical(other)):
                return "neither of both sketches"
    except SketchError as error:
        return f"not readable: {error}"
    finally:
        ended.set()
        thread.join()
    return None


def write_day(folder: Path, day: int, seed: int) -> None:
    """Write the file of one day."""
    frame = pd.DataFrame(rows_of(seed), columns=["a", "b"])
    frame.to_parquet(folder / "days" / f"day={day}.parquet")


def run_in_child(path: str) -> None:
    """Run a job in a process that may be killed."""
    run_job(path)


def kills(rng: np.random.Generator, folder: Path) -> str | None:
    """Runs that are killed at random times, until one ends: the bits of an undisturbed one."""
    (folder / "days").mkdir()
    (folder / "map.json").write_text(MAP.to_json())
    (folder / "job.toml").write_text(JOB)
    seeds: dict[int, int] = {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)  # so that a process begins to run at once
    for night in range(3):
        for day in (3 * night, 3 * night + 1, int(rng.integers(3 * night + 1))):
            seeds[day] = int(rng.integers(2**31))
            write_day(folder, day, seeds[day])
        for attempt in range(20):
            child = context.Process(target=run_in_child, args=(str(folder / "job.toml"),))
            child.start()
            child.join(None if attempt == 19 else float(rng.exponential(0.6)))
            if child.exitcode is None:
                os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            if child.exitcode == 0:
                break
            if child.exitcode != -signal.SIGKILL:
                return f"a run after a kill ended with {child.exitcode}"
            if (folder / "ledger" / "zarr.json").exists():
                ledger = ds.open_ledger(folder / "ledger")
                parts = [sketch for _, sketch in ledger.sketches(list(ledger.entries))]
                if not ledger.total().identical(ds.merge([ds.Sketch.empty(MAP), *parts])):
                    return "a total that is not the sum of the partitions"
        rows = np.concatenate([rows_of(seed) for seed in seeds.values()])
        if not ds.open_ledger(folder / "ledger").total().identical(ds.partial_sketch(rows, MAP)):
            return "another total than that of an undisturbed run"
    return None


ATTACKS: dict[str, Attack] = {
    "artifacts": artifacts,
    "edited artifacts": edited_artifacts,
    "job files": job_files,
    "Parquet files": parquet,
    "Zarr stores": zarr_stores,
    "bombs": bombs,
    "ledgers": ledgers,
    "replacements": replacements,
    "kills": kills,
}
# Attacks whose try takes seconds have one try while the others have many.
SLOW = {"kills"}
TRIES = 20


def peak_memory() -> int:
    """Largest number of bytes that this process had in memory so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def attempt(name: str, seed: int) -> str | None:
    """One try of an attack; the failure in words, None if there is none."""
    folder = Path(tempfile.mkdtemp(prefix="dask-sketch-soak-"))
    begun, before = time.perf_counter(), peak_memory()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ATTACKS[name](np.random.default_rng(seed), folder)
    except SketchError:
        found = None
    except Exception as error:  # whatever is not of the package is a failure
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__}: {str(error)[:80]} ({where.filename}:{where.lineno})"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.perf_counter() - begun
    taken = peak_memory() - before
    if found is None and taken > MAX_BYTES:
        found = f"{taken / 1e6:,.0f} MB of memory"
    if found is None and name not in SLOW and seconds > MAX_SECONDS:
        found = f"{seconds:.0f} seconds"
    return found


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="Time to spend.")
@click.option("--attack", type=click.Choice(list(ATTACKS)), help="One attack alone.")
@click.option("--first", default=0, show_default=True, help="Seed of the first try.")
def main(seconds: float, attack: str | None, first: int) -> None:
    """Attack files, ledgers and running jobs at random for some time."""
    names = list(ATTACKS) if attack is None else [attack]
    tries = dict.fromkeys(names, 0)
    failures: dict[str, list[str]] = {name: [] for name in names}
    ds.partial_sketch(rows_of(0), MAP, groups=np.arange(60) % 3)  # kernels are compiled
    for kind in MAKERS:
        use(made(kind))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in names:
            for _ in range(1 if name in SLOW else TRIES):
                seed = first + tries[name]
                found = attempt(name, seed)
                tries[name] += 1
                if found is not None:
                    failures[name].append(f"seed {seed}: {found}")
                    click.echo(f"{name}, seed {seed}: {found}", err=True)
                if time.monotonic() >= end:
                    break
    rows = [(name, f"{tries[name]:,}", f"{len(failures[name]):,}") for name in names]
    click.echo(text_table(rows, header=("attack", "tries", "failures")))
    if any(failures.values()):
        click.echo(json.dumps({name: found[:5] for name, found in failures.items() if found}))
        raise SystemExit(1)


if __name__ == "__main__":
    main()
