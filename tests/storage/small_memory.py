"""Sketch a store in a process of little memory."""

from __future__ import annotations

import resource
from multiprocessing.connection import Connection
from pathlib import Path

import dask_sketch as ds


def sketch_in_small_memory(path: str, told: Connection, megabytes: int) -> None:
    """Sketch with little memory beyond what the libraries take, and send the error, if any."""
    feature_map = ds.FeatureMap(2, 20, scale=1.0)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20,) * 2)
    try:
        ds.sketch(path, feature_map).compute(scheduler="sync")
    except Exception as error:
        told.send(repr(error))
    else:
        told.send("")
