"""Print digests of feature maps and checksums of sketches, as this processor computes them.

Variables of the environment choose the processor for which code is compiled, and the loops of
NumPy and OpenBLAS.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import dask_sketch as ds

sys.path.append(str(Path(__file__).parents[1]))  # for a program that is not a test
from compatibility import again_from, cases, later

from dask_sketch.features.kernels.dense import vector_bits
from dask_sketch.validation.choices import DISTRIBUTIONS

WHITENING = [[2.0, 0.0, 0.0], [0.3, 1.0, 0.0], [-0.1, 0.2, 0.7]]
SIZES = [(3, name) for name in DISTRIBUTIONS] + [(20, "adapted-radius")]


def data(n_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, weights and labels."""
    rng = np.random.default_rng(n_features)
    x = rng.integers(-(2**20), 2**20, size=(700, n_features)).astype(np.float32) / 2**18
    return x, rng.random(700), rng.integers(0, 5, 700)


def checksum(sketch: ds.Sketch | ds.SketchGroup) -> str:
    """SHA-256 of all arrays that a sketch stores."""
    total = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        sketch.to_zarr(Path(folder) / "s.zarr")
        for name, array in sorted(zarr.open_group(f"{folder}/s.zarr", mode="r").arrays()):
            total.update(name.encode() + np.ascontiguousarray(array[...]).tobytes())
    return total.hexdigest()


def results() -> dict[str, str | int]:
    """Width of vectors, digests and checksums, by what they belong to."""
    out: dict[str, str | int] = {"vector bits": vector_bits()}
    for n_features, name in SIZES:
        m = 96 if name == "gaussian-pairs" else 70
        feature_map = ds.FeatureMap(n_features, m, scale=1.5, distribution=name, seed=5)
        x, weights, labels = data(n_features)
        key = f"{name} of {n_features} features"
        out[f"{key}: digest"] = feature_map.digest
        out[f"{key}: sums"] = checksum(ds.partial_sketch(x, feature_map))
        out[f"{key}: weighted sums"] = checksum(ds.partial_sketch(x, feature_map, weights))
        if n_features == 20:
            groups = ds.sketch(x, feature_map, groups=labels)
            groups = groups if isinstance(groups, ds.SketchGroup) else groups.compute()
            out[f"{key}: sums of groups"] = checksum(groups)
    whitened = ds.FeatureMap(3, 70, scale=1.5, whitening=WHITENING, seed=5)
    out["whitening: digest"] = whitened.digest
    out["whitening: sums"] = checksum(ds.partial_sketch(data(3)[0], whitened))
    out["vectors"] = " ".join(vectors())
    with tempfile.TemporaryDirectory() as folder:
        out["read"] = " ".join(sorted(later.agreeing(Path(folder))))
    return out


def vectors() -> list[str]:
    """Names of the stored vectors whose sums are computed again, to the bit."""
    here = Path(cases.__file__).parent
    expected, values = (json.loads((here / f"{name}.json").read_text("utf-8"))
                        for name in ("expected", "later"))  # fmt: skip
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, again in (("sketch", again_from.sketch), ("group", again_from.group)):
            for name, case in (cases.SKETCHES if kind == "sketch" else cases.GROUPS).items():
                path = f"{folder}/{name}.{kind}.zarr"
                again(case).to_zarr(path)
                if cases.fingerprint(path) == expected[Path(path).name]:
                    found.append(name)
    for name, again in later.VALUES.items():
        if name not in later.FITTED and later.fingerprint(again().to_bytes()) == values[name]:
            found.append(name)
    return found


if __name__ == "__main__":
    json.dump(results(), sys.stdout)
