"""The inner loop against NumPy, side by side in one run, in process CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from dask_sketch import FeatureMap, partial_sketch
from tests.benchmarks import floor
from tests.benchmarks.groups import chunk_rows
from tests.benchmarks.table import Row, row

BLOCK = 1000  # rows of the cache-blocked NumPy reference
UNIT = "G pairs/s"
CASES = [(2, 1024), (12, 1024), (12, 8000), (20, 2048), (64, 1024), (128, 1024), (784, 1024)]
SUMS = "sparse-sums"  # the distribution whose frequencies share work; it has a kernel of its own
VARIANTS = (12, 1024)  # where weights, whitening and the omit policy are told too
PAIRS, CHUNK = 4e7, 100_000  # pairs of a case; rows of the one with variants, a chunk of 5 MB


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


def measure(n_features: int, n_frequencies: int, pairs: float, repeats: int) -> dict[str, float]:
    """Median rates of all variants, taken in turn so that a busy machine slows all alike.

    G (sample, frequency) pairs per second of CPU time; the floors are what the
    multiply-adds measured beside them would allow.
    """
    n = max(int(pairs / n_frequencies), 64)
    x = np.random.default_rng(0).normal(size=(n, n_features)).astype(np.float32)
    weights = np.random.default_rng(1).random(n)
    lognormal = np.random.default_rng(3).lognormal(sigma=2.0, size=n)
    mixing = np.random.default_rng(2).normal(size=(n_features, n_features))
    whitening = np.linalg.qr(mixing)[0] * 0.5
    single = FeatureMap(n_features, n_frequencies, scale=1.0)
    double = FeatureMap(n_features, n_frequencies, scale=1.0, dtype="float64")
    whitened = FeatureMap(n_features, n_frequencies, scale=1.0, whitening=whitening)
    sums = FeatureMap(n_features, n_frequencies, scale=1.0, distribution=SUMS)
    white_sums = FeatureMap(
        n_features, n_frequencies, scale=1.0, distribution=SUMS, whitening=whitening
    )
    omega = single.frequencies
    few = x[: max(n // 10, 8)]  # the slow rivals are timed on fewer rows
    variants: dict[str, tuple[Callable[[], object], int]] = {
        "ours": (lambda: partial_sketch(x, single), n),
        "weighted": (lambda: partial_sketch(x, single, weights), n),
        "weighted lognormal": (lambda: partial_sketch(x, single, lognormal), n),
        "omit": (lambda: partial_sketch(x, single, nan_policy="omit"), n),
        "whitened": (lambda: partial_sketch(x, whitened), n),
        "float64": (lambda: partial_sketch(few, double), len(few)),
        SUMS: (lambda: partial_sketch(x, sums), n),
        f"{SUMS} weighted": (lambda: partial_sketch(x, sums, weights), n),
        f"{SUMS} weighted lognormal": (lambda: partial_sketch(x, sums, lognormal), n),
        f"{SUMS} omit": (lambda: partial_sketch(x, sums, nan_policy="omit"), n),
        f"{SUMS} whitened": (lambda: partial_sketch(x, white_sums), n),
        "numpy float32": (lambda: blocked_float32(x, omega), n),
        "numpy complex128": (lambda: complex_exponential(few, omega), len(few)),
    }
    rates: dict[str, list[float]] = {name: [] for name in (*variants, "floor", "floor float64")}
    for run in range(repeats + 1):
        for name, (call, n_rows) in variants.items():
            start = time.process_time()
            call()
            spent = time.process_time() - start
            if run:  # the first round compiles
                rates[name].append(n_rows * n_frequencies / max(spent, 1e-9) / 1e9)
        if run:
            turns = int(pairs / 200)
            rates["floor"].append(floor.pairs(n_features, turns=turns))
            rates["floor float64"].append(floor.pairs(n_features, "float64", turns))
    return {name: median(values) for name, values in rates.items()}


def rows(quick: bool = False) -> list[Row]:
    """The table's rows; ``quick`` is a tiny form of one case."""
    if quick:
        found = _rows(2, 16, measure(2, 16, pairs=1e4, repeats=1), variants=True)
        return found + chunk_rows(quick=True)
    out: list[Row] = []
    for case in CASES:
        pairs = CHUNK * case[1] if case == VARIANTS else PAIRS
        rates = measure(*case, pairs=pairs, repeats=7)
        out += _rows(*case, rates, variants=case == VARIANTS)
    return out + chunk_rows()


def _rows(d: int, m: int, rates: dict[str, float], variants: bool) -> list[Row]:
    ours, best = rates["ours"], rates["floor"]
    case = f"moments d={d} m={m}"
    out = [
        row(
            case,
            ours,
            UNIT,
            against="NumPy float32, blocked",
            rival=rates["numpy float32"],
            floor=best,
        ),
        row(
            case,
            ours,
            UNIT,
            against="NumPy complex128",
            rival=rates["numpy complex128"],
            floor=best,
        ),
    ]
    out += [
        row(f"{case} {SUMS}", rates[SUMS], UNIT, against=against, rival=rates[rival])
        for against, rival in (
            ("NumPy float32, blocked", "numpy float32"),
            ("NumPy complex128", "numpy complex128"),
        )
    ]
    if variants:
        ways = ("weighted", "weighted lognormal", "whitened", "omit")
        out += [
            row(f"{case} {name}", rates[name], UNIT, against="ours, plain", rival=ours, floor=best)
            for name in ways
        ]
        out += [
            row(
                f"{case} {SUMS} {way}",
                rates[f"{SUMS} {way}"],
                UNIT,
                against=SUMS,
                rival=rates[SUMS],
            )
            for way in ways
        ]
        out.append(
            row(
                f"{case} float64",
                rates["float64"],
                UNIT,
                against="NumPy complex128",
                rival=rates["numpy complex128"],
                floor=rates["floor float64"],
            )
        )
    return out
