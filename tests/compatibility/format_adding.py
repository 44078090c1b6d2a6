"""Sums of two sketches, written from dask_sketch/FORMAT.md alone."""

from __future__ import annotations

import json

import numpy as np

from compatibility.format_reader import whole

SAMPLE = ("sample_rows", "sample_row_weights", "sample_importance", "sample_keys")
LARGER = ("epsilon", "delta", "max_weight", "sensitivity", "seeded")
ADDED = ("epsilon_total", "delta_total", "parts")


def add(a: tuple[dict, ...], b: tuple[dict, ...]) -> tuple[dict, dict]:
    """Attributes and arrays of the sum of two sketches."""
    (attrs, arrays), (other, others) = map(dict, a[:2]), b[:2]
    private = [each for each in (attrs, other) if "privacy" in each]
    data = [each for each in (attrs, other) if each["count"] or each["omitted"]]
    if attrs["digest"] != other["digest"] or (private and any(e not in private for e in data)):
        raise ValueError("the sketches cannot be added")
    if private:
        attrs["privacy"] = json.dumps(composed([json.loads(e["privacy"]) for e in private]))
    sample = added_sample((attrs, arrays), (other, others))
    for name in [*SAMPLE, "sample_threshold", "sample_size", "moment_packed"]:
        attrs.pop(name, None)
        arrays.pop(name, None)
    steps = {k for k in (*attrs, *other) if k.endswith("weight_steps")}
    attrs |= {k: str(int(attrs.get(k, 0)) + int(other.get(k, 0))) for k in steps}
    attrs |= {key: attrs[key] + other[key] for key in ("count", "omitted")}
    attrs["tight_bounds"] = min(attrs["tight_bounds"], other["tight_bounds"])
    attrs["schema_version"] = max(attrs["schema_version"], other["schema_version"])
    if attrs["schema_version"] == 4:
        errors = [each.get("rounding_error", 0.0) for each in (a[0], other)]
        attrs["rounding_error"] = float(np.hypot(*errors))
    for name in {key[:-5] for key in (*arrays, *others) if key.endswith("_high")}:
        sums = sum(whole(part, name) for part in (arrays, others) if f"{name}_high" in part)
        arrays[f"{name}_high"], arrays[f"{name}_low"] = np.array([sums >> 56, sums % 2**56], int)
    arrays["minimum"] = np.minimum(arrays["minimum"], others["minimum"])
    arrays["maximum"] = np.maximum(arrays["maximum"], others["maximum"])
    return attrs | sample[0], arrays | sample[1]


def added_sample(*parts: tuple[dict, dict]) -> tuple[dict, dict]:
    """Attributes and arrays of the random rows of all parts."""
    kept = [part for part in parts if "sample_rows" in part[1]]
    if not kept or any("sample_rows" not in arrays and attrs["count"] for attrs, arrays in parts):
        return {}, {}
    size = min(attrs["sample_size"] for attrs, _ in kept)
    threshold = min(float.fromhex(attrs["sample_threshold"]) for attrs, _ in kept)
    found = {name: np.concatenate([arrays[name] for _, arrays in kept]) for name in SAMPLE}
    order = np.argsort(found["sample_keys"], kind="stable")
    keys = found["sample_keys"][order]
    if np.searchsorted(keys, threshold) > size:
        threshold = float(keys[size])
    order = order[keys < threshold]
    attrs = {"sample_size": size, "sample_threshold": threshold.hex()}
    return attrs, {name: values[order] for name, values in found.items()}


def composed(records: list[dict]) -> dict:
    """Record of the noise of a sum of private sketches."""
    names = {name for r in records for name in r["mechanism"].split(" and ")}
    out = {"mechanism": " and ".join(sorted(names))}
    out |= {name: max(r[name] for r in records) for name in LARGER}
    out |= {name: sum(r[name] for r in records) for name in ADDED}
    for name in ("moment_deviation", "weight_deviation"):
        out[name] = (
            float(np.hypot(*[r[name] for r in records])) if records[1:] else records[0][name]
        )
    return out
