"""Stores on web servers, some of which ignore ranges or send without end."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import numpy as np
import pandas as pd
import pytest
import zarr

import dask_sketch as ds
from dask_sketch.errors import ArtifactError, ChunkError, InputError, SketchError
from dask_sketch.storage.untrusted import guarded

pytest.importorskip("aiohttp")
X = np.random.default_rng(0).normal(size=(400, 2))
LARGE = 2**28  # bytes that a server sends where a chunk has a few thousand


class Handler(BaseHTTPRequestHandler):
    """Serve files: ``ranges`` as asked for, ``whole`` files, or a ``flood`` of zeros."""

    protocol_version = "HTTP/1.0"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = Path(self.server.folder, self.path.lstrip("/"))
        self.server.ranges.append((path.name, self.headers.get("Range")))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        flood = self.server.mode.startswith("flood") and path.name != "zarr.json"
        part = self.headers.get("Range", "").removeprefix("bytes=")
        partial = part and "whole" not in self.server.mode
        if partial and not flood:
            first, last = part.split("-")
            start = int(first) if first else max(len(content) - int(last), 0)
            content = content[start : int(last) + 1 if first and last else None]
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(LARGE if flood else len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        with contextlib.suppress(ConnectionError):
            if self.server.mode == "stops" and path.name != "zarr.json":
                self.wfile.write(content[: len(content) // 2])
                self.server.stopped.wait(60.0)
                return
            self.wfile.write(content)
            while flood and self.server.sent < LARGE:
                self.server.sent += self.wfile.write(bytes(2**20))


@pytest.fixture
def serve(tmp_path):
    """Start a server of a folder in this process."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.folder, server.mode, server.sent, server.ranges = tmp_path, "ranges", 0, []
        server.stopped = threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.stopped.set()
        server.shutdown()
        thread.join()


def store(folder, **options):
    array = zarr.create_array(folder / "x.zarr", shape=X.shape, dtype=X.dtype, **options)
    array[:] = X


def sketched(server):
    url = f"http://127.0.0.1:{server.server_address[1]}/x.zarr"
    feature_map = ds.FeatureMap(2, 20, scale=1.0)
    return ds.sketch(url, feature_map).compute(scheduler="sync")


@pytest.mark.parametrize("mode", ["ranges", "whole"])
def test_a_store_of_chunks_is_read_from_any_server(serve, mode, tmp_path):
    store(tmp_path, chunks=(100, 2))
    serve.mode = mode
    assert sketched(serve).identical(ds.sketch(X, ds.FeatureMap(2, 20, scale=1.0)))


@pytest.mark.parametrize("mode", ["flood", "flood of whole files"])
def test_a_server_that_sends_without_end_is_stopped(serve, mode, tmp_path):
    store(tmp_path, chunks=(400, 2))
    serve.mode = mode
    with pytest.raises(ChunkError, match=r"'c/0/0' .*(bytes|asked for)"):
        sketched(serve)
    assert serve.sent < LARGE / 4  # what is in buffers of the system


def test_shards_need_ranges(serve, tmp_path):
    store(tmp_path, chunks=(100, 2), shards=(200, 2))
    assert sketched(serve).identical(ds.sketch(X, ds.FeatureMap(2, 20, scale=1.0)))
    array = zarr.open_array(guarded(f"http://127.0.0.1:{serve.server_address[1]}/x.zarr"), mode="r")
    np.testing.assert_array_equal(array[:100], X[:100])
    serve.mode = "whole"
    with pytest.raises(ArtifactError, match=r"'c/0/0'.* supports ranges"):
        array[:100]


def test_missing_chunks_are_errors(serve, tmp_path):
    store(tmp_path, chunks=(100, 2))
    (tmp_path / "x.zarr" / "c" / "1" / "0").unlink()
    with pytest.raises(SketchError, match="'c/1/0' is missing"):
        sketched(serve)


def test_parquet_files_need_ranges(serve, tmp_path):
    rows = np.random.default_rng(0).normal(size=(400_000, 2))
    pd.DataFrame(rows, columns=["a", "b"]).to_parquet(tmp_path / "x.parquet")
    serve.mode = "whole"
    url = f"http://127.0.0.1:{serve.server_address[1]}/x.parquet"
    with pytest.raises(ChunkError, match=r"x\.parquet.*answers requests for ranges"):
        ds.sketch(url, ds.FeatureMap(2, 20, scale=1.0))


def test_a_server_that_never_answers_is_named():
    limit = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.2)}}
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are not accepted
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.zarr"
        with pytest.raises(InputError, match=r"x\.zarr'.*in time.*storage_options"):
            ds.open_samples(url, storage_options=limit)


@pytest.mark.parametrize("name", ["x.zarr", "x.parquet"])
def test_a_server_that_stops_in_the_middle_is_given_up(serve, name, tmp_path):
    store(tmp_path, chunks=(400, 2))
    pd.DataFrame(X, columns=["a", "b"]).to_parquet(tmp_path / "x.parquet")
    url = f"http://127.0.0.1:{serve.server_address[1]}/{name}"
    limit = {"client_kwargs": {"timeout": 0.5}}  # seconds
    samples = ds.open_samples(url, storage_options=limit)
    serve.mode = "stops"
    with pytest.raises(ChunkError, match=f"{name}.*Timeout"):
        ds.sketch(samples, ds.FeatureMap(2, 20, scale=1.0)).compute(scheduler="sync")
