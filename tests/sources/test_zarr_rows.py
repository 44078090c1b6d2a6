"""Rows of Zarr stores: tiny chunks, and shards that lack some of theirs."""

from __future__ import annotations

import re

import numpy as np
import pytest
import zarr
from strategies import assert_same_sketch, draw_rows, feature_map

import dask_sketch as ds
from dask_sketch import partial_sketch
from dask_sketch.errors import ChunkError

FM, X = feature_map(), draw_rows(0, 60, 3)


def run(x, **options):
    return ds.sketch(x, FM, **options).compute(scheduler="sync")


@pytest.mark.parametrize("inner", [(5, 3), (5, 1)])
@pytest.mark.parametrize("dtype", ["f8", "i4", "u1"])
def test_a_shard_that_was_half_written_is_an_error_and_not_zeros(inner, dtype, tmp_path):
    x = (1 + np.arange(180).reshape(60, 3) % 7).astype(dtype)
    x[:5, 1] = x[7:19] = 0  # values that were written
    path = tmp_path / "x.zarr"
    array = zarr.create_array(
        path, shape=(60, 3), chunks=inner, shards=(20, 3), dtype=dtype,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    array[:30], array[40:] = x[:30], x[40:]
    with pytest.raises(ChunkError, match=r"rows 20 to 40 .*shard lacks .*missing_chunks"):
        run(path, chunk_size=1)
    filled = x.copy()
    filled[30:40] = 0
    found = run(path, chunk_size=1, missing_chunks="fill")
    assert_same_sketch(found, partial_sketch(filled, FM))
    array[30:40] = x[30:40]
    assert_same_sketch(run(path, chunk_size=1), partial_sketch(x, FM))


def test_the_last_shard_may_be_longer_than_the_array(tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=X[:47], chunks=(5, 3), shards=(20, 3))
    assert_same_sketch(run(tmp_path / "x.zarr", chunk_size=1), partial_sketch(X[:47], FM))


def test_tiny_chunks_are_read_some_at_a_time(tmp_path):
    """All chunks of a task were requested before the first one was found to be missing."""
    path = tmp_path / "s.zarr"
    array = zarr.create_array(path, shape=(10**8, 3), chunks=(1, 3), dtype="f8")
    array[:2] = 1.0
    with pytest.raises(ChunkError, match=r"rows \d+ to \d+ ") as caught:
        run(path)
    first, last = map(int, re.findall(r"\d+", str(caught.value))[:2])
    assert 0 < last - first < 2000


def test_tiny_chunks_are_read_as_they_are(tmp_path):
    x = np.random.default_rng(0).normal(size=(350, 3))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(1, 1))
    assert_same_sketch(run(tmp_path / "x.zarr", chunk_size=350), partial_sketch(x, FM))
