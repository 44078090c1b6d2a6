from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from dask.local import get_sync
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for `import strategies`

# the same examples on every machine and in every run; none is refused for a compilation
settings.register_profile(
    "repository",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repository")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20180701)


class CountingScheduler:
    """A Dask scheduler that counts how often it is asked to run."""

    def __init__(self):
        self.computes = 0

    def __call__(self, dsk, keys, **kwargs):
        self.computes += 1
        return get_sync(dsk, keys, **kwargs)


@pytest.fixture
def counting():
    scheduler = CountingScheduler()
    with dask.config.set(scheduler=scheduler):
        yield scheduler


@pytest.fixture(params=["emulated", pytest.param("device", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    """CuPy and the names of the kernels that ran: as in tests/emulation, and on a GPU if any."""
    from emulation import emulated_cupy

    from dask_sketch.errors import DeviceError
    from dask_sketch.features import cuda, device

    if request.param == "emulated":
        if emulated_cupy.COMPILER is None:
            pytest.skip("needs g++ to run CUDA kernels on the processor")
        monkeypatch.setitem(sys.modules, "cupy", emulated_cupy)
    try:
        found = device.cupy()
    except DeviceError as error:
        pytest.skip(f"no GPU: {error.__cause__ or error}")
    launches = []
    run = cuda._Chunk._run

    def recorded(self, name, *arguments):
        launches.append(name)
        run(self, name, *arguments)

    monkeypatch.setattr(cuda._Chunk, "_run", recorded)
    cuda.forget()
    yield SimpleNamespace(cupy=found, launches=launches)
    cuda.forget()


@pytest.fixture(scope="module")
def thread_client():
    """Start a scheduler and one worker of two threads inside this process."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
