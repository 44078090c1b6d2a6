from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import numpy as np
import pytest
import zarr
from deployment.local_processes import N_SAMPLES, job_text

from dask_sketch.cluster.certificates import make_certificates


@pytest.fixture
def certificates(tmp_path):
    return make_certificates(tmp_path / "certificates")


@pytest.fixture
def job(tmp_path):
    """The job file of deploy/ on a small store; the scheduler's address is the environment's."""
    x = np.random.default_rng(0).normal(size=(N_SAMPLES, 3)).astype(np.float32)
    store = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(1000, 3), dtype="f4")
    store[:] = x
    path = tmp_path / "job.toml"
    path.write_text(job_text(str(tmp_path), 'kind = "address"'))
    return path


@pytest.fixture
def start():
    """Start processes in the background; they are ended after the test."""
    started = []

    def popen(command, **more):
        started.append(
            subprocess.Popen([str(part) for part in command], start_new_session=True, **more)
        )
        return started[-1]

    yield popen
    for process in started:  # with all that they have started: to end in order takes them seconds
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
