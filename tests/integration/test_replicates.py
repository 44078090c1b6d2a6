"""Replicates of a decoding on the workers of a cluster."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest

from dask_sketch import FeatureMap, decode, partial_sketch
from dask_sketch.decoders.problem import Problem
from dask_sketch.models import random_mixture


@pytest.fixture(scope="module")
def sketch():
    truth = random_mixture(3, 2, seed=9)
    return partial_sketch(truth.sample(20_000, seed=5), FeatureMap(2, 150, scale=1.3, seed=6))


def test_the_executor_of_a_client_gives_the_same_model(sketch, process_client):
    here = decode(sketch, 3, method="splitting", replicates=3, seed=1, threads=2)
    keys = []
    with process_client.get_executor() as executor:
        submit = executor.submit
        executor.submit = lambda *args, **kwargs: keys.append(args[0]) or submit(*args, **kwargs)
        there = decode(sketch, 3, method="splitting", replicates=3, seed=1, executor=executor)
    assert len(keys) == 3
    found = process_client.run(lambda: "dask_sketch.decoders.replicates" in sys.modules)
    assert any(found.values())  # on the workers
    for a, b in zip(
        (here.weights, here.means, here.covariances),
        (there.weights, there.means, there.covariances),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    assert here.decoding.trace == there.decoding.trace


def test_a_task_carries_no_frequencies():
    sketch = partial_sketch(np.zeros((5, 12)), FeatureMap(12, 2000, scale=1.0))
    _ = sketch.feature_map.frequencies  # drawn, and not sent
    problem = Problem(sketch, 3, "splitting", "gaussian")
    assert len(pickle.dumps(problem)) < 32 * 2000 + 5000
