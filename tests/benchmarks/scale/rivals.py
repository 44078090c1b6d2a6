"""Others on the same store, each in a process of its own: `python rivals.py NAME STORE N CAP OUT`.

Their requirements contradict ours (the coreset wants NumPy 1), so this file is run by another
environment and imports nothing of this project. It prints one line of JSON, what the fit cost, and
writes what it found to OUT.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # CPU seconds are then those of one core

import numpy as np
import zarr

K = 64
MEMORY = 2**30
BATCH = 10_000  # rows of one step of MiniBatchKMeans: better centroids than whole chunks give
EM_STEPS = 5  # between two looks at the time
EM_TOLERANCE = 1e-5  # nats; at the default of 1e-3 it stops too early
LLOYD_STEPS = 20
BLOCK = 100_000  # rows of dask-ml's blocks: of 500,000 the distances to 64 centres take all memory
PILOTS = (40_000, 80_000)  # rows of two small fits, which tell the memory a row needs


def minibatch_kmeans(store, n, cap):
    """MiniBatchKMeans fed by chunks, one pass."""
    from sklearn.cluster import MiniBatchKMeans

    model, used = MiniBatchKMeans(K, random_state=0), 0
    for chunk in chunks(store, n):
        for start in range(0, len(chunk), BATCH):
            model.partial_fit(chunk[start : start + BATCH])
        used += len(chunk)
        if spent() > cap:
            break
    return {"centers": model.cluster_centers_}, {"used": used}


def coreset(store, n, cap):
    """The one-pass coreset BICO, divided by k-means in the end."""
    from bico import BICO

    model, used = BICO(K, random_state=0, fit_coreset=True), 0
    for chunk in chunks(store, n):
        for start in range(0, len(chunk), 5 * BATCH):
            rows = np.ascontiguousarray(chunk[start : start + 5 * BATCH], dtype=np.float64)
            model.partial_fit(rows)
            used += len(rows)
            if spent() > cap:
                break
        if spent() > cap:
            break
    model.partial_fit(None)
    note = f"{len(model.coreset_points_):,} points of the coreset"
    return {"centers": model.cluster_centers_}, {"used": used, "note": note}


def gaussian_mixture(store, n, cap):
    """GaussianMixture on as many rows as 1 GiB holds, by EM until it converges."""
    from sklearn.mixture import GaussianMixture

    def fit(rows, steps):
        model = GaussianMixture(
            K, covariance_type="diag", random_state=0, max_iter=steps, warm_start=True,
            tol=EM_TOLERANCE,
        )  # fmt: skip
        return model.fit(rows)

    peaks = []
    for rows in PILOTS:
        fit(first_rows(store, min(rows, n)), 1)
        peaks.append(peak_bytes())
    row = max((peaks[1] - peaks[0]) / (PILOTS[1] - PILOTS[0]), 1.0)
    used = min(n, int(PILOTS[1] + 0.97 * (MEMORY - peaks[1]) / row))
    rows = first_rows(store, used)
    model, steps = fit(rows, EM_STEPS), EM_STEPS
    while not model.converged_ and spent() < cap:
        model.fit(rows)
        steps += EM_STEPS
    how = "converged" if model.converged_ else "stopped by the cap"
    found = {"weights": model.weights_, "means": model.means_, "covariances": model.covariances_}
    return found, {"used": used, "passes": steps, "note": f"about {steps} steps of EM, {how}"}


def dask_ml_kmeans(store, n, cap):
    """dask-ml's KMeans on 2 workers of one thread and 1 GiB; a worker's peak is what counts."""
    import dask.array as da
    from dask_ml.cluster import KMeans
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        x = da.from_zarr(store)[:n].rechunk((BLOCK, -1))
        # with its own 2 candidates a round it finds fewer than K, and fills up from all row numbers
        model = KMeans(
            K, random_state=0, oversampling_factor=K, init_max_iter=5, max_iter=LLOYD_STEPS
        ).fit(x)
        cpu = sum(client.run(time.process_time).values())
        peak = max(client.run(peak_bytes).values())
        read = sum(client.run(read_bytes).values())
    centers = np.asarray(model.cluster_centers_)
    told = {"used": n, "workers_cpu": cpu, "peak": peak}
    # raw chunks do not stay in memory, so bytes read tell how often all were read
    passes = round(read / (n * x.shape[1] * x.dtype.itemsize))
    told |= {"passes": passes, "note": f"{model.n_iter_} iterations of Lloyd"}
    return {"centers": centers}, told


RIVALS = {
    "minibatch-kmeans": minibatch_kmeans,
    "coreset": coreset,
    "gaussian-mixture": gaussian_mixture,
    "dask-ml": dask_ml_kmeans,
}


def chunks(store, n):
    """The first n rows, a stored chunk at a time."""
    array = zarr.open_array(store, mode="r")
    for start in range(0, n, array.chunks[0]):
        yield array[start : min(start + array.chunks[0], n)]


def first_rows(store, n):
    return zarr.open_array(store, mode="r")[:n]


def spent():
    """CPU seconds of this process."""
    return time.process_time()


def peak_bytes():
    """Largest resident size of this process."""
    return 1024 * _number("/proc/self/status", "VmHWM:")


def read_bytes():
    """Bytes that this process read from files."""
    return _number("/proc/self/io", "rchar:")


def _number(file, name):
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main(name, store, n, cap, out):
    warnings.simplefilter("ignore")  # of convergence, which the notes tell
    start, cpu = time.perf_counter(), spent()
    found, told = RIVALS[name](store, int(n), float(cap))
    told = {"passes": 1, "note": "", "peak": peak_bytes(), "workers_cpu": 0.0} | told
    told["cpu"] = spent() - cpu + told.pop("workers_cpu")
    told["wall"] = time.perf_counter() - start
    np.savez(out, **found)
    print(json.dumps(told))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
