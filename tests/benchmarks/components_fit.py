"""One fit of principal components: `python components_fit.py METHOD STORE K OUT`.

It is run in a process of its own, by the environment of its method, and imports nothing of this
project but the method. It prints one line of JSON, what the fit cost, and writes components to OUT.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # CPU seconds are then those of one core

import numpy as np
import zarr

LOCK = threading.Lock()
read = [0]


def counted(block):
    """Count the rows that are read."""
    with LOCK:
        read[0] += len(block)
    return block


def lazily(array):
    """A Dask array of the stored chunks."""
    import dask.array as da

    rows = da.from_array(array, chunks=array.chunks)
    return rows.map_blocks(counted, dtype=array.dtype, meta=np.empty((0, 0), array.dtype))


def ours(array, k, n_columns=None):
    """SketchPCA, with all second moments or with a test matrix."""
    from dask_sketch import SketchPCA

    return SketchPCA(k, n_columns=n_columns).fit(lazily(array))


def incremental(array, k):
    """IncrementalPCA of scikit-learn, chunk by chunk."""
    from sklearn.decomposition import IncrementalPCA

    model = IncrementalPCA(k)
    for start in range(0, array.shape[0], array.chunks[0]):
        model.partial_fit(counted(array[start : start + array.chunks[0]]))
    return model


def dask_ml(array, k, **options):
    """PCA of dask-ml, with its own choice of a solver unless one is given."""
    from dask_ml.decomposition import PCA

    return PCA(k, random_state=0, **options).fit(lazily(array))


def dask_ml_incremental(array, k):
    """IncrementalPCA of dask-ml, chunk by chunk."""
    from dask_ml.decomposition import IncrementalPCA

    rows = min(array.chunks[0], array.shape[0])
    return IncrementalPCA(k, batch_size=rows, random_state=0).fit(lazily(array))


METHODS = {
    "all": ours,
    "incremental": incremental,
    "dask-ml": dask_ml,
    "dask-ml power": partial(dask_ml, iterated_power=2),
    "dask-ml tsqr": partial(dask_ml, svd_solver="tsqr"),
    "dask-ml incremental": dask_ml_incremental,
}


def status(name):
    """Number of the status of this process, in kB.

    Not ``ru_maxrss``: a process inherits that of the one which started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main(method, store, k, out):
    """Fit, after a small fit that compiles and imports."""
    array = zarr.open_array(store, mode="r")
    options = {}
    if method.startswith("columns-"):
        method, options = "all", {"n_columns": int(method.removeprefix("columns-"))}
    fit = METHODS[method]
    few = zarr.create_array({}, shape=(64, 24), chunks=(32, 24), dtype=array.dtype)
    few[:] = np.random.default_rng(0).normal(size=(64, 24)) * 2.0 ** -np.arange(24.0)
    warnings.simplefilter("ignore")
    fit(few, 2, **({"n_columns": 16} if options else {}))
    read[0] = 0
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = status("VmRSS:")
    start = time.process_time()
    model = fit(array, k, **options)
    seconds, peak = time.process_time() - start, status("VmHWM:")
    np.save(out, np.asarray(model.components_))
    cost = {
        "seconds": seconds,
        "passes": read[0] / array.shape[0],
        "megabytes": (peak - before) / 1e3,
    }
    print(json.dumps(cost))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
