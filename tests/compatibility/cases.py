"""Data and specifications of the stored artifacts: plain numbers, and no name of the package.

The data are made of the raw integers of PCG64, whose stream NumPy guarantees, and are exact in
float32: they have the same bits on every platform.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from compatibility import format_reader

SUMS = ("weight", "squared_weight", "moment", "first", "second")
HASHED = (*SUMS, "count", "omitted", "minimum", "maximum", "unit")


def samples(seed: int, n: int, d: int) -> np.ndarray:
    """Values near a normal distribution of standard deviation 1.2, in steps of 1/128."""
    raw = np.random.PCG64(seed).random_raw(4 * n * d).astype(np.int64) & 0xFF
    return ((raw - 128).reshape(4, n, d).sum(axis=0) / 128).astype(np.float32)


def mixture(seed: int, n: int, d: int, *centers: float) -> np.ndarray:
    """Rows around each of the centers in turn."""
    shift = np.resize(np.array(centers, dtype=np.float32), n)
    return samples(seed, n, d) + shift[:, None]


def weights(seed: int, n: int) -> np.ndarray:
    """Weights of many magnitudes, some of them zero."""
    raw = np.random.PCG64(seed).random_raw(n).astype(np.int64)
    value = (1 + (raw & 0xFFFF) / 2**16) * 2.0 ** ((raw >> 16) % 40 - 20)
    return np.where((raw >> 24) % 7 == 0, 0.0, value)


def with_missing(x: np.ndarray) -> np.ndarray:
    """Rows of which some hold NaN or an infinite value."""
    x = x.copy()
    x[5, 0], x[17, 1], x[-1, -1] = np.nan, np.inf, -np.inf
    return x


def specification(**fields: Any) -> str:
    """The JSON text that stored artifacts hold of a feature map."""
    plain = {"scale": None, "covariances": None, "law_weights": None, "law": "adapted-radius"}
    plain |= {"seed": 0, "dtype": "float32", "center": None, "whitening": None}
    return json.dumps({"n_features": 3, "n_frequencies": 64} | plain | fields)


FULL = [[1.0, 0.5, 0.0], [0.0, 0.75, -0.25], [0.125, 0.0, 1.5]]
DIAGONAL = np.diag([0.5, 1.0, 3.0]).tolist()
PLAIN = specification(scale=1.0, seed=1)

# For each sketch: specification, samples, and optionally weights, the policy for missing values,
# the number of first rows taken out again, and the arguments of privatisation.
SKETCHES: dict[str, dict[str, Any]] = {
    "adapted-radius": {"spec": PLAIN, "x": mixture(1, 600, 3, -4.0, 4.0)},
    "sparse-radius-subtracted": {
        "spec": specification(scale=0.75, law="sparse-radius", dtype="float64", seed=2),
        "x": samples(2, 500, 3).astype(np.float64),
        "taken_out": 200,
    },
    "sparse-sums": {
        "spec": specification(scale=1.5, law="sparse-sums", n_frequencies=96, seed=3),
        "x": samples(3, 700, 3),
    },
    "sparse-sums-whitened": {
        "spec": specification(
            scale=1.0, law="sparse-sums", dtype="float64", whitening=FULL, center=[1.0, -2.0, 0.5]
        ),
        "x": samples(4, 400, 3),
        "weights": weights(4, 400),
    },
    "clustering-covariances": {
        "spec": specification(
            n_features=2, n_frequencies=48, law="clustering", seed=5,
            covariances=[[1.0, 2.0], [0.25, 0.5]], law_weights=[0.25, 0.75],
        ),
        "x": mixture(5, 300, 2, 0.0, 3.0, 6.0),
    },
    "folded-gaussian-omitted": {
        "spec": specification(scale=1.0, law="folded-gaussian", whitening=DIAGONAL, seed=6),
        "x": with_missing(samples(6, 300, 3)),
        "nan_policy": "omit",
    },
    "gaussian-named-integers": {
        "spec": specification(
            scale=40.0, law="gaussian", center=[10.0, 0.0, -10.0], seed=7,
            feature_names=["height", "width", "Länge"],
        ),
        "x": (samples(7, 300, 3) * 128).astype(np.int16),
    },
    "weighted-whitened": {
        "spec": specification(scale=1.0, whitening=FULL, center=[0.5, 0.25, -8.0], seed=8),
        "x": samples(8, 800, 3),
        "weights": weights(8, 800),
    },
    "private-gaussian": {
        "spec": PLAIN,
        "x": mixture(9, 600, 3, -4.0, 4.0),
        "private": {"epsilon": 1.0, "delta": 1e-6, "seed": 9, "bounds": [[-9.0] * 3, [9.0] * 3]},
    },
    "private-laplace": {
        "spec": specification(scale=1.0, dtype="float64", seed=10),
        "x": mixture(10, 600, 3, -4.0, 4.0),
        "private": {"epsilon": 0.5, "seed": 10},
    },
}  # fmt: skip

_SPARSE_SUMS = specification(scale=1.0, law="sparse-sums", seed=11)
_SPEAKERS = np.array(["ann", "bob", "eve", "Zoë", "bob"])
_DAYS = np.datetime64("2023-12-30", "D") + np.array([0, 3, 0, 1, 400])

# For each group of sketches: as for sketches, and labels.
GROUPS: dict[str, dict[str, Any]] = {
    "strings": {"spec": _SPARSE_SUMS, "x": samples(11, 500, 3), "labels": np.tile(_SPEAKERS, 100)},
    "integers": {
        "spec": specification(scale=1.0, law="sparse-radius", dtype="float64", seed=12),
        "x": samples(12, 400, 3).astype(np.float64),
        "weights": weights(12, 400),
        "labels": np.tile([-5, 2**40, 7, 7], 100),
    },
    "dates": {
        "spec": specification(scale=1.0, law="gaussian", seed=13),
        "x": with_missing(samples(13, 300, 3)),
        "nan_policy": "omit",
        "labels": np.tile(_DAYS, 60),
    },
    "whitened-numbers": {
        "spec": specification(scale=1.0, law="sparse-sums", whitening=FULL, seed=14),
        "x": samples(14, 300, 3),
        "nan_policy": "omit",
        "labels": np.where(np.arange(300) % 11 == 10, np.nan, np.arange(300) % 3 / 2),
    },
}

# For each ledger: specification, commits in order, each a list of the partitions added (key,
# fingerprint, seed and number of rows) and of the keys removed, and the keys forgotten at the end.
LEDGERS: dict[str, dict[str, Any]] = {
    "replaced": {
        "spec": PLAIN,
        "commits": [
            {"added": [(f"day-{i}", "1", 20 + i, 50 + 10 * i) for i in range(4)]},
            {"added": [("day-2", "2", 30, 90), ("day-4", "1", 24, 20)], "removed": ["day-0"]},
        ],
    },
    "forgotten": {
        "spec": specification(scale=1.0, law="sparse-sums", seed=31),
        "commits": [
            {"added": [(f"part-{i}", "1", 40 + i, 60) for i in range(5)]},
            {"added": [("part-9", "1", 49, 30)], "quarantined": {"part-7": "not readable"}},
        ],
        "forgotten": ["part-3"],
    },
    "groups": {
        "spec": specification(scale=1.0, law="sparse-radius", dtype="float64", seed=51),
        "commits": [
            {"added": [(f"{who}/{i}", "1", 60 + 3 * j + i, 40) for i in range(3)
                       for j, who in enumerate(("ann", "bob"))]},
        ],
        "models": {"model": (-2.0, 2.0), "model@ann": (-1.0, 1.0)},
    },
}  # fmt: skip


def partitions(ledger: dict[str, Any]) -> dict[str, tuple[str, np.ndarray]]:
    """Fingerprint and samples of all partitions that a ledger holds at its end, by key."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    for commit in ledger["commits"]:
        for key in commit.get("removed", ()):
            del found[key]
        found |= {k: (mark, samples(seed, n, 3)) for k, mark, seed, n in commit["added"]}
    return {key: value for key, value in found.items() if key not in ledger.get("forgotten", ())}


# -- what is compared ------------------------------------------------------------------------


def fingerprint(path: Any) -> dict[str, Any]:
    """Digest of the feature map and SHA-256 of each kind of sum of a stored sketch or group.

    Read by the published layout alone. Sums are compared as integers, so that another split of
    the same integers into words is no difference. The digest covers the frequencies.
    """
    read = format_reader.read(Path(path))
    found = {name: np.asarray(value).tolist() for name, value in read.items() if name in HASHED}
    kept = ("digest", "spec", "label_type", "dim", "unlabelled", "privacy")
    return {
        **{name: read[name] for name in kept if name in read},
        **{name: read[name].tolist() for name in ("labels",) if name in read},
        "tight_bounds": np.asarray(read["tight_bounds"]).astype(int).tolist(),
        **{name: found.get(name) for name in ("count", "omitted")},
        "sha256": {name: sha256(values) for name, values in sorted(found.items())},
    }


def model_numbers(path: Any) -> dict[str, Any]:
    """Arrays of a stored model as lists, with the standard errors in a dictionary of their own."""
    read = format_reader.read(Path(path))
    numbers = {name: part.tolist() for name, part in read.items() if isinstance(part, np.ndarray)}
    errors = {name: numbers.pop(name) for name in list(numbers) if name.endswith("_stderr")}
    stderr = {name.removesuffix("_stderr"): values for name, values in errors.items()}
    return numbers | ({"stderr": stderr} if stderr else {})


def sha256(values: Any) -> str:
    """SHA-256 of numbers, whose decimal texts JSON and Python write exactly."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
