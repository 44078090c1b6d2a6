"""Failures during a stream of chunks: nothing is lost, and nothing hangs."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster
from strategies import draw_rows, feature_map

from dask_sketch import Sketch, open_samples, partial_sketch
from dask_sketch.errors import ChunkError, ClusterError
from dask_sketch.graph.partitions import sketch_partitions

FM = feature_map("float32")
X = draw_rows(0, 400, 3)
EXPECTED = [partial_sketch(X[i : i + 10], FM) for i in range(0, 400, 10)]


def by_value(function):
    """Make a function travel as it is: a worker process cannot import this file."""
    function.__module__ = "__main__"
    return function


def array(function, *arguments):
    """Samples of 40 chunks; ``function`` gets each as it is read, with its first number."""
    lazy = da.from_array(X, chunks=(10, 3))
    return open_samples(lazy.map_blocks(function, *arguments, meta=X[:0], dtype=X.dtype))


def assert_each_once(done, numbers=range(40)):
    """Every partition was given one time, with the bits of its own sketch."""
    assert sorted(number for number, _ in done) == sorted(numbers)
    for number, sketch in done:
        assert sketch.identical(EXPECTED[number]), number


@by_value
def number_of(block):
    return int(np.flatnonzero((block[0] == X).all(axis=1))[0]) // 10


@by_value
def record(place, block):
    """Note when a partition was read; which time it was, from 1."""
    file = place / f"{number_of(block)}"
    with file.open("a") as handle:
        handle.write(f"{time.time()}\n")
    return len(file.read_text().splitlines())


def times(place, number):
    return [float(line) for line in (place / f"{number}").read_text().splitlines()]


@by_value
def fails_first(block, place, numbers, failures):
    if record(place, block) <= failures and number_of(block) in numbers:
        raise OSError("the store is busy")
    return block


@pytest.fixture(params=["threads", "cluster"])
def somewhere(request):
    """Local threads, and the threads of a cluster; what its workers log as warnings."""
    if request.param == "threads":
        with dask.config.set(num_workers=2):
            yield []
        return
    request.getfixturevalue("thread_client")
    logged = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = logged.append
    # others say that a loaded machine was slow
    logging.getLogger("distributed.worker").addHandler(handler)
    yield logged
    logging.getLogger("distributed.worker").removeHandler(handler)


# -- reading ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_reads_that_fail_at_first_are_tried_again(somewhere, tmp_path):
    samples = array(fails_first, tmp_path, {3, 4, 20}, 2)
    assert_each_once(list(sketch_partitions(samples, range(40), FM, backoff=0.01)))
    assert [len(times(tmp_path, n)) for n in (2, 3, 4, 20)] == [1, 3, 3, 3]
    assert not somewhere  # no worker has logged anything


@pytest.mark.slow
def test_the_pauses_grow_and_no_thread_sleeps(tmp_path):
    samples = array(fails_first, tmp_path, {0}, 2)
    with dask.config.set(num_workers=1):
        done = list(sketch_partitions(samples, range(40), FM, backoff=0.2))
    assert_each_once(done)
    assert done[-1][0] == 0
    first, second, third = times(tmp_path, 0)
    assert second - first >= 0.2
    assert third - second >= 0.4
    others = [times(tmp_path, number)[0] for number in range(1, 40)]
    # the only thread had better to do than to wait
    assert any(first < other < second for other in others)


def test_what_stays_unreadable_is_given_up_and_the_rest_is_done(somewhere, tmp_path):
    samples = array(fails_first, tmp_path, {3, 4, 20}, 99)
    done = list(sketch_partitions(samples, range(40), FM, attempts=4, backoff=0.01))
    assert_each_once(
        [(n, sketch) for n, sketch in done if isinstance(sketch, Sketch)],
        set(range(40)) - {3, 4, 20},
    )
    errors = {n: error for n, error in done if isinstance(error, ChunkError)}
    assert sorted(errors) == [3, 4, 20]
    for number, error in errors.items():
        assert str(error).startswith(f"chunk {number} of the Dask array")
        assert "could not be read: OSError: the store is busy" in str(error)
        assert str(error).endswith("It was tried 4 times.")
        assert len(times(tmp_path, number)) == 4
    assert not somewhere


def test_one_attempt_is_one(tmp_path):
    samples = array(fails_first, tmp_path, {3}, 99)
    (number, error), = sketch_partitions(samples, [3], FM, attempts=1, backoff=9.0)  # fmt: skip
    assert number == 3
    assert "tried 1 times" not in str(error)
    assert len(times(tmp_path, 3)) == 1


@by_value
def spoil(block, place, numbers):
    record(place, block)
    return np.where(block == block[4], np.nan, block) if number_of(block) in numbers else block


def test_refused_values_are_not_read_again(somewhere, tmp_path):
    samples = array(spoil, tmp_path, {3, 20})
    done = list(sketch_partitions(samples, range(40), FM, backoff=0.01))
    errors = {n: str(error) for n, error in done if isinstance(error, ChunkError)}
    assert sorted(errors) == [3, 20]
    assert len(done) == 40
    assert "chunk 3 of the Dask array" in errors[3]
    assert "row 4 of this chunk has nan in feature 0" in errors[3]
    assert [len(times(tmp_path, number)) for number in (3, 20)] == [1, 1]
    assert not somewhere


@pytest.mark.slow
def test_the_whole_store_is_down_for_a_while(somewhere, tmp_path):
    samples = array(fails_first, tmp_path, set(range(40)), 2)
    done = list(sketch_partitions(samples, range(16), FM, backoff=0.01, in_flight=4))
    assert_each_once(done, range(16))


def zarr_store(place):
    zarr.create_array(place / "x.zarr", data=X, chunks=(5, 3))
    return open_samples(place / "x.zarr", chunk_size=10 * 3 * 8)


def test_a_damaged_chunk_is_named_by_its_object(somewhere, tmp_path):
    samples = zarr_store(tmp_path)
    assert samples.n_chunks == 40
    damaged = tmp_path / "x.zarr" / "c" / "7" / "0"
    damaged.write_bytes(damaged.read_bytes()[:20])
    done = dict(sketch_partitions(samples, range(40), FM, backoff=0.01))
    error = done.pop(3)
    assert isinstance(error, ChunkError)
    assert "rows 30 to 40 of" in str(error)
    assert "x.zarr (stored object c/7/0) could not be read" in str(error)
    assert_each_once(list(done.items()), set(range(40)) - {3})
    assert not somewhere


def test_a_damaged_file_is_named(somewhere, tmp_path):
    for i in range(40):
        frame = pd.DataFrame(X[10 * i : 10 * i + 10], columns=list("abc"))
        frame.to_parquet(tmp_path / f"{i:02}.parquet")
    samples = open_samples(tmp_path)
    damaged = tmp_path / "13.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    done = dict(sketch_partitions(samples, range(40), FM, backoff=0.01))
    error = done.pop(13)
    assert "13.parquet could not be read" in str(error)
    assert_each_once(list(done.items()), set(range(40)) - {13})


@pytest.mark.slow
def test_what_is_mended_meanwhile_is_read(tmp_path):
    samples = zarr_store(tmp_path)
    damaged = tmp_path / "x.zarr" / "c" / "7" / "0"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:20])
    with dask.config.set(num_workers=1):
        running = sketch_partitions(samples, range(40), FM, backoff=0.5, in_flight=10)
        done = [next(running)]
        damaged.write_bytes(whole)
        done += running
    assert_each_once(done)


# -- a source that changes -------------------------------------------------------------------


def test_every_pass_reads_again(somewhere, tmp_path):
    samples = zarr_store(tmp_path)
    (_, before), = sketch_partitions(samples, [3], FM)  # fmt: skip
    zarr.open_array(tmp_path / "x.zarr")[30:40] += 1.0
    (_, after), = sketch_partitions(samples, [3], FM)  # fmt: skip
    assert before.identical(EXPECTED[3])
    assert after.identical(partial_sketch(X[30:40] + 1.0, FM))


def test_rows_that_are_appended_during_a_pass_are_of_the_next(somewhere, tmp_path, monkeypatch):
    samples = zarr_store(tmp_path)
    running = sketch_partitions(samples, range(40), FM, in_flight=2)
    done = [next(running)]
    zarr.open_array(tmp_path / "x.zarr").append(X[:15])
    monkeypatch.setattr("dask_sketch.sources.zarr_rows.REACHED", set())  # as of a new worker
    done += running
    assert_each_once(done)


@pytest.mark.slow
def test_a_source_that_is_deleted_during_a_pass_is_an_error_of_what_was_left(tmp_path):
    for i in range(40):
        frame = pd.DataFrame(X[10 * i : 10 * i + 10], columns=list("abc"))
        frame.to_parquet(tmp_path / f"{i:02}.parquet")
    samples = open_samples(tmp_path)
    running = sketch_partitions(samples, range(40), FM, backoff=0.01, in_flight=2)
    done = [next(running)]
    for i in range(30, 40):
        (tmp_path / f"{i:02}.parquet").unlink()
    done += running
    kept = [(n, sketch) for n, sketch in done if isinstance(sketch, Sketch)]
    assert_each_once(kept, range(30))
    assert all("FileNotFoundError" in str(error) for n, error in done if n >= 30)


# -- workers ---------------------------------------------------------------------------------


@by_value
def slow(block, seconds):
    time.sleep(seconds)
    return block


def one_worker():
    """A cluster in this process, reached as one elsewhere is."""
    return LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=":0",
    )


def test_workers_that_are_killed_change_no_bit(process_client):
    pids = set(process_client.run(os.getpid).values())
    done = []
    for result in sketch_partitions(array(slow, 0.05), range(40), FM):
        done.append(result)
        if len(done) in (5, 20):
            found = process_client.run(os.getpid, on_error="ignore").values()
            os.kill(max(found), signal.SIGKILL)
    assert_each_once(done)
    assert set(process_client.run(os.getpid, on_error="ignore").values()) != pids


@pytest.mark.slow
def test_all_workers_are_killed_at_once(process_client):
    done = []
    for result in sketch_partitions(array(slow, 0.05), range(40), FM):
        done.append(result)
        if len(done) == 10:
            for pid in process_client.run(os.getpid).values():
                os.kill(pid, signal.SIGKILL)
    assert_each_once(done)


@pytest.mark.slow
def test_workers_that_live_for_seconds():
    # in this process, where a worker is there at once: as processes they would take longer to
    # start, on a loaded machine, than they live
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    lives = {"lifetime": "1 second", "lifetime_stagger": "500 ms"}
    over = threading.Event()

    def replace_them():
        while not over.wait(0.1):
            missing = 2 - len(cluster.scheduler.workers)
            if missing > 0:
                cluster.scale(len(cluster.worker_spec) + missing)

    with LocalCluster(n_workers=2, **options, **lives) as cluster, Client(cluster):
        replacing = threading.Thread(target=replace_them)
        replacing.start()
        try:
            assert_each_once(list(sketch_partitions(array(slow, 0.15), range(40), FM)))
        finally:
            over.set()
            replacing.join()
        assert len(cluster.worker_spec) >= 4  # of two at once that live for 1.5 s at most, in 3 s


@by_value
def kills(block, numbers):
    if number_of(block) in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.slow
def test_a_partition_that_kills_its_workers_is_found_among_its_neighbours(
    process_client, monkeypatch
):
    monkeypatch.setattr(process_client.cluster.scheduler, "allowed_failures", 0)
    done = dict(sketch_partitions(array(kills, {17}), range(40), FM))
    error = done.pop(17)
    assert isinstance(error, ChunkError)
    assert "chunk 17 of the Dask array" in str(error)
    assert "workers died while they computed it, and nothing else" in str(error)
    assert_each_once(list(done.items()), set(range(40)) - {17})


def test_a_cluster_without_workers_is_given_up(forked_workers):
    with (
        dask.config.set({"sketch.worker-timeout": "1s"}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster),
    ):
        running = sketch_partitions(array(slow, 0.01), range(40), FM, in_flight=2)
        done = [next(running)]
        cluster.scale(0)
        start = time.monotonic()
        with pytest.raises(ClusterError, match="no worker for 1 s") as error:
            done.extend(running)
        assert time.monotonic() - start < 60  # of a loaded machine
        assert f"{len(done)} of 40 partitions" in str(error.value)
        assert_each_once(done, [number for number, _ in done])


# -- the scheduler, and the client -----------------------------------------------------------

SCHEDULER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0",
        protocol="tcp", host="127.0.0.1",
    )
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def started():
    """A scheduler, with its worker, in a process of its own; and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


@pytest.fixture
def remote():
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def lasting():
    """Address of a scheduler that no test harms."""
    with started() as (_, address):
        yield address


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_is_lost_is_an_error_in_time(remote, how):
    process, address = remote
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
        Client(address, timeout=5) as client,
    ):
        running = sketch_partitions(array(slow, 0.05), range(40), FM)
        done = [next(running)]
        process.send_signal(how)
        start = time.monotonic()
        with pytest.raises(ClusterError, match="of 40 partitions") as error:
            done.extend(running)
        assert time.monotonic() - start < 60  # of a loaded machine
        assert f"{len(done)} of 40 partitions" in str(error.value)
        assert_each_once(done, [number for number, _ in done])
        assert client.status != "running" or how == signal.SIGTERM
    rest = set(range(40)) - {number for number, _ in done}
    assert_each_once(done + list(sketch_partitions(array(slow, 0.0), sorted(rest), FM)))


@pytest.mark.slow
def test_a_cluster_that_is_closed_is_an_error_in_time():
    with one_worker() as cluster, Client(cluster):
        running = sketch_partitions(array(slow, 0.05), range(40), FM)
        next(running)
        cluster.close()
        start = time.monotonic()
        with pytest.raises(ClusterError, match="scheduler is lost"):
            list(running)
        assert time.monotonic() - start < 60  # of a loaded machine


@pytest.mark.slow
def test_a_connection_that_is_cut_is_made_again(lasting):
    with Client(lasting) as client:
        done = []
        for result in sketch_partitions(array(slow, 0.05), range(40), FM):
            done.append(result)
            if len(done) == 7:
                client.loop.add_callback(client.scheduler_comm.comm.abort)
        assert_each_once(done)


CLIENT = """
import sys
import dask.array as da
from distributed import Client
from dask_sketch import FeatureMap
from dask_sketch.graph.partitions import sketch_partitions
from dask_sketch import open_samples

def slow(block):
    import time
    time.sleep(0.05)
    return block

if __name__ == "__main__":
    with Client(sys.argv[1]):
        samples = open_samples(da.ones((400, 3), chunks=(10, 3)).map_blocks(slow))
        for number, _ in sketch_partitions(samples, range(40), FeatureMap(3, 40, scale=1.0)):
            print(number, flush=True)
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_client_that_is_killed(lasting):
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, lasting],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout.readline()
    process.kill()
    process.communicate()
    with Client(lasting) as client:
        deadline = time.monotonic() + 60
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert_each_once(list(sketch_partitions(array(slow, 0.0), range(40), FM)))
