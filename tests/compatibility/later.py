"""Stored values of kinds that came later: rows, missing values, rounded sums, second moments,
principal components, quantised phases.

``later.zip`` and ``later.json`` were made once, by ``python -m compatibility.later`` with ``tests``
on the path. Cases that are added are appended: what is stored is never made again.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dask_sketch as ds
from compatibility import cases, format_reader
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
}  # fmt: skip


def sketch(x: np.ndarray, spec: str, *arguments: Any, **options: Any) -> ds.Sketch:
    return ds.sketch(x, ds.FeatureMap.from_spec(spec), *arguments, **options)


def fingerprint(value: bytes) -> dict[str, Any]:
    """Attributes, and the SHA-256 of each array, as FORMAT.md describes them."""
    attrs, arrays, _ = format_reader.read(value)
    left_out = ("checksum", "written_by", "convention")
    return {
        "attrs": {name: attrs[name] for name in sorted(attrs) if name not in left_out},
        "sha256": {name: cases.sha256(arrays[name].tolist()) for name in sorted(arrays)},
    }


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
