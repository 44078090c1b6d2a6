"""Sources, artifacts, ledgers and their locks on object stores that are reached over HTTP."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import zarr
from jobs.places import N_FEATURES, ROWS, rows_of, write_rows

import dask_sketch as ds
from dask_sketch import FeatureMap, create_ledger, open_ledger, open_samples
from dask_sketch.errors import ArtifactError, LedgerError, LedgerLocked
from dask_sketch.jobs.ledger import Partition
from dask_sketch.jobs.ledger.partitions import partitions_of

pytestmark = [pytest.mark.real, pytest.mark.slow]
FEATURE_MAP = FeatureMap(N_FEATURES, 20, scale=1.0, seed=3)
CHUNK_SIZE = ROWS * N_FEATURES * 4


def write_source(kind, folder):
    """Path of a source of 100 rows, and the pattern that is opened."""
    rows = rows_of(100)
    path = folder / "data"
    if kind == "zarr":
        write_rows(path, rows)
    elif kind == "shards":
        shards, chunks = (2 * ROWS, N_FEATURES), (ROWS, N_FEATURES)
        store = zarr.create_array(path, shape=rows.shape, shards=shards, chunks=chunks, dtype="f4")
        store[:] = rows
    else:
        for number in range(4):
            (path / f"day={number}").mkdir(parents=True)
            frame = pd.DataFrame(rows[25 * number : 25 * (number + 1)], columns=["a", "b"])
            frame.to_parquet(path / f"day={number}" / "0.parquet")
    return path, "/*/*.parquet" if kind == "glob" else ""


KINDS = ["zarr", "shards", "folder", "glob"]


@pytest.mark.parametrize("kind", KINDS)
def test_sketches_have_the_bits_of_a_local_disk(kind, bucket, tmp_path):
    if kind == "shards" and bucket.url.startswith("gs:"):
        pytest.skip("this server answers a request for the last bytes with all of them")
    path, pattern = write_source(kind, tmp_path)
    url = bucket.put(path)
    local = ds.sketch(f"{path}{pattern}", FEATURE_MAP, chunk_size=CHUNK_SIZE)
    remote = ds.sketch(
        f"{url}{pattern}", FEATURE_MAP, chunk_size=CHUNK_SIZE, storage_options=bucket.options
    )
    assert remote.compute(scheduler="threads").identical(local.compute(scheduler="threads"))


@pytest.mark.parametrize("kind", ["folder", "glob"])
def test_a_file_that_was_added_is_read(kind, bucket, tmp_path):
    path, pattern = write_source(kind, tmp_path)
    url = bucket.put(path)
    counts = []
    for added in (False, True):
        if added:  # by another process, of which this one knows nothing
            (path / "day=4").mkdir()
            (path / "day=3" / "0.parquet").rename(path / "day=4" / "0.parquet")
            content = (path / "day=4" / "0.parquet").read_bytes()
            other = type(bucket.fs)(**bucket.options, skip_instance_cache=True)
            other.pipe_file(f"{url}/day=4/0.parquet", content)
        samples = open_samples(f"{url}{pattern}", storage_options=bucket.options)
        counts.append(ds.sketch(samples, FEATURE_MAP).compute(scheduler="threads").count)
    assert counts == [100, 125]


@pytest.mark.parametrize("kind", KINDS)
def test_fingerprints_do_not_depend_on_how_objects_are_listed(kind, bucket, tmp_path):
    path, pattern = write_source(kind, tmp_path)
    url = bucket.put(path)
    samples = open_samples(f"{url}{pattern}", chunk_size=CHUNK_SIZE, storage_options=bucket.options)
    every = partitions_of(samples)
    single = [partitions_of(samples, chunks=[number])[0] for number in range(samples.n_chunks)]
    assert every == single
    if kind == "zarr":
        many = rows_of(100 * ROWS)
        (tmp_path / "more").mkdir()
        write_rows(tmp_path / "more" / "data", np.concatenate([rows_of(100), many]))
        bucket.put(tmp_path / "more" / "data")
        listed = partitions_of(
            open_samples(url, chunk_size=CHUNK_SIZE, storage_options=bucket.options)
        )
        assert len(listed) > 64  # objects are listed, no longer asked for one by one
        assert [part.fingerprint for part in listed[:5]] == [part.fingerprint for part in every]


def test_artifacts_come_back(bucket, tmp_path):
    options = {"storage_options": bucket.options}
    sketch = ds.partial_sketch(rows_of(50), FEATURE_MAP)
    model = ds.GaussianMixture([0.5, 0.5], [[0.0, 1.0], [2.0, 3.0]], [[1.0, 1.0], [2.0, 2.0]])
    for artifact, name in ((sketch, "s.zarr"), (model, "m.zarr")):
        artifact.to_zarr(f"{bucket.url}/{name}", **options)
        with pytest.raises(ArtifactError, match="overwrite=True"):
            artifact.to_zarr(f"{bucket.url}/{name}", **options)
        artifact.to_zarr(f"{bucket.url}/{name}", overwrite=True, **options)
    assert ds.open(f"{bucket.url}/s.zarr", **options).identical(sketch)
    np.testing.assert_array_equal(ds.open(f"{bucket.url}/m.zarr", **options).means, model.means)
    bucket.fs.pipe_file(f"{bucket.url}/other/x", b"x")
    with pytest.raises(ArtifactError, match="other"):
        sketch.to_zarr(f"{bucket.url}/other", overwrite=True, **options)


def ignores_conditions(bucket):
    """Whether the server replaces an object that was to be created."""
    for content in (b"1", b"2"):
        with contextlib.suppress(FileExistsError):
            bucket.fs.pipe_file(f"{bucket.url}/once", content, mode="create")
    return bucket.fs.cat_file(f"{bucket.url}/once") == b"2"


def test_one_of_many_creates_a_ledger(bucket, proxy):
    """The proxy passes on one conditional write after the other, as a real store does."""
    bucket = bucket.through(proxy)
    if ignores_conditions(bucket):
        pytest.skip("this server writes an object that must not exist although it does")
    begin = threading.Barrier(6)

    def create(_):
        begin.wait()
        try:
            create_ledger(f"{bucket.url}/ledger", FEATURE_MAP, storage_options=bucket.options)
        except LedgerError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(create, range(6))) == 1
    assert open_ledger(f"{bucket.url}/ledger", storage_options=bucket.options).next_run == 1


def test_one_of_many_takes_the_lock(bucket, proxy):
    bucket = bucket.through(proxy)
    create_ledger(f"{bucket.url}/ledger", FEATURE_MAP, storage_options=bucket.options)
    begin, end = threading.Barrier(6), threading.Barrier(6)

    def take(number):
        ledger = open_ledger(f"{bucket.url}/ledger", storage_options=bucket.options)
        begin.wait()
        try:
            with ledger.lock():
                part = Partition(f"p{number}", "v0", 10, 100)
                ledger.commit([(part, ds.partial_sketch(rows_of(10), FEATURE_MAP))])
                end.wait()
        except LedgerLocked:
            end.wait()
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(take, range(6))) == 1
    ledger = open_ledger(f"{bucket.url}/ledger", storage_options=bucket.options)
    assert len(ledger.entries) == 1
    with ledger.lock() as lock:
        assert lock.broken is None
