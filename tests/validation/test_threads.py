from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import scipy.linalg  # noqa: F401 - it loads its BLAS
from threadpoolctl import threadpool_info

from dask_sketch.validation.threads import (
    ProcessContext,
    Threads,
    default_n_threads,
    one_blas_thread,
)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_results_are_in_the_order_of_blocks(n_threads):
    with Threads(n_threads) as threads:
        assert threads.each(lambda: lambda i: i * i, range(100)) == [i * i for i in range(100)]
        assert threads.each(lambda: abs, []) == []


def test_each_thread_prepares_for_itself():
    barrier = threading.Barrier(3, timeout=30)
    seen = []

    def prepare():
        mine = []
        seen.append(mine)

        def run(block):
            if len(mine) == 0:
                barrier.wait()  # passes only if three threads are at work
            mine.append((block, threading.get_ident()))

        return run

    with Threads(3) as threads:
        threads.each(prepare, range(60))
    assert len(seen) == 3
    assert sorted(block for mine in seen for block, _ in mine) == list(range(60))
    assert all(len({ident for _, ident in mine}) == 1 for mine in seen)


def test_errors_come_through():
    with Threads(3) as threads, pytest.raises(ZeroDivisionError):
        threads.each(lambda: lambda i: 1 // (i - 37), range(40))


def test_default_number(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert default_n_threads() == min(cores, 16)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert default_n_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "dynamic")
    assert default_n_threads() == min(cores, 16)
    with ThreadPoolExecutor(1) as pool:  # as in a task of Dask
        assert pool.submit(default_n_threads).result() == 1


def n_threads():
    return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]


def test_one_thread_inside_and_as_many_as_before_outside():
    before = n_threads()
    with one_blas_thread():
        assert set(n_threads()) == {1}
        with one_blas_thread():
            pass
        assert set(n_threads()) == {1}
    assert n_threads() == before


def test_the_last_thread_to_leave_restores_the_state_of_the_process():
    state, seen = {"value": 0}, []

    @contextlib.contextmanager
    def changed():
        before = state["value"]
        state["value"] = 1
        yield
        state["value"] = before

    context = ProcessContext(changed)
    first_left, second_entered = threading.Event(), threading.Event()

    def first():
        with context:
            assert second_entered.wait(30)
        first_left.set()

    def second():
        with context:
            second_entered.set()
            assert first_left.wait(30)
            seen.append(state["value"])

    with ThreadPoolExecutor(2) as executor:
        for future in [executor.submit(first), executor.submit(second)]:
            future.result()
    assert seen == [1]
    assert state["value"] == 0


# Threads hold a limit in overlapping periods: the first one to enter leaves first and stays alive.
_OVERLAP = """
import threading
from concurrent.futures import ThreadPoolExecutor
import scipy.linalg
from threadpoolctl import threadpool_info, threadpool_limits
from dask_sketch.validation.threads import one_blas_thread

def seen():
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

inside, left, done = threading.Event(), threading.Event(), threading.Event()

def first():
    with one_blas_thread(), one_blas_thread():
        assert inside.wait(30)
    left.set()
    assert done.wait(30)

def second():
    with one_blas_thread():
        inside.set()
        assert left.wait(30)
        with one_blas_thread():
            within = seen()
    return within, seen()

before = seen()
with ThreadPoolExecutor(2) as executor:
    started = executor.submit(first)
    within, after = executor.submit(second).result()
    with threadpool_limits(1, user_api="blas"):
        limited = seen()
    done.set()
    started.result()
assert within == {1}, within
assert before == after == seen(), (before, after)
assert limited == {1}, limited
"""


@pytest.mark.skipif(
    not any(each["internal_api"] == "openblas" for each in threadpool_info()),
    reason="BLAS is not OpenBLAS",
)
def test_threads_leave_the_threads_of_blas_as_they_were():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", _OVERLAP], check=True, env=environment, timeout=60)


def test_a_context_that_cannot_be_entered_can_be_tried_again():
    tries = iter([OSError("no memory"), None])

    @contextlib.contextmanager
    def at_the_second_try():
        error = next(tries)
        if error is not None:
            raise error
        yield

    context = ProcessContext(at_the_second_try)
    with pytest.raises(OSError, match="memory"), context:
        pass
    with context:
        assert next(tries, "used") == "used"
