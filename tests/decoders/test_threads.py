"""Threads and executors share the work and change nothing of the result."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from dask_sketch.decoders import decode
from dask_sketch.decoders.threads import Threads, default_n_threads
from dask_sketch.errors import DecodeError
from dask_sketch.models import Centroids


def same(one, other):
    first, second = (
        (m.weights, m.centers) if isinstance(m, Centroids) else (m.weights, m.means, m.covariances)
        for m in (one, other)
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.decoding.cost == other.decoding.cost
    assert one.decoding.trace == other.decoding.trace
    assert one.decoding.n_evaluations == other.decoding.n_evaluations


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


@pytest.mark.parametrize(
    "options",
    [
        {"method": "splitting", "refine": "efficient"},
        {"method": "cl-ompr"},
        {"method": "density"},
        {"method": "sketch-shift"},
    ],
    ids=lambda options: options["method"],
)
def test_same_bits_for_any_number_of_threads(sketch, options, monkeypatch):
    monkeypatch.setattr("dask_sketch.decoders.atoms._BLOCK", 256)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._PAIRS", 2)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._TILE", 64)
    monkeypatch.setattr("dask_sketch.decoders.normal_equations._COLUMNS", 4)
    alone = decode(sketch, 3, threads=1, **options)
    for n_threads in (2, 3):
        same(decode(sketch, 3, threads=n_threads, **options), alone)


@pytest.mark.parametrize("method", ["splitting", "density"])
def test_replicates_in_an_executor(sketch, method):
    seen = []
    here = decode(sketch, 3, method=method, replicates=3, seed=4)
    with ThreadPoolExecutor(2) as executor:
        there = decode(
            sketch,
            3,
            method=method,
            replicates=3,
            seed=4,
            executor=executor,
            progress=lambda done, total, cost: seen.append((done, total)),
        )
    same(there, here)
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_replicates_in_processes(sketch):
    here = decode(sketch, 3, method="splitting", replicates=2)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        same(decode(sketch, 3, method="splitting", replicates=2, executor=executor), here)


def test_what_fails_there_fails_here(sketch):
    class Broken(ThreadPoolExecutor):
        def submit(self, function, /, *args, **kwargs):
            return super().submit(lambda: 1 // 0)

    with Broken(1) as executor, pytest.raises(ZeroDivisionError):
        decode(sketch, 3, replicates=2, executor=executor)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_refuses_no_threads(sketch, threads):
    with pytest.raises(DecodeError, match=f"threads={threads!r}"):
        decode(sketch, 3, threads=threads)


def test_what_is_no_executor_or_progress_is_refused(sketch):
    with pytest.raises(DecodeError, match="executor=3: give a concurrent"):
        decode(sketch, 3, executor=3)
    with pytest.raises(DecodeError, match="progress=1: give True for a bar, a function"):
        decode(sketch, 3, progress=1)
