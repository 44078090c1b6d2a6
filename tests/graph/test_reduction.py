"""Reductions of any kind: on arrays and bags, in one graph, in batches and as a Delayed."""

from __future__ import annotations

import pickle
from functools import partial

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.graph import LazyResult
from dask_sketch.graph.reduction import Reduction

X = np.arange(120.0).reshape(60, 2)
LABELS = np.arange(60) // 20


def sum_chunk(rows, weights, label, power):
    return (np.asarray(rows) ** power).sum(axis=0)


def total(parts):
    return np.sum(parts, axis=0)


def norm(found, unit):
    return 0.0 if found is None else float(found.sum()) / unit


def sums(power=1, unit=1.0):
    return Reduction("sums", partial(sum_chunk, power=power), total, partial(norm, unit=unit))


def sources():
    blocks = [X[i : i + 10] for i in range(0, 60, 10)]
    return {
        "array": da.from_array(X, chunks=(10, 2)),
        "features": da.from_array(X, chunks=(10, 1)),
        "grid": da.from_array(X.reshape(6, 10, 2), chunks=(2, 5, 2)),
        "bag": db.from_sequence(blocks, npartitions=3),
    }


@pytest.mark.parametrize("kind", ["array", "features", "grid", "bag"])
def test_the_same_result_in_every_way(kind):
    lazy = LazyResult(ds.open_samples(sources()[kind]), sums(unit=2.0), 2)
    assert dask.is_dask_collection(lazy)
    assert lazy.compute() == X.sum() / 2
    assert dask.compute(lazy)[0] == X.sum() / 2
    assert lazy.persist().compute() == X.sum() / 2
    assert lazy.to_delayed().compute() == X.sum() / 2
    part = lazy.part(range(1, 2)).compute()
    assert lazy.reduction.finalize(part) < X.sum() / 2
    with dask.config.set({"sketch.task-limit": 1, "sketch.batch-tasks": 2}):
        assert lazy.compute() == X.sum() / 2


def test_no_blocks_are_finalised_as_none():
    empty = db.from_sequence([X], npartitions=1).filter(lambda block: False)
    lazy = LazyResult(ds.open_samples(empty), sums())
    assert lazy.compute(scheduler="sync") == 0.0
    with dask.config.set({"sketch.task-limit": 1, "sketch.batch-tasks": 1}):
        assert lazy.compute(scheduler="sync") == 0.0


def test_reductions_that_differ_have_other_tokens():
    samples = ds.open_samples(sources()["array"])
    reductions = [sums(), sums(power=2), sums(unit=2.0)]
    lazy = [LazyResult(samples, reduction) for reduction in reductions]
    assert len({dask.base.tokenize(one) for one in lazy}) == 3
    expected = [X.sum(), (X**2).sum(), X.sum() / 2]
    assert list(dask.compute(*lazy, scheduler="sync")) == expected


def test_a_reduction_can_be_pickled():
    again = pickle.loads(pickle.dumps(sums(power=2)))
    assert again.chunk(X, None, "x").tolist() == (X**2).sum(axis=0).tolist()
    assert again.finalize(None) == 0.0


def count_groups(rows, weights, label, groups):
    return dict(
        zip(*(each.tolist() for each in np.unique(groups, return_counts=True)), strict=True)
    )


def add_counts(parts):
    found = {}
    for part in parts:
        for key, count in part.items():
            found[key] = found.get(key, 0) + count
    return found


def test_labels_of_groups_reach_the_chunks():
    samples = ds.open_samples(sources()["array"], groups=LABELS)
    counts = LazyResult(samples, Reduction("count", count_groups, add_counts, uses_groups=True))
    assert counts.compute() == {0: 20, 1: 20, 2: 20}
    assert LazyResult(samples, sums()).compute() == X.sum()  # without them


def test_checks_run_before_the_computation_and_before_merges(counting):
    def refuse(*arguments):
        raise MemoryError(str(len(arguments)))

    samples = ds.open_samples(sources()["array"])
    chunk = partial(sum_chunk, power=1)
    with pytest.raises(MemoryError, match="3"):
        LazyResult(samples, Reduction("sums", chunk, total, require_fit=refuse)).compute()
    assert counting.computes == 0
    with pytest.raises(MemoryError, match="1"):
        LazyResult(samples, Reduction("sums", chunk, total, require_room=refuse)).compute()
    assert counting.computes == 1


class Heavy:
    """A constant of a chunk function that is sent once to each worker."""

    def __init__(self):
        self.values = np.ones(10_000)

    def __dask_tokenize__(self):
        return "heavy"


def scaled(rows, weights, label, heavy):
    return np.asarray(rows).sum(axis=0) * heavy.values[0]


@pytest.mark.parametrize("kind", ["array", "bag"])
def test_large_constants_are_a_task_of_their_own(kind):
    heavy = Reduction("scaled", partial(scaled, heavy=Heavy()), total, partial(norm, unit=1.0))
    lazy = LazyResult(ds.open_samples(sources()[kind]), heavy)
    keys = [key for key in dict(lazy.__dask_graph__()) if "scaled-shared" in str(key)]
    assert len(keys) == 1
    assert lazy.compute(scheduler="sync") == X.sum()


def test_its_description():
    lazy = LazyResult(ds.open_samples(sources()["array"], groups=LABELS), sums())
    assert lazy.as_dict()["computes"] == "sums"
    assert (lazy.as_dict()["n_chunks"], lazy.as_dict()["groups"]) == (6, None)
    assert "sums" in repr(lazy)
    assert "6" in lazy._repr_html_()
