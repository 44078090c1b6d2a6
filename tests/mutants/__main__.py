"""Change the numerics, one place at a time, and see that a test fails.

Mutants are sampled by a seed, as many of each part of the numerics, and tried one after the other
in a temporary copy of the tree. Prints each with its fate, and the survivors again at the end: a
survivor is a defect that no test would notice, or a change that makes no difference. Fails when
more than one mutant in twelve survives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutate import Mutant, mutants

# Modules of each part under dask_sketch, and the tests that should notice a change of them, those
# first that notice most in the least time.
PARTS = {
    "kernel": (
        """
        features/kernels/dense.py
        features/kernels/structured.py
        features/kernels/structured_code.py
        features/kernels/row_loop.py
        features/kernels/row_reader.py
        features/kernels/whitened_rows.py
        features/kernels/grouped.py
        features/kernels/grouped_loops.py
        """,
        """
        compatibility
        features/kernels/test_row_reader.py
        sketching/test_partial.py
        features/kernels/test_dense.py
        features/kernels/test_structured.py
        sketching/test_group_partial.py
        features/kernels/test_prepared.py
        """,
    ),
    "sums": (
        """
        features/kernels/fixed_point.py
        features/kernels/stacked_fixed_point.py
        sketching/accumulator.py
        sketching/partial.py
        """,
        """
        features/kernels/test_fixed_point.py
        features/kernels/test_stacked_fixed_point.py
        compatibility
        sketching/test_partial.py
        sketching/test_group_partial.py
        features/kernels/test_prepared.py
        sketching/test_merge.py
        features/kernels/test_cuda.py
        """,
    ),
    "merge": (
        """
        sketching/sketch.py
        sketching/group.py
        sketching/merge.py
        """,
        """
        sketching/test_sketch.py
        compatibility
        sketching/test_merge.py
        sketching/test_group.py
        sketching/test_group_partial.py
        sketching/test_row_sample.py
        sketching/test_privatise.py
        """,
    ),
    "objective": (
        """
        decoders/objectives/objective.py
        decoders/objectives/atoms.py
        decoders/objectives/atom_kernels.py
        decoders/objectives/normal_equations.py
        decoders/descent.py
        """,
        """
        decoders/objectives/test_atom_kernels.py
        decoders/objectives/test_atoms.py
        decoders/objectives/test_objective.py
        decoders/objectives/test_normal_equations.py
        decoders/test_descent.py
        decoders/test_matrix_descent.py
        decoders/test_matrix_search.py
        decoders/test_efficient.py
        decoders/test_weighted_errors.py
        decoders/test_decode.py
        """,
    ),
    "refinement": (
        """
        decoders/efficient.py
        decoders/noise_covariance.py
        """,
        """
        decoders/test_noise_covariance.py
        decoders/test_efficient.py
        decoders/test_matrix_search.py
        decoders/test_factor_descent.py
        decoders/test_decode.py
        """,
    ),
    "ledger": (
        """
        jobs/ledger/ledger.py
        jobs/ledger/change.py
        jobs/ledger/reader.py
        jobs/ledger/batch.py
        jobs/ledger/sketch_arrays.py
        jobs/ledger/moment_arrays.py
        jobs/ledger/manifest.py
        """,
        """
        jobs/ledger/test_sketch_arrays.py
        jobs/ledger/test_moment_arrays.py
        jobs/ledger/test_ledger.py
        jobs/ledger/test_forgetting.py
        jobs/ledger/test_verification.py
        jobs/ledger/test_damage.py
        jobs/ledger/test_failures.py
        compatibility
        """,
    ),
}
MAY_SURVIVE = 1 / 12
CPU, WALL = 5, 20  # times the seconds of the unchanged tree: then it hangs, and counts as killed
HANGS = 120  # seconds after which one test hangs; no other takes a tenth of it
MEMORY = 12 * 2**30  # bytes of address space
PRELOADED = ("numba", "scipy.optimize", "scipy.special", "scipy.stats", "dask.array", "xarray")
PRELOADED += ("zarr", "fsspec", "pytest", "pandas", "pyarrow.parquet", "distributed")


@dataclass(frozen=True)
class Run:
    """The end of some tests: whether they passed, which did not, why, and seconds of each file."""

    passed: bool
    failures: list[str]
    reason: str
    seconds: dict[str, float]

    def total(self, tests: list[str]) -> float:
        """Seconds of some files or folders."""
        return sum(s for name, s in self.seconds.items() if name.startswith(tuple(tests)))


class Timer:
    """A plugin of pytest, which notes the seconds of each file."""

    def __init__(self, target: Path):
        self._target = target
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._target.write_text(json.dumps(self._seconds), encoding="utf-8")


class Copy:
    """A copy of the tree, in which tests run in forks of this process."""

    def __init__(self, root: Path, folder: Path):
        self.root = folder / "tree"
        self._log = folder / "log"
        self._seconds = folder / "seconds.json"
        self._warm = folder / "compiled"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.root / name)
        self._compiled = self.root / ".pytest_cache" / "numba" / "first"  # as tests/conftest.py
        self._importers = _importers(self.root)
        os.chdir(self.root)
        # the same for all forks, before anything is imported that reads it
        os.environ |= {"PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": str(self._compiled)}
        os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        sys.path[:] = [str(self.root), *(p for p in sys.path if Path(p).resolve() != root)]
        for name in PRELOADED:
            __import__(name)

    def test(self, arguments: list[str], cpu: float = 3600.0, wall: float = 3600.0) -> Run:
        """Run tests."""
        self._seconds.write_text("{}")
        child = os.fork()
        if child == 0:
            self._run_pytest(arguments, cpu)
        status = _wait(child, wall)
        log = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        failed = [line for line in log if line.startswith(("FAILED ", "ERROR "))]
        failures = [line.partition(" ")[2].partition(" - ")[0] for line in failed]
        reason = (failures or log or ["nothing"])[0 if failures else -1]
        if status is None or os.WIFSIGNALED(status):
            reason = "it hung" if status is None else f"signal {os.WTERMSIG(status)}"
        return Run(status == 0, failures, reason, json.loads(self._seconds.read_text()))

    def _run_pytest(self, arguments: list[str], cpu: float) -> None:
        code = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu), int(cpu) + 10))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            import pytest

            options = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of the preloaded
            options += ["-m", "not slow", f"--timeout={HANGS}"]
            code = pytest.main([*options, *arguments], plugins=[Timer(self._seconds)])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def keep_compiled(self) -> None:
        """Keep what the tests of the tree as it is have compiled."""
        shutil.rmtree(self._warm, ignore_errors=True)
        if self._compiled.exists():
            shutil.copytree(self._compiled, self._warm)

    def try_mutant(self, mutant: Mutant, number: int, tests: list[str], usual: Run) -> Run:
        """Run the tests with one change."""
        path = self.root / mutant.path
        source, times = path.read_bytes(), path.stat()
        # numba knows a function by its own file only: without those that may have inlined it
        shutil.rmtree(self._compiled, ignore_errors=True)
        stale = self._importers.get(mutant.path, set()) | {mutant.path}
        names = {(one.parent.name, one.stem) for one in stale}
        if self._warm.exists():
            shutil.copytree(self._warm, self._compiled, ignore=lambda folder, files: [
                file for file in files
                if (Path(folder).name.rpartition("_")[0], file.split(".")[0]) in names
            ])  # fmt: skip
        try:
            path.write_bytes(mutant.apply(source))
            os.utime(path, (times.st_atime, times.st_mtime + 10 * (number + 1)))
            arguments = ["-x", *(f"--deselect={name}" for name in usual.failures), *tests]
            seconds = usual.total(tests)
            return self.test(arguments, CPU * seconds + 120, WALL * seconds + 120)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the compiled files know it


def _wait(child: int, wall: float) -> int | None:
    """The status of a child, or None when it took too long; nothing that it started is left."""
    end, status = time.monotonic() + wall, None
    try:
        while status is None and time.monotonic() < end:
            pid, found = os.waitpid(child, os.WNOHANG)
            if pid:
                status = found
            else:
                time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status


def _importers(root: Path) -> dict[Path, set[Path]]:
    """Files that import each file of the package, directly or not."""
    direct: dict[Path, set[Path]] = {}
    for file in (root / "dask_sketch").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in modules:
                path = Path(*module.split(".")).with_suffix(".py")
                if (root / path).exists():
                    direct.setdefault(path, set()).add(file.relative_to(root))
    found = {}
    for path in direct:
        seen, new = set(), {path}
        while new:
            seen |= new
            new = {one for file in new for one in direct.get(file, ())} - seen
        found[path] = seen
    return found


def sampled(root: Path, parts: list[str], size: int, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Mutants of each part, as many of each, in the order of files and lines.

    Those of :data:`tests.mutants.equivalent.EQUIVALENT` are left out. The order of a hash decides,
    so that most of the sample stays the same when other lines change.
    """
    each = -(-size // len(PARTS))
    for part in parts:
        pool = [
            (place, mutant, mutant.key(root))
            for place, name in enumerate(PARTS[part][0].split())
            for mutant in mutants(root, Path("dask_sketch") / name)
        ]
        pool = [one for one in pool if one[2] not in EQUIVALENT]
        pool.sort(key=lambda one: hashlib.sha256(repr((seed, *one[2])).encode()).digest())
        chosen = sorted(pool[:each], key=lambda one: (one[0], one[1].start))
        yield from ((part, mutant) for _, mutant, _ in chosen)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--size", type=int, default=60, help="mutants, of all parts together")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of mutants in the list")
    options = parser.parse_args()
    root = Path.cwd()
    sample = list(enumerate(sampled(root, options.parts, options.size, options.seed)))
    if options.only is not None:
        sample = [one for one in sample if one[0] in options.only]
    if options.list:
        for number, (part, mutant) in sample:
            _say(f"{number} {part} {mutant.diff(root)}")
        return 0
    for modules, tests in PARTS.values():
        missing = [t for t in tests.split() if not (root / "tests" / t).exists()]
        assert not missing, f"no such tests, change PARTS: {missing} of {modules.split()}"
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        survivors = _try_all(Copy(root, Path(folder).resolve()), sample)
    _say(f"\n{len(sample) - len(survivors)} of {len(sample)} mutants were killed.")
    if survivors:
        _say("Survivors:")
    for number, (part, mutant) in survivors:
        _say(f"{number} {part} {mutant.diff(root)}")
    return int(len(survivors) > MAY_SURVIVE * len(sample))


Numbered = tuple[int, tuple[str, Mutant]]


def _try_all(tree: Copy, sample: list[Numbered]) -> list[Numbered]:
    tests = {part: [f"tests/{name}" for name in PARTS[part][1].split()] for part in PARTS}
    parts = {part for _, (part, _) in sample}
    usual = tree.test(
        list(dict.fromkeys(name for part in tests if part in parts for name in tests[part]))
    )
    _say(f"the tree as it is: {sum(usual.seconds.values()):.0f} s of tests; {usual.reason}")
    if not usual.passed:
        _say(f"left out, as they fail without any change: {usual.failures}")
        if not usual.failures or any("::" not in name for name in usual.failures):
            sys.exit("the tests cannot be run")
    tree.keep_compiled()
    survivors = []
    for number, (part, mutant) in sample:
        run = tree.try_mutant(mutant, number, tests[part], usual)
        fate = "SURVIVED" if run.passed else f"killed by {run.reason}"
        _say(f"\n{number} {part} {mutant.diff(tree.root)}")
        _say(f"  {fate}; {sum(run.seconds.values()):.0f} s")
        if run.passed:
            survivors.append((number, (part, mutant)))
    return survivors


if __name__ == "__main__":
    sys.exit(main())
