"""The GPU: moments a second, agreement with the processor, decoding; nothing where there is none.

`python -m tests.benchmarks.gpu [--quick]` prints the table, and says so when there is no GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from dask_sketch import FeatureMap, Sketch, decode, partial_sketch
from dask_sketch.decoders.objectives.cuda import DeviceObjective
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.errors import DeviceError
from dask_sketch.models import random_mixture
from dask_sketch.validation.device import cupy
from tests.benchmarks import table
from tests.benchmarks.table import Row, row

UNIT = "G pairs/s"
TARGET = 1000.0  # G pairs/s at 12 features on an H200
ISSUED = {12: 19.0, 64: 34.6}  # operations of a pair and lane, in the code for sm_90
AGREEMENT = 2e-7  # of a moment, between devices


def rows(quick: bool = False) -> list[Row]:
    """The table's rows; none without a GPU.

    Parameters
    ----------
    quick
        A tiny form of each.
    """
    try:
        cp = cupy()
    except DeviceError:
        return []
    pairs, frequencies = (1e7, (1024,)) if quick else (4e11, (1024, 4096, 16384, 100_000))
    out = []
    for m in frequencies:
        out.append(moments(cp, f"moments d=12 m={m}", FeatureMap(12, m, scale=1.0), pairs))
    small = FeatureMap(12, 1024, scale=1.0)
    out.append(moments(cp, "moments d=12 m=1024 chunks of 10^6", small, pairs / 4, 1_000_000))
    for d in (2, 64) if quick else (2, 20, 64, 128):
        out.append(moments(cp, f"moments d={d} m=4096", FeatureMap(d, 4096, scale=1.0), pairs / 4))
    out += variants(cp, pairs / 4)
    out += agreement(cp, 2000 if quick else 200_000)
    n_components, m = (4, 2000) if quick else (64, 100_000)
    sketch = mixture_sketch(n_components, m)
    out += objective(cp, n_components, sketch)
    if not quick:
        out += decoding(n_components, sketch)
    return out


def bound(cp: Any, n_features: int) -> float:
    """Pairs that the device could issue at its highest clock, in G pairs/s."""
    attributes = cp.cuda.Device().attributes
    kilohertz = attributes.get("ClockRate", 1_980_000)
    per_second = attributes["MultiProcessorCount"] * 128 * kilohertz * 1e3
    return float(per_second / ISSUED[n_features] / 1e9)


def wall(run: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds; the first run compiles, and each ends when its results are on the host."""
    run()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return median(found)


def drawn(n_rows: int, n_features: int) -> np.ndarray:
    """Rows of a standard normal distribution."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n_rows, n_features), dtype=np.float32)


def moments(
    cp: Any, case: str, feature_map: FeatureMap, pairs: float, most: int = 10_000_000
) -> Row:
    """Chunks of at most so many rows on the GPU, beside one core; the floor is the target."""
    d, m = feature_map.n_features, feature_map.n_frequencies
    n = max(int(pairs / m) // 64 * 64, 64)
    x = drawn(min(n, most, 2**28 // d), d)  # and the same rows again
    there = cp.asarray(x)
    times = -(-n // len(x))

    def run() -> None:
        for _ in range(times):
            partial_sketch(there, feature_map)

    rate = times * len(x) * m / wall(run) / 1e9
    few = x[: max(int(2e7 / m), 64)]
    core = len(few) * m / wall(lambda: partial_sketch(few, feature_map), 3) / 1e9
    floor = TARGET if d == 12 else None
    return row(case, rate, UNIT, against="one core", rival=core, floor=floor)


def variants(cp: Any, pairs: float, m: int = 4096) -> list[Row]:
    """Cost of weights, whitening and other options, relative to the plain pass on the GPU."""
    d = 12
    x = drawn(max(int(pairs / m), 64), d)
    there, weights = cp.asarray(x), cp.asarray(np.random.default_rng(1).random(len(x)))
    single = FeatureMap(d, m, scale=1.0)
    double = FeatureMap(d, m, scale=1.0, dtype="float64")
    few = there[: max(len(x) // 8, 64)]
    runs: dict[str, tuple[Callable[[], Sketch], int]] = {
        "plain": (lambda: partial_sketch(there, single), len(x)),
        "weighted": (lambda: partial_sketch(there, single, weights), len(x)),
        "omit": (lambda: partial_sketch(there, single, nan_policy="omit"), len(x)),
        "from the host": (lambda: partial_sketch(x, single, device="cuda"), len(x)),
        "float64": (lambda: partial_sketch(few, double), len(few)),
    }
    rates = {name: n * m / wall(run) / 1e9 for name, (run, n) in runs.items()}
    plain = rates.pop("plain")
    out = [
        row(f"moments d={d} m={m} {name}", rate, UNIT, against="plain", rival=plain)
        for name, rate in rates.items()
    ]
    name = f"moments d={d} m={m} of what can be issued"
    return [row(name, plain, UNIT, floor=bound(cp, d)), *out]


def agreement(cp: Any, n_rows: int, m: int = 1024) -> list[Row]:
    """Largest difference of a moment: to the processor, and to float64 on the GPU."""
    x = drawn(n_rows, 12)
    single, double = (FeatureMap(12, m, scale=1.0, dtype=t) for t in ("float32", "float64"))
    x *= 50.0 / np.abs(x[:1000] @ single.frequencies).max()  # phases to about 50 radians
    there = cp.asarray(x)
    gpu = partial_sketch(there, single).moment_sum / n_rows
    exact = partial_sketch(there, double).moment_sum / n_rows
    core = partial_sketch(x, single).moment_sum / n_rows
    return [
        row(f"GPU and {name}, n={n_rows}", np.abs(gpu - other).max(), "a moment", floor=AGREEMENT)
        for name, other in (("processor", core), ("float64", exact))
    ]


def mixture_sketch(n_components: int, n_frequencies: int, n_samples: int = 500_000) -> Sketch:
    """Of samples of a mixture in 12 features."""
    truth = random_mixture(n_components, 12, seed=0)
    feature_map = FeatureMap(12, n_frequencies, scale=1.0, seed=1)
    return partial_sketch(truth.sample(n_samples, seed=2), feature_map, device="cuda")


def objective(cp: Any, n_components: int, sketch: Sketch) -> list[Row]:
    """One gradient of the cost, and one Gram matrix, beside one core."""
    here, there = Objective(sketch), DeviceObjective(sketch, xp=cp)
    rng = np.random.default_rng(3)
    theta = here.space.random_atoms(rng, n_components, spread_out=True)
    weights = rng.dirichlet(np.ones(n_components))
    case = f"K={n_components} m={there.n_frequencies}"
    return [
        row(f"{name} {case}", wall(lambda f=ours: f(weights, theta)), "s", against="one core",
            rival=wall(lambda f=theirs: f(weights, theta), 1))
        for name, ours, theirs in (
            ("cost_gradient", there.cost_gradient, here.cost_gradient),
            ("gram", there.gram, here.gram),
        )
    ]  # fmt: skip


def decoding(n_components: int, sketch: Sketch) -> list[Row]:
    """A whole decode by splitting; costs are in units of the noise level."""
    models = {
        device: decode(sketch, n_components, "splitting", device=device)
        for device in ("cuda", None)
    }
    case = f"splitting d=12 K={n_components} m={sketch.feature_map.n_frequencies}"
    ours, theirs = models["cuda"].decoding, models[None].decoding
    return [
        row(case, ours.seconds, "s", against="the processor", rival=theirs.seconds),
        row(
            f"{case} cost",
            ours.cost / ours.noise_level,
            "noise levels",
            against="the processor",
            rival=theirs.cost / theirs.noise_level,
        ),
    ]


def main() -> None:
    """Print the table."""
    found = rows(quick="--quick" in sys.argv[1:])
    if not found:
        print("no GPU here")  # noqa: T201
        return
    cp = cupy()
    print(cp.cuda.runtime.getDeviceProperties(0)["name"].decode(), f"CuPy {cp.__version__}")  # noqa: T201
    print(table.table(found), flush=True)  # noqa: T201
    print(f"written to {table.write(found, table.machine())}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
