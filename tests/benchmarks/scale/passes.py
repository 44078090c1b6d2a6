"""Our side: passes at several sizes, what is decoded from them, and one worker against two."""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dask_sketch as ds
from tests.benchmarks.scale.measuring import Cost, measured_pass, peak_bytes, ready, small_cluster

PAIRS = 4e9  # (sample, frequency) pairs with which the machine is tried: seconds


def sketch_file(store: Path, n_frequencies: int, distribution: str | None = None) -> Path:
    """Path of the sketch of a store."""
    return store.with_name(f"{store.stem}-{distribution or 'default'}-{n_frequencies}.sketch")


def sketch_store(
    store: Path, n_frequencies: int, n_components: int, distribution: str | None = None
) -> dict[str, Any]:
    """One pass on fresh workers, its sketch kept beside the store."""
    with small_cluster() as client, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # m=1000 is few for K=64: the scores tell
        start = time.perf_counter()
        feature_map = ds.design(
            str(store),
            n_frequencies=n_frequencies,
            n_components=n_components,
            distribution=distribution,
        )
        seconds = time.perf_counter() - start
        ready(client, feature_map)
        sketch, cost = measured_pass(client, store, feature_map)
    sketch.to_zarr(sketch_file(store, n_frequencies, distribution), overwrite=True)
    return {
        "n_samples": sketch.count,
        "n_frequencies": n_frequencies,
        "law": feature_map.distribution,
        "store_bytes": sum(file.stat().st_size for file in store.glob("c/*/0")),
        "design_seconds": seconds,
        **_plain(cost),
    }


def _plain(cost: Cost) -> dict[str, Any]:
    return asdict(cost) | {"cpu": cost.cpu, "kernel_share": cost.kernel_share}


def decode_sketch(
    store: Path, n_frequencies: int, n_components: int, kind: str, refine: str | None
) -> tuple[ds.GaussianMixture | ds.Centroids, dict[str, Any]]:
    """A model from a kept sketch, in this process, and what it took."""
    sketch = ds.open(sketch_file(store, n_frequencies))
    method = "splitting" if kind == "gaussian" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cpu, wall = time.process_time(), time.perf_counter()
        model = ds.decode(sketch, n_components, method, kind, refine=refine)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return model, {
        "n_frequencies": n_frequencies,
        "law": sketch.feature_map.distribution,
        "how": " ".join(text for text in (kind, method, refine) if text),
        "wall": wall,
        "cpu": cpu,
        "peak": peak_bytes(),
    }


def scores(
    model: ds.GaussianMixture | ds.Centroids, heldout: NDArray[np.floating]
) -> dict[str, float | None]:
    """Log-likelihood of held-out samples, nats, and their squared distance to centroids.

    Of a mixture, the means are taken for the centroids.
    """
    if isinstance(model, ds.GaussianMixture):
        centroids = ds.Centroids(model.weights, model.means)
        return {"nats": model.score(heldout), "distance": centroids.inertia(heldout)}
    return {"nats": None, "distance": model.inertia(heldout)}


def one_against_two(
    store: Path, n_frequencies: int, n_components: int, rounds: int
) -> dict[str, Any]:
    """Wall seconds of the same pass on one worker and on two, in turn, and medians.

    ``machine`` is the same ratio for the kernel alone, on rows in memory: what the cores can give.
    ``work`` is the CPU time of one worker over that of two: near one, two workers get in nobody's
    way, whatever else the machine does.
    """
    walls: dict[int, list[float]] = {1: [], 2: []}
    alone: dict[int, list[float]] = {1: [], 2: []}
    spent: dict[int, list[float]] = {1: [], 2: []}
    with small_cluster() as client:
        feature_map = ds.design(str(store), n_frequencies=n_frequencies, n_components=n_components)
        ready(client, feature_map)
        addresses = list(client.scheduler_info()["workers"])
        for _ in range(rounds):
            for count in walls:
                some = addresses[:count]
                sketch, cost = measured_pass(client, store, feature_map, workers=some)
                walls[count].append(cost.wall)
                spent[count].append(sum(cost.workers))
                pairs = min(float(sketch.count) * n_frequencies, PAIRS)
                each = client.run(kernel_alone, feature_map, pairs, workers=some)
                alone[count].append(max(each.values()))
    return {
        "n_frequencies": n_frequencies,
        "law": feature_map.distribution,
        "one": walls[1],
        "two": walls[2],
        "speedup": median(walls[1]) / median(walls[2]),
        "work": median(spent[1]) / median(spent[2]),
        "machine": 2 * median(alone[1]) / median(alone[2]),
    }


def kernel_alone(feature_map: ds.FeatureMap, pairs: float) -> float:
    """Wall seconds of one thread that sketches the same rows again and again."""
    x = np.random.default_rng(0).standard_normal((4096, feature_map.n_features), dtype=np.float32)
    start = time.perf_counter()
    for _ in range(max(int(pairs / feature_map.n_frequencies / len(x)), 1)):
        ds.partial_sketch(x, feature_map)
    return time.perf_counter() - start
