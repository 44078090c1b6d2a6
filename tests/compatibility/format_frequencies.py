"""Frequencies of a specification, written from dask_sketch/FORMAT.md alone."""

from __future__ import annotations

import hashlib
import json

import numpy as np
from scipy import special


def choose(uniform: np.ndarray, weights: list[float]) -> np.ndarray:
    """Index drawn by each uniform number."""
    return np.searchsorted(np.cumsum(np.asarray(weights) / np.sum(weights))[:-1], uniform, "right")


def adapted(uniform: np.ndarray) -> np.ndarray:
    """Adapted radii."""
    tail = float.fromhex("0x1.0bbd40bcd5880p-2") * (1 - uniform)
    return 2 * np.sqrt(np.maximum(special.gammainccinv(1.5, tail) / 2 - 1, 0))


def scaled(rng: np.random.Generator, law: str, normal: np.ndarray) -> np.ndarray:
    """Rows with the radii of a distribution."""
    (m, d), sums = normal.shape, law == "sparse-sums"
    uniform = (rng.permutation(m) + rng.random(m)) / m if sums else rng.random(m)
    if law == "folded-gaussian":
        radius = special.ndtri(0.5 + uniform / 2)
    elif law == "clustering":
        order = d / 2 + choose(rng.random(m), [1, 2, 1 + 2 / d])
        radius = np.sqrt(2 * special.gammaincinv(order, uniform))
    else:
        radius = adapted(uniform) * np.sqrt(0.5 if sums else 1)
    if law == "sparse-radius":
        normal[rng.random((m, d)).argsort(axis=1) >= 4] = 0
    return normal * (radius / np.linalg.norm(normal, axis=1))[:, None]


def whitenings(parts: dict) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of the whitening of the frequencies, and of the rows of the data."""
    matrix = np.asarray(parts["whitening"] or np.eye(parts["n_features"]))
    mixed = parts["law"] == "sparse-sums" and np.any(matrix - np.diag(np.diag(matrix)))
    return (np.eye(len(matrix)), matrix) if mixed else (matrix, np.eye(len(matrix)))


def pairs(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Sums and differences of the base frequencies of each group."""
    sums = [u[:, :, None] + v[:, None], u[:, :, None] - v[:, None]]
    return np.stack(sums, axis=3).reshape(-1, u.shape[-1])


def mixed_cycles(
    rng: np.random.Generator,
    law: str,
    levels: np.ndarray,
    m: int,
    variances: np.ndarray,
    weights: list[float],
) -> np.ndarray:
    """Cycles of numeric and categorical features; the latter have levels."""
    n, d, of = 4 * m, len(levels), np.flatnonzero(levels)
    variances = np.where(levels > 0, (levels**2 - 1) / 12, variances)
    row = choose(rng.random(n), weights) if len(variances) > 1 else np.zeros(n, dtype=int)
    normal = rng.standard_normal((n, d))
    if law == "gaussian":
        used = (rng.random((n, d)) < 0.5) | (levels == 0)
    else:
        uniform = rng.random(n)
        size = np.minimum(2 + (uniform >= 0.45) + (uniform >= 0.9), d)
        used = rng.random((n, d)).argsort(axis=1) < size[:, None]
        alone = used[:, levels == 0].any(axis=1) & (rng.random(n) < 0.5)
        used &= ~(alone[:, None] & (levels > 0))
        normal[~used] = 0
        norm = np.linalg.norm(normal[:, levels == 0], axis=1)
        normal *= (adapted(rng.random(n)) / np.where(norm > 0, norm, 1))[:, None]
    cycles = normal / np.sqrt(variances[row]) / (2 * np.pi)
    u, size = rng.random((n, len(of))), levels[of]
    h = np.floor(u * size) if law == "gaussian" else np.floor(u * (size - 1)) + 1
    cycles[:, of] = np.where(used[:, of], np.where(2 * h > size, h - size, h) / size, 0)
    if law == "gaussian":
        return cycles[:m].T
    single = [(h, k) for h in range(1, levels.max() // 2 + 1) for k in of if 2 * h <= levels[k]]
    first = np.zeros((len(single[: max(m // 2, 1)]), d))
    for place, (h, k) in enumerate(single[: len(first)]):
        first[place, k] = h / levels[k]
    seen: set[tuple[float, ...]] = set()
    new, again = [], []
    for each in np.concatenate([first, cycles]):
        key = max(tuple(each + 0.0), tuple(0.0 - each))
        (again if key in seen else new).append(each)
        seen.add(key)
    return np.array([*new, *again])[:m].T


def sample_frequencies(spec: str) -> np.ndarray:
    """Matrix of cycles, float32, of a specification."""
    parts = json.loads(spec)
    d, m, law, scale = (parts[key] for key in ("n_features", "n_frequencies", "law", "scale"))
    variances = np.atleast_2d(parts["covariances"] or [scale**2] * d)
    weights = parts["law_weights"] or [1.0] * len(variances)
    rng, whitening = np.random.default_rng(parts["seed"]), whitenings(parts)[0]
    if "categories" in parts:
        levels = np.array([len(one or ()) for one in parts["categories"]])
        return mixed_cycles(rng, law, levels, m, variances, weights).astype("f4")
    if law != "sparse-sums":
        row = choose(rng.random(m), weights) if len(variances) > 1 else np.zeros(m, dtype=int)
        normal = rng.standard_normal((m, d))
        normal = normal if law == "gaussian" else scaled(rng, law, normal)
        return (whitening.T @ (normal / np.sqrt(variances[row])).T / (2 * np.pi)).astype("f4")
    n, sides = 4 * -(-m // 32), []
    for _ in "uv":
        deck, side = np.hstack([rng.permutation(d) for _ in range(0, 2 * n, d)]), np.zeros((n, d))
        for first in (0, 1):
            side[np.arange(n), deck[first : 2 * n : 2]] = rng.standard_normal(n)
        sides.append(scaled(rng, law, side).reshape(-1, 4, d))
    row = choose((rng.permutation(n // 4) + rng.random(n // 4)) / (n // 4), weights)
    x = pairs(*(sides / np.sqrt(variances[row])[:, None])) @ whitening / (2 * np.pi)
    x[m:] = np.nan
    x = x.reshape(-1, 32, d)
    u = x[:, ::8] - np.nan_to_num(x[:, :1] - x[:, 1:2]) / 2
    base = np.stack([u, x[:, :8:2] - u[:, :1]])
    step = np.ldexp(1.0, np.frexp(np.nanmax(np.abs(base), axis=(0, 1, 2)))[1] - 23)
    return pairs(*(np.trunc(base / step) * step))[:m].T.astype("f4")


def digest(spec: str, cycles: np.ndarray) -> str:
    """SHA-256 of a specification and its frequencies."""
    return hashlib.sha256(spec.encode() + b"\0" + cycles.astype("<f4").tobytes()).hexdigest()
