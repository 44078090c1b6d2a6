"""A pass over partitions: each one's own sketch, a bounded window, and nothing left behind."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster, WorkerPlugin
from strategies import draw_rows, feature_map

from dask_sketch import FeatureMap, merge, open_samples, partial_sketch
from dask_sketch.errors import ArtifactError, InputError, PlanError
from dask_sketch.graph.chunks import chunk_graphs
from dask_sketch.graph.partitions import sketch_partitions, stream
from dask_sketch.graph.reduction import Reduction
from dask_sketch.sketching.row_sample import RowSampler, RowSampling

FM = feature_map("float32")
X = draw_rows(0, 410, 3)
KINDS = ["zarr", "weighted zarr", "weighted array", "parquet", "masked", "grid", "features",
         "bag", "weighted bag"]  # fmt: skip


def opened(kind, place):
    weights = np.linspace(0, 1, len(X))
    if "zarr" in kind:
        group = zarr.open_group(place / "x.zarr", mode="w")
        group.create_array("x", data=X, chunks=(10, 3))
        group.create_array("w", data=weights, chunks=(10,))
        share = "w" if kind == "weighted zarr" else None
        return open_samples(place / "x.zarr", weights=share, chunk_size=1)
    if kind == "parquet":
        table = pd.DataFrame(X, columns=list("abc")).assign(w=weights)
        for i in range(41):
            table[10 * i : 10 * i + 10].to_parquet(place / f"{i:02}.parquet")
        return open_samples(place, weights="w")
    if "bag" in kind:
        blocks = db.from_sequence([X[i : i + 10] for i in range(0, 410, 10)], npartitions=41)
        if kind == "bag":
            return open_samples(blocks.filter(lambda block: block[0, 0] > -0.5))
        shares = [weights[i : i + 10] for i in range(0, 410, 10)]
        return open_samples(blocks, weights=db.from_sequence(shares, npartitions=41))
    lazy = da.from_array(X, chunks=(10, 1 if kind == "features" else 3))
    if kind == "masked":
        return open_samples(lazy[lazy[:, 0] > 0])
    if kind == "grid":
        return open_samples(lazy.reshape(41, 10, 3).rechunk((3, 4, 3)))
    return open_samples(lazy, weights=weights if "weighted" in kind else None)


def store(place, rows=X, chunk=10):
    path = place / "x.zarr"
    zarr.create_array(path, data=rows, chunks=(chunk, rows.shape[1]))
    return open_samples(path, chunk_size=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few_cases(4)
def test_the_sketches_are_those_of_the_partitions(kind, tmp_path):
    samples = opened(kind, tmp_path)
    chosen = list(range(samples.n_chunks))[::-1]
    done = list(sketch_partitions(samples, chosen, FM))
    assert sorted(number for number, _ in done) == sorted(chosen)
    weights = np.linspace(0, 1, len(X))
    for number, got in done:
        if kind in ("masked", "grid", "bag"):  # where rows of chunks are not 10 each
            continue
        rows = slice(10 * number, 10 * number + 10)
        share = weights[rows] if "weighted" in kind or kind == "parquet" else None
        assert got.identical(partial_sketch(X[rows], FM, share)), number
    count = {"masked": int((X[:, 0] > 0).sum())}.get(kind, len(X))
    if kind == "bag":
        count = 10 * int((X[::10, 0] > -0.5).sum())
    assert merge([sketch for _, sketch in done]).count == count


@pytest.mark.parametrize("kind", ["zarr", "weighted zarr", "parquet", "grid", "bag", "features"])
@pytest.mark.few_cases(3)
def test_some_partitions(kind, tmp_path):
    samples = opened(kind, tmp_path)
    whole = dict(sketch_partitions(samples, range(samples.n_chunks), FM))
    for chosen in ([], [17], [3, 4, 5], [40, 0, 2, 21]):
        some = dict(sketch_partitions(samples, chosen, FM))
        assert sorted(some) == sorted(chosen)
        assert all(sketch.identical(whole[number]) for number, sketch in some.items())


@pytest.mark.parametrize("kind", ["zarr", "weighted zarr", "parquet", "grid", "bag"])
def test_random_rows_are_chosen_by_the_identity_and_the_position_in_the_chunk(kind, tmp_path):
    samples, sampling = opened(kind, tmp_path), RowSampling(4, seed=3)
    done = dict(sketch_partitions(samples, [3, 17], FM, sampling=sampling))
    for identities in ({3: (3,), 17: (17,)}, {3: (17,), 17: (2**31, 5)}):
        named = dict(
            sketch_partitions(samples, [17, 3], FM, sampling=sampling, identities=identities)
        )
        for number, sketch in named.items():
            alone = RowSampler(sampling, FM, identities[number])
            rows, weights = read_chunk(samples, number)
            alone.add(rows, weights)
            assert sketch.sample.identical(alone.result(rows.dtype)), number
            assert sketch.identical(done[number])
            assert len(sketch.sample) == min(4, sketch.count)
        same_rows = named[17].sample.identical(done[17].sample)
        assert same_rows == (identities[17] == (17,))


def read_chunk(samples, number):
    """Rows of one chunk, and their weights."""
    blocks = [block for block, _ in chunk_graphs(samples, [[number]])[0].blocks()]
    rows = np.concatenate([block.rows.reshape(-1, 3) for block in blocks])
    return rows, None if blocks[0].weights is None else blocks[0].weights.reshape(-1)


def test_no_rows_are_an_empty_sketch():
    samples = open_samples(da.from_array(np.zeros((0, 3)), chunks=(10, 3)))
    assert [sketch.count for _, sketch in sketch_partitions(samples, [0], FM)] == [0]


def test_rows_that_are_not_finite_can_be_left_out():
    bad = X.copy()
    bad[123] = np.nan
    samples = open_samples(da.from_array(bad, chunks=(10, 3)))
    done = dict(sketch_partitions(samples, range(41), FM, nan_policy="omit"))
    assert (done[12].omitted, done[11].omitted) == (1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chosen": [41]}, "0 to 40"),
        ({"chosen": [-1]}, "0 to 40"),
        ({"chosen": [3, 3]}, "different numbers"),
        ({"nan_policy": "ignore"}, "nan_policy='ignore'"),
        ({"attempts": 0}, "attempts=0"),
        ({"backoff": -1.0}, "backoff=-1.0"),
        ({"backoff": float("nan")}, "backoff=nan"),
        ({"in_flight": 0}, "in_flight=0"),
        ({"feature_map": feature_map(n_features=2)}, "has 3 features"),
    ],
)
def test_arguments_are_checked_before_anything_runs(options, message):
    samples = open_samples(da.from_array(X, chunks=(10, 3)))
    with pytest.raises(InputError, match=message):
        sketch_partitions(samples, **({"chosen": [0], "feature_map": FM} | options))


def test_what_cannot_fit_is_refused():
    samples = open_samples(da.ones((10**9, 3), chunks=(10**9, 3)))
    with dask.config.set({"sketch.memory-share": 1e-6}), pytest.raises(PlanError, match="needs"):
        sketch_partitions(samples, [0], FM)


def test_progress_goes_to_standard_error(capsys):
    samples = open_samples(da.from_array(X, chunks=(10, 3)))
    assert len(list(sketch_partitions(samples, range(41), FM, progress=True))) == 41
    out, err = capsys.readouterr()
    assert out == ""
    assert "41 of 41 partitions" in err
    assert err.count("\n") == 1


class Batches:
    """Numbers of the chunks of each task, in the order of the tasks: `prepare` begins a task."""

    def __init__(self):
        self.numbers = []

    def begin(self):
        self.numbers.append([])

    def chunk(self, rows, weights, label):
        self.numbers[-1].append(int(label.split()[1]))
        return len(rows)

    @property
    def lengths(self):
        return [len(numbers) for numbers in self.numbers[1:]]  # the first is that of the client


def batches(samples, chosen, result_bytes=1000):
    found = Batches()
    reduction = Reduction("count", found.chunk, sum, prepare=found.begin)
    with dask.config.set(num_workers=1):
        done = dict(stream(samples, reduction, chosen, result_bytes=result_bytes))
    assert sorted(done) == list(chosen)
    return found.lengths


@pytest.mark.slow
def test_small_chunks_share_tasks_and_large_ones_do_not():
    small = open_samples(da.ones((10_000, 3), chunks=(10, 3)))
    lengths = batches(small, range(1000))
    assert (max(lengths), lengths[-1]) == (64, 1)
    large = open_samples(da.ones((400_000, 3), chunks=(100_000, 3)))
    assert batches(large, range(4)) == [1] * 4
    # the results of a task are of 4 MiB at most
    assert max(batches(small, range(40), result_bytes=2**20)) == 4


@pytest.mark.slow
def test_graphs_are_built_as_they_are_needed():
    cuts = []
    lazy = da.ones((10**6, 3), chunks=(10, 3))

    def cut(span):
        cuts.append(len(span))
        return (lazy[10 * span.start : 10 * span.stop], None, None)

    samples = replace(open_samples(lazy), cut=cut)
    chosen = [*range(500), 99_999]
    with dask.config.set(num_workers=1):
        running = sketch_partitions(samples, chosen, FM, in_flight=10)
        next(running)
        assert cuts == [64]
        running.close()
        cuts.clear()
        assert len(list(sketch_partitions(samples, chosen, FM))) == 501
    assert cuts == [64, 128, 256, 52, 1]


def count_rows(rows, weights, label, groups):
    return dict(zip(*np.unique(groups, return_counts=True), strict=True))


def test_any_reduction_can_be_computed_chunk_by_chunk():
    labels = np.arange(410) // 205
    samples = open_samples(da.from_array(X, chunks=(10, 3)), groups=labels)
    reduction = Reduction("rows", count_rows, list, len, uses_groups=True)
    assert dict(stream(samples, reduction, [3, 20], result_bytes=8)) == {3: 1, 20: 2}


def test_the_window_holds_while_nobody_takes_results(tmp_path):
    seen = []

    def look(block):
        seen.append(len(block))
        return block

    lazy = da.from_array(X, chunks=(10, 3)).map_blocks(look, dtype=X.dtype, meta=X[:0])
    running = sketch_partitions(open_samples(lazy), range(41), FM, in_flight=6)
    next(running)
    time.sleep(0.3)
    assert len(seen) <= 6
    assert len(list(running)) == 40


@pytest.mark.slow
def test_sixty_thousand_partitions():
    samples = open_samples(da.ones((120_000, 3), chunks=(2, 3)))
    count = 0
    for _, sketch in sketch_partitions(samples, range(60_000), FM):
        count += sketch.count
    assert count == 120_000


# -- on a cluster ----------------------------------------------------------------------------


def keys_on(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def settled(client):
    deadline = time.monotonic() + 60
    while (left := keys_on(client)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_the_same_bits_on_a_cluster_and_nothing_left(thread_client, tmp_path):
    for kind in ("zarr", "weighted array", "bag"):
        samples = opened(kind, tmp_path)
        done = dict(sketch_partitions(samples, range(samples.n_chunks), FM))
        with dask.config.set(scheduler="threads"):
            here = dict(sketch_partitions(samples, range(samples.n_chunks), FM))
        assert done.keys() == here.keys()
        assert all(sketch.identical(here[number]) for number, sketch in done.items())
        assert settled(thread_client) == 0


@pytest.mark.slow
def test_results_leave_the_cluster_as_they_are_given(thread_client):
    samples = open_samples(da.from_array(X, chunks=(10, 3)))
    most = 0
    for _ in sketch_partitions(samples, range(41), FM, in_flight=3):
        most = max(most, keys_on(thread_client))
    assert most <= 3
    assert settled(thread_client) == 0


def test_an_iterator_that_is_closed_leaves_nothing(thread_client):
    samples = open_samples(da.from_array(X, chunks=(10, 3)))
    running = sketch_partitions(samples, range(41), FM)
    next(running)
    running.close()
    assert settled(thread_client) == 0


def number_of_rows(rows, weights, label):
    return len(rows)


def fail(found):
    raise ZeroDivisionError


def test_an_error_of_the_computation_leaves_nothing(thread_client):
    samples = open_samples(da.from_array(X, chunks=(10, 3)))
    reduction = Reduction("fails", number_of_rows, sum, fail)
    with pytest.raises(ZeroDivisionError):
        list(stream(samples, reduction, range(41), result_bytes=8))
    assert settled(thread_client) == 0


def test_what_a_cluster_holds_is_refused(thread_client):
    held = da.from_array(X, chunks=(10, 3)).persist()
    with pytest.raises(InputError, match="held by a cluster"):
        sketch_partitions(open_samples(held + 1), [0], FM)


@pytest.mark.slow
def test_a_large_feature_map_is_sent_once(thread_client, monkeypatch):
    large = FeatureMap(3, 40, covariances=np.linspace(1, 2, 3000).reshape(1000, 3))
    sent = []
    honest = type(thread_client).submit

    def weighing(self, function, *arguments, **options):
        sent.append(len(pickle.dumps([a for a in arguments if not hasattr(a, "key")])))
        return honest(self, function, *arguments, **options)

    monkeypatch.setattr(type(thread_client), "submit", weighing)
    samples = open_samples(da.ones((410, 3), chunks=(10, 3)))
    assert len(list(sketch_partitions(samples, range(41), large, in_flight=1))) == 41
    assert len(large.spec) > 20_000
    assert sum(size > 20_000 for size in sent) == 1
    assert max(sorted(sent)[:-1]) < 5_000
    assert len(sent) == 42
    assert settled(thread_client) == 0


class BreakNewWorkers(WorkerPlugin):
    """Workers that join later draw other frequencies."""

    name = "break-new-workers"
    __module__ = "__main__"  # makes it travel as it is: a worker cannot import this file

    def __init__(self, known):
        self.known = known

    def setup(self, worker):
        if worker.address in self.known:
            return
        from dask_sketch.features import frequencies as drawn

        honest = drawn.sample_frequencies
        drawn.sample_frequencies = lambda *args, **kwargs: honest(*args, **kwargs) * 1.01


def test_a_worker_that_joins_later_is_checked_before_it_reads(tmp_path, forked_workers):
    def slow(block, place):
        import os

        time.sleep(0.05)
        (place / str(os.getpid())).touch()
        return block

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        known = set(client.scheduler_info(n_workers=-1)["workers"])
        plugin = BreakNewWorkers(known)
        client.register_plugin(plugin)
        lazy = da.from_array(X, chunks=(1, 3)).map_blocks(slow, tmp_path, meta=X[:0])
        samples, other = open_samples(lazy), feature_map(seed=778)
        running = sketch_partitions(samples, range(410), other, in_flight=4)
        next(running)
        cluster.scale(2)
        client.wait_for_workers(2, timeout=100)
        with pytest.raises(ArtifactError, match="run the same version"):
            list(running)
        assert len(list(tmp_path.iterdir())) == 1  # of the first worker
        assert settled(client) == 0
