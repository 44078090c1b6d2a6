"""Accuracy of the whole path on the synthetic mixtures of the paper (sections 5.1 and 5.2)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from dask_sketch import decode, design, sketch
from dask_sketch.models import random_mixture, symmetric_kl


@dataclass(frozen=True)
class Case:
    """One line of the table; ``paper`` is its Table 2, learned scale, adapted radius."""

    n_features: int
    n_components: int
    paper: float

    @property
    def n_frequencies(self) -> int:
        """``10 K (2 d + 1)``, as in that table."""
        return 10 * self.n_components * (2 * self.n_features + 1)


CASES = (Case(2, 3, -9.20), Case(20, 5, -6.32))


@dataclass(frozen=True)
class Row:
    """Natural logarithms of the symmetric KL divergence over the seeds, and mean seconds."""

    case: Case
    method: str
    logs: tuple[float, ...]
    seconds: float


def measure(case: Case, n_seeds: int = 10, n_samples: int = 300_000) -> list[Row]:
    """Design, sketch and decode by CL-OMPR and by splitting, from the same sketches."""
    logs: dict[str, list[float]] = {"cl-ompr": [], "splitting": []}
    seconds: dict[str, list[float]] = {"cl-ompr": [], "splitting": []}
    for seed in range(n_seeds):
        truth = random_mixture(case.n_components, case.n_features, seed=seed)
        x = truth.sample(n_samples, seed=seed + 1000)
        summary = sketch(x, design(x, n_frequencies=case.n_frequencies, seed=seed))
        for method in logs:
            start = time.process_time()
            model = decode(summary, case.n_components, method=method, seed=seed)
            seconds[method].append(time.process_time() - start)
            logs[method].append(float(np.log(symmetric_kl(truth, model, seed=seed))))
    return [Row(case, method, tuple(logs[method]), fmean(seconds[method])) for method in logs]


def table(rows: list[Row]) -> str:
    """The figures as text."""
    lines = [
        "accuracy, ln of the symmetric KL divergence to the truth (lower is better)",
        f"{'d':>4} {'K':>3} {'m':>6} {'decoder':>10} {'mean':>7} {'worst':>7} {'paper':>7} "
        f"{'CPU s a fit':>12}",
    ]
    for row in rows:
        case = row.case
        paper = f"{case.paper:.2f}" if row.method == "cl-ompr" else ""
        lines.append(
            f"{case.n_features:>4} {case.n_components:>3} {case.n_frequencies:>6} "
            f"{row.method:>10} {fmean(row.logs):>7.2f} {max(row.logs):>7.2f} {paper:>7} "
            f"{row.seconds:>12.2f}"
        )
    return "\n".join(lines)
