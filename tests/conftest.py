from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from dask.local import get_sync
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # for `import strategies`

# Compiled kernels, for all processes that tests start as well. They are kept for the next run.
KERNELS = Path(__file__).parents[1] / ".pytest_cache" / "numba"
os.environ["NUMBA_CACHE_DIR"] = str(KERNELS)
# librosa compiles a dozen functions when it is imported, of which the cepstra need hardly any. No
# kernel of this package is compiled without optimisation.
COMPILED = {
    ("speech",): {"NUMBA_OPT": "0"},
    ("groups", "polishing"): {},
    ("sketches",): {},
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config):
    """Compile, before there are workers that would each do it, what most of them need."""
    script = Path(__file__).with_name("compiled.py")
    running = [
        subprocess.Popen([sys.executable, script, *parts], env=os.environ | variables)
        for parts, variables in COMPILED.items()
    ]
    bytecode = None
    if not any(Path(__file__).parent.glob("*/__pycache__/test_*.pyc")):
        # Bytecode of the test files. No kernel is compiled here, since the processes above do it:
        # files that sketch when they are imported fail then, after their bytecode is stored.
        collect = ["--collect-only", "-qq", "-p", "no:cacheprovider", "--ignore-glob=*/speech/*"]
        bytecode = subprocess.Popen(
            [sys.executable, "-m", "pytest", *collect, *config.args],
            env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
            stdout=subprocess.DEVNULL,
        )
    codes = [process.wait() for process in running]
    if bytecode is not None:
        bytecode.wait()
    assert not any(codes)


LONGEST = ("test_notebooks.py", "test_crash.py")


def leave_few_cases(items):
    """Mark all but some cases of a test as slow, evenly spread, if it has the mark `few_cases`."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few_cases"):
            cases[item.parent.nodeid, item.originalname].append(item)
    for found in cases.values():
        n_left = min(len(found), found[0].get_closest_marker("few_cases").args[0])
        left = np.linspace(0, len(found) - 1, n_left).round()
        for position, item in enumerate(found):
            if position not in left:
                item.add_marker("slow")


# before pytest selects by marks
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with the longest files, so that no worker has one left when the other one has ended."""
    leave_few_cases(items)
    items.sort(key=lambda item: item.path.name not in LONGEST)


class OnlyDoctests:
    """Leave out modules without doctests, since each worker would import all benchmarks."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        path = collection_path
        if path.suffix != ".py" or path.name.startswith("test_") or path.is_dir():
            return None
        return None if b">>>" in path.read_bytes() else True


def pytest_configure(config):
    """Register a plugin for all folders: the hooks of this file are for the tests alone."""
    config.pluginmanager.register(OnlyDoctests())


# Thousands of tests are collected in two thirds of the time without the collector of garbage, which
# need not look at them later either.
gc.disable()


def pytest_collection_finish():
    """Collect garbage again, of what the tests leave, less often than by default."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


# the same examples on every machine and in every run; none is refused for a compilation
settings.register_profile(
    "repository",
    derandomize=True,
    deadline=None,
    max_examples=15,
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


@pytest.fixture
def short_calibration(monkeypatch):
    """Measure the rates of a plan in milliseconds, since no test depends on their values."""
    monkeypatch.setattr("dask_sketch.graph.calibration.KERNEL_SECONDS", 0.02)
    monkeypatch.setattr("dask_sketch.graph.calibration.EMPTY_TASKS", 4)


@pytest.fixture(params=["emulated", pytest.param("device", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    """CuPy and the names of the kernels that ran: as in tests/emulation, and on a GPU if any."""
    from emulation import emulated_cupy

    from dask_sketch.errors import DeviceError
    from dask_sketch.features.kernels import cuda
    from dask_sketch.validation import device

    if request.param == "emulated":
        if emulated_cupy.COMPILER is None:
            pytest.skip("needs g++ to run CUDA kernels on the processor")
        monkeypatch.setitem(sys.modules, "cupy", emulated_cupy)
    try:
        found = device.cupy()
    except DeviceError as error:
        pytest.skip(f"no GPU: {error.__cause__ or error}")
    launches = []
    compiled = found.RawModule

    class Recording:
        """Compiled kernels whose launches are recorded by name."""

        def __init__(self, *arguments, **options):
            self._module = compiled(*arguments, **options)

        def get_function(self, name):
            function = self._module.get_function(name)

            def launch(*arguments, **options):
                launches.append(name)
                return function(*arguments, **options)

            return launch

        def __getattr__(self, name):
            return getattr(self._module, name)

    monkeypatch.setattr(found, "RawModule", Recording)
    cuda.forget()
    yield SimpleNamespace(cupy=found, launches=launches)
    cuda.forget()


@pytest.fixture
def no_drawing(monkeypatch):
    """Leave the pictures of reports empty, where a test reads the text alone."""
    from jobs.places import draw_nothing

    monkeypatch.setattr("dask_sketch.diagnostics.report.draw_pictures", draw_nothing)


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


@pytest.fixture(scope="session")
def preloaded():
    """Start the process that others are forked of, with what each of them would import."""
    context = multiprocessing.get_context("forkserver")
    modules = ("distributed", "dask.array", "dask.dataframe", "xarray", "zarr")
    ours = ("graph", "sources", "jobs.ledger")
    context.set_forkserver_preload([*modules, *(f"dask_sketch.{name}" for name in ours)])
    first = context.Process(target=int)
    first.start()
    first.join()


@pytest.fixture
def forked_workers(preloaded):
    """Let clusters that a test makes fork their workers: to start one afresh takes seconds."""
    import distributed  # noqa: F401  (its defaults are there before one of them is set and reset)

    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield


@pytest.fixture(scope="session")
def process_clusters():
    """Keep clusters of two worker processes, of one thread each: the last one is in use."""
    with contextlib.ExitStack() as stack:
        started = []

        def start():
            from distributed import LocalCluster

            cluster = LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
            )
            started.append(stack.enter_context(cluster))

        yield started, start


@pytest.fixture
def process_client(process_clusters, forked_workers):
    """Connect to a cluster of two processes, started once for all tests that leave it whole."""
    from distributed import Client

    started, start = process_clusters
    if not started:
        start()
    client = Client(started[-1])
    try:
        client.wait_for_workers(2, timeout=60)
    except TimeoutError:  # an earlier test has killed a worker while it was being started again
        client.close()
        started[-1].close()
        start()
        client = Client(started[-1])
    with client:
        yield client
