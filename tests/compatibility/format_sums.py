"""Sums of rows and of two sketches, computed again as FORMAT.md describes them."""

from __future__ import annotations

import json

import numpy as np

from compatibility.format_values import Found, variances, whitenings

SAMPLE = ("sample_rows", "sample_row_weights", "sample_importance", "sample_keys")
LARGER = ("epsilon", "delta", "max_weight", "sensitivity", "seeded")
ADDED = ("epsilon_total", "delta_total", "parts")
STORED = ("_high", "_low", "_steps", "_packed", "_bits", "_shift", "convention")


def units(spec: dict) -> np.ndarray:
    """Powers of two in which sketches count, shape (feature,)."""
    given = variances(spec)
    for feature, levels in enumerate(spec.get("categories", ())):
        if levels is not None:
            given[:, feature] = (len(levels) ** 2 - 1) / 12
    mean = np.average(given, axis=0, weights=spec["law_weights"])
    if spec["whitening"] is not None:
        inverse = np.linalg.inv(spec["whitening"])
        mean = np.diag(inverse @ np.diag(mean) @ inverse.T)
    return np.ldexp(1.0, np.clip(np.frexp(1.41 * np.sqrt(mean))[1] - 1, -400, 400))


def split_weights(weights: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Mantissas f and exponents e of weights, which are f 2**e."""
    digits, least = (24, -32) if dtype == "float32" else (45, -20)
    fraction, exponent = np.frexp(weights)
    rounded = np.ldexp(np.floor(np.ldexp(fraction, digits) + 0.5), exponent - digits)
    fraction, exponent = np.frexp(rounded)
    multiple = np.maximum(4 * -(-(exponent - (fraction == 0.5)) // 4), least)
    return np.ldexp(rounded, -multiple), multiple


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows of length one."""
    x = rows.astype(float)
    x /= abs(x).max(axis=1)[:, None]
    x /= np.sqrt(np.cumsum(x * x, axis=1)[:, -1:])
    return x.astype(rows.dtype)


def row_sums(spec: dict, rows: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Integers of all sums but the moment, of rows that have length one with normalize."""
    kept = weights > 0
    x = rows[kept].astype(float)
    f, e = split_weights(weights[kept], spec["dtype"])
    q = 2.0**15 * (x - spec["center"]) / units(spec)

    def added(values: np.ndarray, shift: np.ndarray) -> np.ndarray:
        scales = np.array([2 ** int(s) for s in shift], dtype=object)
        return np.rint(values).astype(int).astype(object).T @ scales

    return {
        "weight": added(f * 2.0**48, e + 32),
        "squared_weight": added(f * f * 2.0**48, 2 * e + 64),
        "first": added(f[:, None] * (q * 2.0**15), e + 32),
        "second": added(f[:, None] * (q * q), e + 32),
    }


def row_counters(found: Found, rows: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Counters of missing values, of rows that have some."""
    f, e = split_weights(weights[weights > 0], found["spec"]["dtype"])
    scales = np.array([2 ** int(k) for k in e + 23], dtype=object)
    w = np.rint(f * 2.0**48).astype(int).astype(object) * scales
    absent = np.isnan(rows[weights > 0])
    lacking = absent.astype(int) @ (found["cycles"].T != 0) > 0
    i, j = np.triu_indices(rows.shape[1])
    pairs = absent[:, i] | absent[:, j]
    return {"missing_frequency": lacking.T @ w, "missing_pair": pairs.T @ w}


def row_moment(
    found: Found, rows: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Moment in float64, its largest distance from a stored one, and the least multiple in it."""
    spec, cycles = found["spec"], found["cycles"].T.astype(float)
    matrix = whitenings(spec)[1]
    x = rows[weights > 0].astype(float)
    x, w = x - spec["center"], weights[weights > 0]
    features = np.exp(-2j * np.pi * (x @ matrix.T @ cycles))
    largest = (np.abs(x) @ np.abs(matrix).T @ np.abs(cycles)).max(axis=1)
    single = spec["dtype"] == "float32"
    relative, absolute = (2.0**-17, 0.0) if single else (2.0**-44, 2.0**-70)
    bound = relative * (w @ (1 + largest)) + absolute * len(w)
    step = 2 ** int(split_weights(w, spec["dtype"])[1].min() + (49 if single else 21))
    return w @ features, bound, step


def row_importance(found: Found, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Importance q of rows."""
    if "pilot" not in found:
        return weights
    variance = np.array(json.loads(found["pilot"])["variance"])
    away = rows.astype(float) - found["spec"]["center"]
    squares = (away**2)[:, variance > 0] / variance[variance > 0]
    return weights * (0.5 + 0.5 * np.minimum(squares.mean(axis=1), 7))


def row_keys(spec: dict, positions: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Keys u / q of rows at some positions of a source."""
    seed = np.random.SeedSequence([spec["seed"], 0])
    base = int(seed.generate_state(1, np.uint64)[0])
    found = []
    for position in positions.tolist():
        z = (base + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        found.append((((z ^ z >> 31) >> 11) + 0.5) * 2.0**-53)
    return np.array(found) / importance


def dithers(found: Found, n: int) -> np.ndarray:
    """Dithers of n rows of a message, integers of 16 bits, shape (row, frequency)."""
    m = found["spec"]["n_frequencies"]
    counters = -(-m // 16)
    random = np.random.Philox(key=int(found["seed"])).advance(int(found["position"]) * counters)
    words = random.random_raw(4 * n * counters).astype("<u8")
    return words.view("<u2").reshape(n, -1)[:, :m].astype(int)


def arcs(found: Found, rows: np.ndarray) -> np.ndarray:
    """Arcs of the phases of rows, of a map without whitened rows."""
    cycles = found["cycles"].T.astype(float)
    phases = np.rint(2**16 * ((rows - found["spec"]["center"]) @ cycles)).astype(int)
    return (phases + dithers(found, len(rows))) % 2**16 >> 16 - found["bits"]


def stored_arcs(found: Found) -> np.ndarray:
    """Arcs of quantised phases."""
    m, bits, n = found["spec"]["n_frequencies"], found["bits"], len(found["packed"])
    digits = np.unpackbits(found["packed"], axis=1, count=m * bits).reshape(n, m, bits)
    return digits @ 2 ** np.arange(bits)[::-1]


def phases_moment(found: Found) -> np.ndarray:
    """Complex moment of quantised phases."""
    n, bits = len(found["packed"]), found["bits"]
    phase = (stored_arcs(found) + 0.5) / 2**bits - (dithers(found, n) + 0.5) / 2**16
    return found.get("weights", np.ones(n)) @ np.exp(-2j * np.pi * phase) / np.sinc(0.5**bits)


def meanings(found: Found) -> Found:
    """The content without its representation: words, digits of few bits, text for people."""
    return {name: value for name, value in found.items() if not name.endswith(STORED)}


def add(a: Found, b: Found) -> Found:
    """Content of the sum of two sketches."""
    a, b = meanings(a), meanings(b)
    private = [each for each in (a, b) if "privacy" in each]
    data = [each for each in (a, b) if each["count"] or each["omitted"]]
    if a["digest"] != b["digest"] or (private and any("privacy" not in e for e in data)):
        raise ValueError("the sketches cannot be added")
    out = {name: value for name, value in a.items() if not name.startswith("sample_")}
    if private:
        out["privacy"] = json.dumps(composed([json.loads(each["privacy"]) for each in private]))
    for name, value in (a | b).items():
        is_sum = isinstance(value, np.ndarray) and value.dtype.hasobject
        if is_sum or name in ("count", "omitted") or name.endswith("weight"):
            out[name] = a.get(name, 0) + b.get(name, 0)
    out["tight_bounds"] = min(a["tight_bounds"], b["tight_bounds"])
    out["schema_version"] = max(a["schema_version"], b["schema_version"])
    if out["schema_version"] == 4:
        errors = [each.get("rounding_error", 0.0) for each in (a, b)]
        out["rounding_error"] = float(np.hypot(*errors))
    out["minimum"] = np.minimum(a["minimum"], b["minimum"])
    out["maximum"] = np.maximum(a["maximum"], b["maximum"])
    return out | added_sample(a, b)


def added_sample(*parts: Found) -> Found:
    """Random rows of all parts."""
    kept = [part for part in parts if "sample_rows" in part]
    if not kept or any("sample_rows" not in part and part["count"] for part in parts):
        return {}
    size = min(part["sample_size"] for part in kept)
    threshold = min(float.fromhex(part["sample_threshold"]) for part in kept)
    found = {name: np.concatenate([part[name] for part in kept]) for name in SAMPLE}
    order = np.argsort(found["sample_keys"], kind="stable")
    keys = found["sample_keys"][order]
    if np.searchsorted(keys, threshold) > size:
        threshold = float(keys[size])
    order = order[keys < threshold]
    rows = {name: values[order] for name, values in found.items()}
    return {"sample_size": size, "sample_threshold": threshold.hex()} | rows


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
