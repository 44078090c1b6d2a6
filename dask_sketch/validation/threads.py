"""Threads of the decoders, and linear algebra in one thread.

Neither the division of the frequencies into blocks nor the order of the sums depends on the number
of threads, so that a model has the same bits with any number of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import psutil
from threadpoolctl import ThreadpoolController

# cores that are used by default, at most: more threads wait for the serial code between two passes
# over the frequencies
_MAX_DEFAULT = 16
Block = TypeVar("Block")
Result = TypeVar("Result")


class Threads:
    """Threads that work on the blocks of one pass, with the calling thread among them.

    Parameters
    ----------
    n_threads
        Number of threads ``>= 1``; with one there is no pool.

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
        """Results of all blocks, in the order of the blocks.

        Parameters
        ----------
        prepare
            Function that each participating thread calls once; it returns the function of a block.
            Scratch arrays are allocated in it, one set for each thread.
        blocks
            Blocks of work; an idle thread takes the next one.
        """
        waiting = list(enumerate(blocks))[::-1]
        helpers = min(self.n_threads, len(waiting)) - 1
        results: dict[int, Result] = {}

        def work() -> None:
            run = prepare()
            while True:
                try:
                    index, block = waiting.pop()
                except IndexError:
                    return
                results[index] = run(block)

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
        return [results[index] for index in range(n_blocks)]


SERIAL = Threads(1)


def default_n_threads() -> int:
    """Number of cores that this process may use, at most 16 and at most ``OMP_NUM_THREADS``.

    One outside of the main thread, since a task of a Dask worker runs beside others.
    """
    if threading.current_thread() is not threading.main_thread():
        return 1
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        cores = psutil.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, _MAX_DEFAULT, int(limit) if limit.isdigit() else cores))


@cache
def _libraries() -> ThreadpoolController:
    """BLAS of NumPy and of SciPy, which take milliseconds to find."""
    import scipy.linalg  # noqa: F401 - it loads its BLAS

    return ThreadpoolController()


class ProcessContext(AbstractContextManager[None]):
    """State of the whole process that all threads share: the last one to leave restores it.

    Threads that save and restore such state on their own, in overlapping periods, restore each
    other's: at the end it stays as it was changed.

    Parameters
    ----------
    manager
        Function that returns a context manager of this state.

    Examples
    --------
    >>> import contextlib
    >>> context = ProcessContext(lambda: contextlib.closing(open(os.devnull)))
    >>> with context, context:
    ...     pass
    """

    def __init__(self, manager: Callable[[], AbstractContextManager[Any]]) -> None:
        self._manager, self._lock, self._n_users = manager, threading.Lock(), 0
        self._entered: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._entered is None:
                entered = self._manager()
                entered.__enter__()
                self._entered = entered
            self._n_users += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._n_users -= 1
            if self._n_users == 0:
                entered, self._entered = self._entered, None
                assert entered is not None
                entered.__exit__(None, None, None)


class SharedLimit(AbstractContextManager[None]):
    """Limit of the whole process that each of its threads may hold, as :class:`ProcessContext`.

    The thread that sets a limit of OpenBLAS must lift it, and no other one can set it meanwhile
    (https://github.com/joblib/threadpoolctl). So the first thread to enter sets the limit. If it
    leaves before others do, it lifts the limit, and a thread that does nothing else sets it again
    until the last one has left.

    Parameters
    ----------
    limit
        Function that sets the limit, and returns a context manager that lifts it.

    Examples
    --------
    >>> with SharedLimit(lambda: _libraries().limit(limits=1, user_api="blas")):
    ...     pass
    """

    def __init__(self, limit: Callable[[], AbstractContextManager[Any]]) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._n_users = self._n_of_owner = 0
        self._owner: int | None = None
        self._held: AbstractContextManager[Any] | None = None
        self._holder: tuple[threading.Thread, threading.Event] | None = None

    def __enter__(self) -> None:
        this = threading.get_ident()
        with self._lock:
            if self._n_users == 0:
                held = self._limit()
                held.__enter__()
                self._held, self._owner = held, this
            self._n_users += 1
            self._n_of_owner += this == self._owner

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._n_users -= 1
            if threading.get_ident() == self._owner:
                self._n_of_owner -= 1
                if self._n_of_owner == 0:
                    held, self._held, self._owner = self._held, None, None
                    assert held is not None
                    held.__exit__(None, None, None)
                    if self._n_users:
                        self._hold()
            elif self._n_users == 0 and self._holder is not None:
                (holder, done), self._holder = self._holder, None
                done.set()
                holder.join()

    def _hold(self) -> None:
        """Start a thread that holds the limit for the others."""
        ready, done = threading.Event(), threading.Event()

        def hold() -> None:
            try:
                with self._limit():
                    ready.set()
                    done.wait()
            finally:
                ready.set()

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        ready.wait()
        self._holder = holder, done


_ONE_BLAS_THREAD = SharedLimit(lambda: _libraries().limit(limits=1, user_api="blas"))


def one_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread, so that rounding does not depend on the number of threads.

    Small matrices are multiplied no slower by one thread.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     total = np.ones((2, 2)) @ np.ones(2)
    """
    return _ONE_BLAS_THREAD
