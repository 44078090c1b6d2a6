"""Run jobs in forked processes, which start at once and can be killed.

As a program, this is the process that forks. It has imported all modules and started no thread, so
that its children are like new processes, without the seconds of their start.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

RUN_FAILED = 1


class Forge:
    """Starts runs; used as a context manager."""

    def __enter__(self) -> Forge:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._answer() == {"ready": True}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.__exit__(kind, error, at)  # closes both pipes, and waits for its end

    def run(
        self, job: Path, *, failing: float = 0.0, seed: int = 0, kill_at: int | None = None
    ) -> int:
        """Exit code of a run, or below zero the signal that killed it.

        A fraction ``failing`` of its writes fails, and it is killed at its write ``kill_at``.
        """
        self._send([str(job), failing, seed, kill_at])
        return int(self._answer()["code"])

    def _send(self, message: list[object]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(message) + "\n")
        self._server.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        found: dict[str, Any] = json.loads(self._server.stdout.readline())
        return found


def disturb(path: Path, failing: float, seed: int, kill_at: int | None) -> None:
    """Let writes fail, kill this process at one of them, and leave their number in a file.

    The ledger calls ``os.fsync`` for every object, so that all states which a process can leave
    behind lie before or after a call. It waits for no disk here: a killed process loses nothing
    that it wrote, and a loss of power is not tested.
    """
    draw = random.Random(seed)
    calls = 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if draw.random() < failing:
            raise OSError(28, "No space left on device")
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        path.with_suffix(".writes").write_text(str(calls))

    os.fsync = fsync


def run(path: str, failing: float, seed: int, kill_at: int | None) -> int:
    from dask_sketch.errors import LedgerError
    from dask_sketch.jobs.run import run_job

    disturb(Path(path), failing, seed, kill_at)
    try:
        run_job(path)
    except LedgerError:
        return RUN_FAILED
    except BaseException:
        Path(path).with_suffix(".error").write_text(traceback.format_exc())
        return RUN_FAILED + 1
    return 0


def serve() -> None:
    import distributed  # noqa: F401
    import numpy as np
    import sklearn.mixture  # noqa: F401

    import dask_sketch.jobs.results
    import dask_sketch.jobs.run  # noqa: F401
    from dask_sketch import FeatureMap, decode, partial_sketch

    # compiled here once, and not by every child
    rows = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    decode(
        partial_sketch(rows, FeatureMap(2, 50, scale=1.0, distribution="sparse-sums")), 1, threads=1
    )
    tell({"ready": True})
    while line := sys.stdin.readline():
        job, *disturbances = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(run(job, *disturbances))
        tell({"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})


def tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
