"""A bounded pool of threads over blocks of frequencies.

How frequencies are divided into blocks, and the order in which results are added, do not depend on
the number of threads: a model has the same bits whatever it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psutil

_MOST = 16  # beyond, what stands between two passes over the frequencies counts for more
Block = TypeVar("Block")
Result = TypeVar("Result")


class Threads:
    """Threads that work on the blocks of one pass, the calling one among them.

    Parameters
    ----------
    n_threads
        Number of threads ``>= 1``; one makes no pool.

    Examples
    --------
    >>> with Threads(2) as threads:
    ...     threads.each(lambda: abs, [-1, 2, -3])
    [1, 2, 3]
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._pool = ThreadPoolExecutor(n_threads - 1) if n_threads > 1 else None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def each(
        self, prepare: Callable[[], Callable[[Block], Result]], blocks: Iterable[Block]
    ) -> list[Result]:
        """Results of all blocks, in their order.

        Parameters
        ----------
        prepare
            Called once by each thread that takes part; returns what it calls on each block. Arrays
            that are written to belong in there.
        blocks
            Whatever is worked on at once; a thread takes the next when it is free.
        """
        waiting = list(enumerate(blocks))[::-1]
        helpers = min(self.n_threads, len(waiting)) - 1
        found: dict[int, Result] = {}

        def work() -> None:
            run = prepare()
            while True:
                try:
                    index, block = waiting.pop()
                except IndexError:
                    return
                found[index] = run(block)

        n_blocks = len(waiting)
        if self._pool is None or helpers < 1:
            work()
        else:
            others = [self._pool.submit(work) for _ in range(helpers)]
            try:
                work()
            finally:
                waiting.clear()
                for other in others:
                    other.result()
        return [found[index] for index in range(n_blocks)]


SERIAL = Threads(1)


def default_n_threads() -> int:
    """Cores that this process may use, at most 16 and at most what ``OMP_NUM_THREADS`` says.

    One in any thread but the main one, as in a worker of Dask, where others work beside it.
    """
    if threading.current_thread() is not threading.main_thread():
        return 1
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = psutil.cpu_count() or 1
    said = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, _MOST, int(said) if said.isdigit() else cores))
