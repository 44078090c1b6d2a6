"""Sums, keys and phases of rows, written from dask_sketch/FORMAT.md alone."""

from __future__ import annotations

import json

import numpy as np

from compatibility.format_frequencies import sample_frequencies, whitenings


def units(spec: str) -> np.ndarray:
    """Powers of two in which sketches count, shape (feature,)."""
    parts = json.loads(spec)
    given = parts["covariances"] or [parts["scale"] ** 2] * parts["n_features"]
    variances = np.atleast_2d(np.array(given))
    for feature, levels in enumerate(parts.get("categories", ())):
        if levels is not None:
            variances[:, feature] = (len(levels) ** 2 - 1) / 12
    mean = np.average(variances, axis=0, weights=parts["law_weights"])
    if parts["whitening"] is not None:
        inverse = np.linalg.inv(parts["whitening"])
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


def row_sums(spec: str, rows: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Integers of all sums but the moment, of rows that have length one with normalize."""
    parts = json.loads(spec)
    kept = weights > 0
    x = rows[kept].astype(float)
    f, e = split_weights(weights[kept], parts["dtype"])
    q = 2.0**15 * (x - parts["center"]) / units(spec)

    def added(values: np.ndarray, shift: np.ndarray) -> np.ndarray:
        scales = np.array([2 ** int(s) for s in shift], dtype=object)
        return np.rint(values).astype(int).astype(object).T @ scales

    return {
        "weight": added(f * 2.0**48, e + 32),
        "squared_weight": added(f * f * 2.0**48, 2 * e + 64),
        "first": added(f[:, None] * (q * 2.0**15), e + 32),
        "second": added(f[:, None] * (q * q), e + 32),
    }


def row_counters(spec: str, rows: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Counters of missing values, of rows that have some."""
    f, e = split_weights(weights[weights > 0], json.loads(spec)["dtype"])
    scales = np.array([2 ** int(k) for k in e + 23], dtype=object)
    w = np.rint(f * 2.0**48).astype(int).astype(object) * scales
    absent = np.isnan(rows[weights > 0])
    lacking = absent.astype(int) @ (sample_frequencies(spec) != 0) > 0
    i, j = np.triu_indices(rows.shape[1])
    pairs = absent[:, i] | absent[:, j]
    return {"frequency": lacking.T @ w, "pair": pairs.T @ w}


def row_moment(
    spec: str, rows: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Moment in float64, its largest distance from a stored one, and the least multiple in it."""
    parts, cycles = json.loads(spec), sample_frequencies(spec).astype(float)
    matrix = whitenings(parts)[1]
    x = rows[weights > 0].astype(float)
    x, w = x - parts["center"], weights[weights > 0]
    features = np.exp(-2j * np.pi * (x @ matrix.T @ cycles))
    largest = (np.abs(x) @ np.abs(matrix).T @ np.abs(cycles)).max(axis=1)
    single = parts["dtype"] == "float32"
    relative, absolute = (2.0**-17, 0.0) if single else (2.0**-44, 2.0**-70)
    bound = relative * (w @ (1 + largest)) + absolute * len(w)
    step = 2 ** int(split_weights(w, parts["dtype"])[1].min() + (49 if single else 21))
    return w @ features, bound, step


def row_importance(attrs: dict, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Importance q of rows."""
    if "pilot" not in attrs:
        return weights
    variance = np.array(json.loads(attrs["pilot"])["variance"])
    away = rows.astype(float) - json.loads(attrs["feature_map"])["center"]
    squares = (away**2)[:, variance > 0] / variance[variance > 0]
    return weights * (0.5 + 0.5 * np.minimum(squares.mean(axis=1), 7))


def row_keys(spec: str, positions: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """Keys u / q of rows at some positions of a source."""
    seed = np.random.SeedSequence([json.loads(spec)["seed"], 0])
    base = int(seed.generate_state(1, np.uint64)[0])
    found = []
    for position in positions.tolist():
        z = (base + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        found.append((((z ^ z >> 31) >> 11) + 0.5) * 2.0**-53)
    return np.array(found) / importance


def dithers(attrs: dict, n: int) -> np.ndarray:
    """Dithers of n rows of a message, integers of 16 bits, shape (row, frequency)."""
    m = json.loads(attrs["feature_map"])["n_frequencies"]
    counters = -(-m // 16)
    random = np.random.Philox(key=int(attrs["seed"])).advance(int(attrs["position"]) * counters)
    words = random.random_raw(4 * n * counters).astype("<u8")
    return words.view("<u2").reshape(n, -1)[:, :m].astype(int)


def arcs(attrs: dict, rows: np.ndarray) -> np.ndarray:
    """Arcs of the phases of rows, of a map without whitened rows."""
    spec = attrs["feature_map"]
    cycles = sample_frequencies(spec).astype(float)
    phases = np.rint(2**16 * ((rows - json.loads(spec)["center"]) @ cycles)).astype(int)
    return (phases + dithers(attrs, len(rows))) % 2**16 >> 16 - attrs["bits"]


def stored_arcs(attrs: dict, arrays: dict) -> np.ndarray:
    """Arcs of quantised phases."""
    m, bits, n = len(dithers(attrs, 1)[0]), attrs["bits"], len(arrays["packed"])
    digits = np.unpackbits(arrays["packed"], axis=1, count=m * bits).reshape(n, m, bits)
    return digits @ 2 ** np.arange(bits)[::-1]


def phases_moment(attrs: dict, arrays: dict) -> np.ndarray:
    """Complex moment of quantised phases."""
    n, bits = len(arrays["packed"]), attrs["bits"]
    phase = (stored_arcs(attrs, arrays) + 0.5) / 2**bits - (dithers(attrs, n) + 0.5) / 2**16
    return arrays.get("weights", np.ones(n)) @ np.exp(-2j * np.pi * phase) / np.sinc(0.5**bits)
