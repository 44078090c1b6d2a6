"""Write the stored artifacts, with the code and the names of commit 659e761.

``stored.zip`` and ``expected.json`` were made once, by the code as it was before issue 12::

    git worktree add /tmp/base 659e761
    PYTHONPATH=/tmp/base:tests python -m compatibility.write_stored

They are never made again: artifacts of later versions would prove nothing about these. For a new
kind of artifact, write another file beside this one, with the names of its day.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from dask_sketch.ledger import Partition, RunRecord

import dask_sketch as ds
from compatibility import cases

HERE = Path(__file__).parent


def write_all(root: Path) -> dict[str, Any]:
    """Write every artifact under ``root``, and return what is expected of each."""
    expected: dict[str, Any] = {}
    for name, case in cases.SKETCHES.items():
        path = root / f"{name}.sketch.zarr"
        sketch_of(case).to_zarr(path)
        expected[path.name] = cases.fingerprint(path)
    for name, case in cases.GROUPS.items():
        path = root / f"{name}.group.zarr"
        given = (case["x"], feature_map(case), case["labels"], case.get("weights"))
        group = ds.partial_groups(*given, nan_policy=case.get("nan_policy", "raise"), dim="speaker")
        group.to_zarr(path)
        expected[path.name] = cases.fingerprint(path)
    sketch = ds.open_sketch(root / "adapted-radius.sketch.zarr")
    for name, task in (("mixture", "gaussian"), ("centroids", "dirac")):
        path = root / f"{name}.model.zarr"
        refine = "efficient" if name == "mixture" else None
        model = ds.decode(sketch, 2, model=task, refine=refine, threads=1)
        model.to_zarr(path)
        expected[path.name] = model_numbers(model)
    designed = ds.FeatureMap.from_spec(cases.SKETCHES["gaussian-named-integers"]["spec"])
    (root / "map.json").write_text(designed.to_json(), encoding="utf-8")
    expected["map.json"] = {"digest": designed.digest, "spec": json.loads(designed.spec)}
    for name, case in cases.LEDGERS.items():
        path = root / f"{name}.ledger.zarr"
        expected[path.name] = write_ledger(path, case)
    return expected


def feature_map(case: dict[str, Any]) -> ds.FeatureMap:
    return ds.FeatureMap.from_spec(case["spec"])


def sketch_of(case: dict[str, Any]) -> ds.Sketch:
    options = {"nan_policy": case.get("nan_policy", "raise")}
    sketch = ds.partial_sketch(case["x"], feature_map(case), case.get("weights"), **options)
    if "taken_out" in case:
        sketch = sketch - ds.partial_sketch(case["x"][: case["taken_out"]], feature_map(case))
    return sketch.privatise(**case["private"]) if "private" in case else sketch


def model_numbers(model: ds.GaussianMixture | ds.Centroids) -> dict[str, Any]:
    names = ("weights", "means", "covariances", "centers")
    out: dict[str, Any] = {n: getattr(model, n).tolist() for n in names if hasattr(model, n)}
    if getattr(model, "stderr", None) is not None:
        out["stderr"] = {name: getattr(model.stderr, name).tolist() for name in names[:3]}
    record = model.decoding
    if record is not None:
        out["decoding"] = {
            "method": record.method, "model": record.model, "cost": record.cost,
            "refine": record.refine, "converged": record.converged,
        }  # fmt: skip
    return out


def write_ledger(path: Path, case: dict[str, Any]) -> dict[str, Any]:
    fm = feature_map(case)
    ledger = ds.create_ledger(str(path), fm)
    for number, commit in enumerate(case["commits"], 1):
        added = [
            (Partition(key, mark, n), ds.partial_sketch(cases.samples(seed, n, 3), fm))
            for key, mark, seed, n in commit["added"]
        ]
        day = f"2026-01-0{number}T03:00:00+00:00"
        run = RunRecord(number, day, day, "done", counts={"added": len(added)})
        with ledger.lock():
            for name, means in case.get("models", {}).items():
                ledger.write_model(number, centroids(means), name)
            ledger.commit(added, commit.get("removed", ()), commit.get("quarantined"), run)
    if "forgotten" in case:
        ledger.forget(case["forgotten"])
    return ledger_facts(ledger)


def centroids(values: tuple[float, ...]) -> ds.Centroids:
    n = len(values)
    return ds.Centroids(np.full(n, 1 / n), [[value] * 3 for value in values])


def ledger_facts(ledger: ds.Ledger) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        ledger.total().to_zarr(f"{scratch}/total.zarr")
        total = cases.fingerprint(f"{scratch}/total.zarr")
    return {
        "total": total,
        "fingerprints": {key: entry.fingerprint for key, entry in ledger.entries.items()},
        "counts": {key: entry.count for key, entry in ledger.entries.items()},
        "forgotten": sorted(ledger.forgotten),
        "quarantined": dict(ledger.quarantined),
        "next_run": ledger.next_run,
        "states": [run for run, _ in ledger.states(9)],
        "models": sorted(name for record in ledger.history() for name in record.models),
    }


def pack(root: Path, target: Path) -> None:
    """One file, with the same bytes for the same content."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            file.writestr(zipfile.ZipInfo(path.relative_to(root).as_posix()), path.read_bytes(),
                          zipfile.ZIP_DEFLATED)  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = write_all(Path(folder))
        pack(Path(folder), HERE / "stored.zip")
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")
