"""Starts runs of jobs as processes that can be killed: forked, so that each is there at once.

As a program it is the one that forks. It has imported everything and started no thread, so that its
children are like processes that were started afresh, without the seconds that takes.
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

    def start(self, job: Path, failing: float = 0.0, seed: int = 0) -> int:
        """Process number of a run; with that share of its writes failing."""
        self._send([str(job), failing, seed])
        return int(self._answer()["pid"])

    def wait(self) -> int:
        """Exit code of the run, or less than zero the signal that it was killed by."""
        code = int(self._answer()["code"])
        self._send([])
        return code

    def kill(self, pid: int) -> int:
        """Kill a run, if it has not ended; its exit code."""
        os.kill(pid, signal.SIGKILL)
        return self.wait()

    def _send(self, message: list[object]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(message) + "\n")
        self._server.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        found: dict[str, Any] = json.loads(self._server.stdout.readline())
        return found


def fail_writes(share: float, seed: int) -> None:
    """Let that share of what reaches the disk fail, before or after it is there."""
    draw = random.Random(seed)
    inner = os.fsync

    def fsync(handle: int) -> None:
        if draw.random() < share:
            raise OSError(28, "No space left on device")
        inner(handle)

    os.fsync = fsync


def run(path: str, failing: float, seed: int) -> int:
    from dask_sketch.errors import LedgerError
    from dask_sketch.jobs.run import run_job

    if failing:
        fail_writes(failing, seed)
    try:
        run_job(path)
    except LedgerError:
        return RUN_FAILED
    except BaseException:
        Path(path).with_suffix(".error").write_text(traceback.format_exc())
        return RUN_FAILED + 1
    return 0


def serve() -> None:
    import numpy as np

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
        job, failing, seed = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(run(job, failing, seed))
        tell({"pid": pid})
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        killed = ended.si_code != os.CLD_EXITED
        tell({"code": -ended.si_status if killed else ended.si_status})
        # until that is known its number is not given to another process, which would be killed
        sys.stdin.readline()
        os.waitpid(pid, 0)


def tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
