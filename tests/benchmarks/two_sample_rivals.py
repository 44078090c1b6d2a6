"""Two-sample tests of other packages: ``python two_sample_rivals.py TASK NAME ...``.

Their requirements contradict ours, so this file is run by another environment and imports nothing
of this project. It prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
    os.environ[name] = "1"
os.environ |= {"TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np

N_PERMUTATIONS = 99
PILOT = 1000  # rows for a bandwidth


def hyppo_mmd():
    """MMD with a Gaussian kernel, by default with an approximate null distribution."""
    from hyppo.ksample import MMD

    return lambda x, y: MMD().test(x, y)[1]


def hyppo_smooth_cf():
    """Smooth characteristic functions at five random frequencies, in linear time."""
    from hyppo.ksample import SmoothCFTest

    return lambda x, y: SmoothCFTest().test(x, y, random_state=1)[1]


def alibi_detect():
    """MMDDrift with its defaults but for the number of permutations."""
    from alibi_detect.cd import MMDDrift

    def test(x, y):
        detector = MMDDrift(x.astype(np.float32), n_permutations=N_PERMUTATIONS)
        return detector.predict(y.astype(np.float32))["data"]["p_val"]

    return test


def goodpoints():
    """Compress Then Test, at the compression level of the examples of its authors."""
    from goodpoints.ctt import ctt

    def test(x, y):
        found = ctt(
            np.ascontiguousarray(x, dtype=np.float64), np.ascontiguousarray(y, dtype=np.float64),
            g=2, B=N_PERMUTATIONS, lam=median_distance(x, y), null_seed=0, statistic_seed=1,
        )  # fmt: skip
        return np.mean(found.estimator_values >= found.statistic_values)  # it is one of them

    return test


RIVALS = {
    "hyppo MMD": hyppo_mmd,
    "hyppo SmoothCF": hyppo_smooth_cf,
    "alibi-detect MMDDrift": alibi_detect,
    "goodpoints CTT": goodpoints,
}


def median_distance(x, y):
    rows = np.concatenate([x[:PILOT], y[:PILOT]])
    squares = (rows**2).sum(axis=1)
    distances = squares[:, None] + squares - 2.0 * rows @ rows.T
    return float(np.sqrt(np.median(distances[np.triu_indices(len(rows), 1)])))


def standardised(x, y):
    rows = np.concatenate([x[:PILOT], y[:PILOT]])
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    return (x - mean) / deviation, (y - mean) / deviation


def of_stores(name, first, second, n, cap, memory):
    """P-value of the first ``n`` rows of two Zarr stores, within CPU seconds and bytes."""
    import zarr

    test = RIVALS[name]()
    # compiled, and loaded, before it is measured
    test(*np.random.default_rng(0).normal(size=(2, 256, 12)))
    limit(float(cap), int(memory))
    cpu, wall = time.process_time(), time.perf_counter()
    x, y = (zarr.open_array(path, mode="r")[: int(n)] for path in (first, second))
    p_value = test(*standardised(x, y))
    return {
        "p_value": float(p_value),
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "peak": 1024 * status("VmHWM"),
    }


def of_draws(name, path):
    """P-values of the pairs of samples in a file of arrays ``x0``, ``y0``, ``x1``, ..."""
    test, held = RIVALS[name](), np.load(path)
    cpu = time.process_time()
    found = [
        float(test(*standardised(held[f"x{k}"], held[f"y{k}"]))) for k in range(len(held) // 2)
    ]
    return {"p_values": found, "cpu": time.process_time() - cpu}


def limit(cap, memory):
    """Limit what this process takes from now on."""
    seconds = int(time.process_time() + cap) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    space = 1024 * status("VmSize") + memory
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


def status(name):
    """Number of the state of this process, kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def main(task, name, *arguments):
    warnings.simplefilter("ignore")
    found = {"stores": of_stores, "draws": of_draws}[task](name, *arguments)
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
