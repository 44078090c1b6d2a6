"""Threads and executors divide the work and change nothing of the result."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dask_sketch import decode, partial_sketch
from dask_sketch.features import FeatureMap
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


def test_same_bits_for_any_number_of_threads(samples):
    # frequencies enough for several tiles of the refinement
    sketch = partial_sketch(samples, FeatureMap(2, 600, scale=1.0, seed=6))
    options = {"method": "splitting", "refine": "efficient"}
    same(decode(sketch, 3, threads=3, **options), decode(sketch, 3, threads=1, **options))


@pytest.mark.parametrize("method", ["density", "sketch-shift"])
@pytest.mark.slow
def test_same_centroids_for_any_number_of_threads(sketch, method):
    alone = decode(sketch, 3, model="dirac", method=method, threads=1)
    same(decode(sketch, 3, model="dirac", method=method, threads=3), alone)


@pytest.mark.parametrize("method", ["splitting", "sketch-shift"])
@pytest.mark.slow
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


@pytest.mark.parametrize("method", ["splitting", "density", "sketch-shift"])
def test_tasks_and_results_pickle(sketch, method):
    class Pickling(ThreadPoolExecutor):
        """As an executor of processes, which tests/graph/test_replicates.py starts."""

        def submit(self, function, /, *args):
            function, args = pickle.loads(pickle.dumps((function, args)))
            return super().submit(lambda: pickle.loads(pickle.dumps(function(*args))))

    here = decode(sketch, 3, method=method)
    with Pickling(1) as executor:
        same(decode(sketch, 3, method=method, executor=executor), here)


def test_errors_in_an_executor_are_raised_here(sketch):
    class Broken(ThreadPoolExecutor):
        def submit(self, function, /, *args, **kwargs):
            return super().submit(lambda: 1 // 0)

    with Broken(1) as executor, pytest.raises(ZeroDivisionError):
        decode(sketch, 3, replicates=2, executor=executor)
