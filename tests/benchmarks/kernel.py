"""The inner loop against NumPy, side by side in one run, in process CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from dask_sketch import FeatureMap, partial_sketch

BLOCK = 1000  # rows of the cache-blocked NumPy reference


@dataclass(frozen=True)
class Row:
    """One line of the table: giga (sample, frequency) pairs per second of CPU time."""

    n_features: int
    n_frequencies: int
    ours: float
    float64: float
    numpy_float32: float
    numpy_complex: float
    weighted: float
    omit: float


def blocked_float32(x: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """Moment sums as a careful NumPy user would write them."""
    w = omega.astype(np.float32)
    cosine, sine = np.zeros(w.shape[1]), np.zeros(w.shape[1])
    for start in range(0, len(x), BLOCK):
        phase = x[start : start + BLOCK] @ w
        cosine += np.cos(phase).sum(axis=0, dtype=np.float64)
        sine += np.sin(phase).sum(axis=0, dtype=np.float64)
    return cosine - 1j * sine


def complex_exponential(x: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """Moment sums by the definition, in complex128."""
    total = np.zeros(omega.shape[1], dtype=complex)
    for start in range(0, len(x), BLOCK):
        total += np.exp(-1j * (x[start : start + BLOCK].astype(np.float64) @ omega)).sum(axis=0)
    return total


def measure(n_features: int, n_frequencies: int, pairs: float = 4e7, repeats: int = 7) -> Row:
    """Median rates of all variants, taken in turn so that a busy machine slows all alike."""
    n = max(int(pairs / n_frequencies), 64)
    x = np.random.default_rng(0).normal(size=(n, n_features)).astype(np.float32)
    weights = np.random.default_rng(1).random(n)
    single = FeatureMap(n_features, n_frequencies, scale=1.0)
    double = FeatureMap(n_features, n_frequencies, scale=1.0, dtype="float64")
    omega = single.frequencies
    few = x[: max(n // 10, 8)]  # the slow rivals are timed on fewer rows
    variants: dict[str, tuple[Callable[[], object], int]] = {
        "ours": (lambda: partial_sketch(x, single), n),
        "weighted": (lambda: partial_sketch(x, single, weights), n),
        "omit": (lambda: partial_sketch(x, single, nan_policy="omit"), n),
        "float64": (lambda: partial_sketch(few, double), len(few)),
        "numpy_float32": (lambda: blocked_float32(x, omega), n),
        "numpy_complex": (lambda: complex_exponential(few, omega), len(few)),
    }
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for run in range(repeats + 1):
        for name, (call, rows) in variants.items():
            start = time.process_time()
            call()
            spent = time.process_time() - start
            if run:  # the first round compiles
                rates[name].append(rows * n_frequencies / max(spent, 1e-9) / 1e9)
    middle = {name: median(values) for name, values in rates.items()}
    return Row(n_features, n_frequencies, **middle)


def table(rows: list[Row]) -> str:
    """The figures as text: rates in G pairs/s, and ratios."""
    head = (
        f"{'d':>4} {'m':>6} {'float32':>8} {'float64':>8} {'numpy f32':>10} {'numpy c128':>11} "
        f"{'x f32':>6} {'x c128':>7} {'weighted':>9} {'omit':>6}"
    )
    lines = [
        "moment sums, G (sample, frequency) pairs per second of CPU time, one thread",
        head,
    ]
    lines += [
        f"{r.n_features:>4} {r.n_frequencies:>6} {r.ours:>8.3f} {r.float64:>8.3f} "
        f"{r.numpy_float32:>10.3f} {r.numpy_complex:>11.4f} {r.ours / r.numpy_float32:>6.1f} "
        f"{r.ours / r.numpy_complex:>7.0f} {r.ours / r.weighted - 1:>+9.1%} "
        f"{r.ours / r.omit - 1:>+6.1%}"
        for r in rows
    ]
    lines.append("x f32, x c128: times faster than each; weighted, omit: extra time they cost")
    return "\n".join(lines)
