"""Stored values of kinds that came later: rows, missing values, rounded sums, second moments,
phases, models and estimators.

``later.zip`` and ``later.json`` were made once, by ``python -m compatibility.later`` with ``tests``
on the path. Cases that are added are appended: what is stored is never made again.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dask_sketch as ds
from compatibility import cases, format_reader
from dask_sketch.distributions import DistributionClassifier, DistributionRegressor
from dask_sketch.features.pilot import MatrixMixture, Pilot
from dask_sketch.models import AlphaStableMixture, LatentClassMixture, VonMisesFisherMixture
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.moment_grid import MomentGrid
from dask_sketch.sketching.quantized_phases import quantize_phases

HERE = Path(__file__).parent
MISSING = cases.samples(23, 300, 6)
MISSING[cases.samples(24, 300, 6) > 1.0] = np.nan
WIDE = cases.samples(26, 200, 9).astype(np.float64)
SPARSE = cases.specification(
    n_features=6, scale=1.0, law="sparse-sums", seed=23, center=[0.0] * 6, n_frequencies=64
)
GRID = MomentGrid(np.zeros(9), np.ones(9))
SEVERAL = [[1.0, 0.5, 2.0, 0.25, 1.5, 3.0], [0.25, 2.0, 1.0, 1.0, 0.5, 0.125]]
DIAGONAL = np.diag([0.5, -1.0, 3.0, 0.75, 2.0, 1.25]).tolist()
LEVELS = [None, ["red", "green", "blue"], None, [False, True], ["a", "b", "c", "d", "é"]]
CODES = cases.samples(31, 80, 5).astype(np.float64)
CODES[:, [1, 3, 4]] = np.abs(CODES[:, [1, 3, 4]] * 128) % [3, 2, 5]
MEANS = [[0.5, -2.0, 1.0], [3.0, 0.25, -1.0]]
MATRICES = [[[2.0, 0.5, 0.0], [0.5, 1.0, -0.25], [0.0, -0.25, 0.5]], np.diag([1.0, 3.0, 0.5])]
PILOT_MAP = ds.FeatureMap.from_spec(cases.PLAIN).with_pilot(
    Pilot(100, np.array([5.0, 0.0, 4.25]), -6.5)
)
AXES = [[[1.5, 0.25, -0.5], [0.0, 1.25, 0.75], [0.0, 0.0, 2.0]], np.eye(3).tolist()]
FACTORS = [[[1.0, 0.5], [0.25, -1.0], [2.0, 0.0]], [[0.5, 2.0], [3.0, 0.125], [1.0, -0.5]]]
LABELS = np.repeat(np.arange(16), 10)  # of groups for estimators, whose means are TARGETS
TARGETS = np.arange(16) % 5 / 2 - 1.0
ROWS = cases.samples(39, 160, 2) + TARGETS[LABELS][:, None].astype(np.float32)

# For each value: the function that computes it again, by the names of today.
VALUES: dict[str, Any] = {
    "rows": lambda: sketch(cases.samples(21, 500, 3), cases.PLAIN, sample=64),
    "weighted-rows": lambda: sketch(
        cases.samples(22, 400, 3), cases.SKETCHES["weighted-whitened"]["spec"],
        cases.weights(22, 400), sample=32, position=1000,
    ),
    "missing": lambda: sketch(MISSING, SPARSE, nan_policy="available", sample=False),
    "rounded": lambda: ds.merge([
        sketch(cases.mixture(25, 900, 3, -4.0, 4.0), cases.PLAIN, sample=False),
        sketch(cases.samples(26, 60, 3), cases.PLAIN, sample=False),
    ]).rounded(7),
    "second-moments": lambda: ds.second_moments(WIDE, cases.weights(26, 200), like=GRID),
    "second-moments-columns": lambda: ds.second_moments(
        WIDE, like=replace(GRID, n_columns=4, seed=3)
    ),
    "principal-components": lambda: PrincipalComponents(
        [0.5, -2.0, 1e6], [[0.0, 0.6, 0.8], [1.0, 0.0, 0.0]], [1 / 3, 0.25], 0.75, 1 / 6, 0.0625,
        1000, ("a", "b", "c"),
    ),
    "quantized-phases": lambda: quantize_phases(
        cases.with_missing(cases.samples(27, 60, 3)), ds.FeatureMap.from_spec(cases.PLAIN),
        cases.weights(27, 60), bits=3, seed=2**63 + 5, position=11, nan_policy="omit",
    ),
    "second-moments-pairwise": lambda: ds.second_moments(
        MISSING, like=MomentGrid(np.zeros(6), np.ones(6), pairwise=True), nan_policy="available"
    ),
    "all-rows": lambda: sketch(  # weights of zero add nothing, but count
        cases.samples(27, 24, 3), small(3, 12, center=[0.5, 0.0, -0.25]), cases.weights(27, 24),
        sample=64,
    ),
    "all-rows-float64": lambda: sketch(
        cases.samples(28, 24, 3) / 3.0, small(3, 12, dtype="float64", scale=0.7, law="gaussian"),
        cases.weights(28, 24) / 3.0, sample=64,
    ),
    "all-rows-sparse-sums": lambda: sketch(
        cases.samples(29, 24, 6), small(6, 40, law="sparse-sums", seed=29), sample=64
    ),
    "sparse-radius": lambda: sketch(
        cases.samples(30, 60, 7), small(7, 33, law="sparse-radius", seed=30), sample=False
    ),
    "sparse-windows": lambda: sketch(
        cases.samples(40, 60, 18), small(18, 70, law="sparse-windows", seed=40), sample=False
    ),
    "pilot-with-matrices": lambda: sketch_with_matrices(),
    "dense-sums": lambda: sketch(
        cases.samples(41, 60, 3), small(3, 70, law="dense-sums", axes=AXES, seed=41), sample=False
    ),
    "sparse-sums-diagonal": lambda: sketch(
        cases.samples(30, 60, 6),
        small(6, 45, law="sparse-sums", whitening=DIAGONAL, scale=None, covariances=SEVERAL),
        sample=False,
    ),
    "categories": lambda: sketch(
        CODES, small(5, 40, law="sparse-radius", categories=LEVELS, seed=31), sample=False
    ),
    "categories-gaussian": lambda: sketch(
        CODES, small(5, 20, law="gaussian", categories=LEVELS, scale=None,
                     covariances=[row[:5] for row in SEVERAL]), sample=False,
    ),
    "normalize": lambda: sketch(
        np.vstack([cases.samples(32, 59, 4), np.zeros((1, 4), np.float32)]),
        small(4, 24, normalize=True, scale=0.25), nan_policy="omit", sample=100,
    ),
    "pilot": lambda: ds.sketch(
        cases.mixture(34, 200, 3, -2.0, 2.0), PILOT_MAP, cases.weights(34, 200), sample=24,
    ),
    "durations": lambda: ds.partial_sketch(
        cases.samples(35, 60, 3), ds.FeatureMap.from_spec(small(3, 12, dtype="float64")),
        groups=np.tile(np.array([90, -5, 2**40, 0], "m8[ms]"), 15), dim="lag",
    ),
    "rounded-missing": lambda: sketch(
        MISSING, small(6, 40, law="sparse-radius"), nan_policy="available", sample=False
    ).rounded(3),
    "missing-groups": lambda: ds.partial_sketch(
        MISSING[:90], ds.FeatureMap.from_spec(small(6, 20, law="sparse-radius")),
        groups=np.tile(np.array([b"a", b"long", b"b"]), 30), nan_policy="available",
    ),
    "full": lambda: ds.GaussianMixture([0.25, 0.75], MEANS, MATRICES, covariance_type="full"),
    "tied": lambda: ds.GaussianMixture([0.25, 0.75], MEANS, MATRICES[0], covariance_type="tied"),
    "spherical": lambda: ds.GaussianMixture(
        [0.25, 0.75], MEANS, [2.0, 0.5], covariance_type="spherical"
    ),
    "low-rank": lambda: ds.GaussianMixture(
        [0.25, 0.75], MEANS, FACTORS, covariance_type=("low-rank", 1)
    ),
    "von-mises-fisher": lambda: VonMisesFisherMixture(
        [0.25, 0.75], [[0.6, 0.8], [-1.0, 0.0]], [20.0, 0.5]
    ),
    "alpha-stable": lambda: AlphaStableMixture(
        [0.25, 0.75], MEANS, [[1.0, 2.0, 0.5], [0.25, 1.0, 1.0]], [1.25, 2.0]
    ),
    "latent-classes": lambda: LatentClassMixture(
        [0.25, 0.75], [[0.5, 0.25, 0.25, 1.0, 0.0], [0.125, 0.125, 0.75, 0.5, 0.5]],
        (("red", "green", "blue"), None, (False, True)),
        [[1.5], [-2.0]], [[0.5], [3.0]],
    ),
    "regressor": lambda: DistributionRegressor(5, random_state=1).fit(
        groups("clustering"), TARGETS
    ),
    "classifier": lambda: DistributionClassifier(4, kernel="rbf", layer="random").fit(
        groups("adapted-radius"), np.array(["low", "middle", "high"])[np.arange(16) % 5 // 2]
    ),
    "linear-classifier": lambda: DistributionClassifier(kernel="linear", loss="logistic").fit(
        groups("adapted-radius"), np.arange(16) % 5 > 2
    ),
}  # fmt: skip
# Values whose last bits depend on libraries of linear algebra: they are not computed again.
FITTED = ("regressor", "classifier", "linear-classifier")


def small(d: int, m: int, **fields: Any) -> str:
    return cases.specification(
        **{"n_features": d, "n_frequencies": m, "scale": 1.0, "center": [0.0] * d} | fields
    )


def sketch_with_matrices() -> ds.Sketch:
    """Sketch by a map whose pilot has a mixture with covariance matrices."""
    covariances = np.array(MATRICES)
    mixture = MatrixMixture(np.array([0.25, 0.75]), np.array(MEANS), covariances, -4.5, 0.125)
    pilot = Pilot(90, np.array([2.0, 1.0, 0.5]), -5.0, matrix_mixture=mixture)
    feature_map = ds.FeatureMap.from_spec(cases.PLAIN).with_pilot(pilot)
    return ds.partial_sketch(cases.samples(42, 50, 3), feature_map)


def groups(law: str) -> ds.SketchGroup:
    """Groups for the estimators, of unlike sizes."""
    kept = np.arange(160) % 10 <= LABELS % 7 + 1
    spec = small(2, 9, law=law, seed=39)
    return ds.partial_sketch(ROWS[kept], ds.FeatureMap.from_spec(spec), groups=LABELS[kept])


def sketch(x: np.ndarray, spec: str, *arguments: Any, **options: Any) -> ds.Sketch:
    return ds.sketch(x, ds.FeatureMap.from_spec(spec), *arguments, **options)


def fingerprint(value: bytes) -> dict[str, Any]:
    """Attributes, and the SHA-256 of each array, as FORMAT.md describes them."""
    read, (_, stored) = format_reader.read(value), format_reader.load(value)
    arrays = {name: part for name, part in stored.items() if isinstance(part, np.ndarray)}
    if "moment_packed" in stored:
        arrays["moment_high"], arrays["moment_low"] = read["moment"] >> 56, read["moment"] % 2**56
    left_out = ("written_by", "convention", *arrays)
    found = {
        "attrs": {name: stored[name] for name in sorted(stored) if name not in left_out},
        "sha256": {name: cases.sha256(arrays[name].tolist()) for name in sorted(arrays)},
    }
    if stored.get("sample_threshold") == "inf":  # all rows are there: plain sums
        sums = {name: read[name].tolist() for name in ("moment", "first", "second")}
        found["sums"] = {name: json.dumps(values) for name, values in sums.items()}
    return found


def examples() -> set[str]:
    """Names of the stored examples of all kinds that FORMAT.md describes."""
    expected = json.loads((HERE / "expected.json").read_text("utf-8"))
    return {name for name in expected if ".ledger." not in name} | {*stored()}


def agreeing(folder: Path) -> set[str]:
    """Names of the examples that are read as is expected of them; a folder takes the files."""
    expected, values = (
        json.loads((HERE / f"{name}.json").read_text("utf-8")) for name in ("expected", "later")
    )
    found = {name for name, value in stored().items() if fingerprint(value) == values[name]}
    with zipfile.ZipFile(HERE / "stored.zip") as file:
        file.extractall(folder)
    for name, content in expected.items():
        if name == "map.json":
            read = json.loads((folder / name).read_text("utf-8"))
            (cycles,) = format_reader.sample(read["spec"])
            text = json.dumps(read["spec"], sort_keys=True).encode() + b"\0"
            digest = hashlib.sha256(text + cycles.T.tobytes()).hexdigest()
            agrees = {"digest": digest, "spec": read["spec"]} == content
        elif ".model." in name:
            numbers = {field: value for field, value in content.items() if field != "decoding"}
            agrees = cases.model_numbers(folder / name) == numbers
        else:
            agrees = ".ledger." not in name and cases.fingerprint(folder / name) == content
        found |= {name} if agrees else set()
    return found


def stored() -> dict[str, bytes]:
    """Stored values by name."""
    with zipfile.ZipFile(HERE / "later.zip") as file:
        return {name: file.read(name) for name in file.namelist()}


if __name__ == "__main__":
    kept = stored() if (HERE / "later.zip").exists() else {}
    kept |= {name: made().to_bytes() for name, made in VALUES.items() if name not in kept}
    with zipfile.ZipFile(HERE / "later.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for name, value in kept.items():
            out.writestr(zipfile.ZipInfo(name), value, zipfile.ZIP_DEFLATED)
    found = {name: fingerprint(value) for name, value in kept.items()}
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    (HERE / "later.json").write_text(text + "\n", encoding="utf-8")
