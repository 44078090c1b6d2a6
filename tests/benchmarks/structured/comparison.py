"""One case: every candidate at the baseline's size, and at its CPU time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_sketch import decode, design, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.models import random_mixture
from tests.benchmarks.paper.mixtures import ln_kl
from tests.benchmarks.paper.records import timed
from tests.benchmarks.paper.tables import number
from tests.benchmarks.structured.candidates import BASELINE, CANDIDATES, Candidate

_MOST = 9000  # frequencies: beyond, decoding takes minutes
_TRANSFORMS = 64  # features from which transforms are looked at


@dataclass(frozen=True)
class Case:
    """Mixtures of section 5.1: features, components, frequencies of the baseline."""

    n_features: int
    n_components: int
    n_frequencies: int
    n_samples: int = 300_000

    def __str__(self) -> str:
        return (
            f"d={self.n_features}, K={self.n_components}, m={self.n_frequencies}, "
            f"n={self.n_samples}"
        )


CASES = (Case(10, 5, 525), Case(20, 5, 2050), Case(10, 20, 2100), Case(64, 2, 1290))

HEADER = (
    *("sketch", "G pairs/s", "ln KL, LS", "refined", "m at equal CPU", "ln KL, LS", "refined"),
    "decode, CPU s",
)


def compare(case: Case, n_draws: int) -> str:
    """A table, with a line for each candidate."""
    used = [c for c in CANDIDATES if case.n_features >= _TRANSFORMS or "Hadamard" not in c.name]
    base = BASELINE.rate(case.n_features, case.n_frequencies)
    cells = []
    for candidate in used:
        rate = candidate.rate(case.n_features, case.n_frequencies)
        m = min(int(case.n_frequencies * rate / base), _MOST)
        same = accuracy(case, candidate, case.n_frequencies, n_draws)
        equal = same if candidate is BASELINE else accuracy(case, candidate, m, n_draws)
        size = case.n_frequencies if candidate is BASELINE else m
        cells.append(
            [candidate.name, number(rate), *map(number, same[:2]), str(size), *map(number, equal)]
        )
    return f"{case}; {n_draws} draws\n\n{text_table(cells, header=HEADER)}"


def accuracy(
    case: Case, candidate: Candidate, n_frequencies: int, n_draws: int
) -> tuple[float, float, float]:
    """Mean ln KL by least squares and refined, and CPU seconds of the refined fit."""
    found = []
    for seed in range(n_draws):
        truth = random_mixture(case.n_components, case.n_features, seed=seed)
        x = truth.sample(case.n_samples, seed=seed + 1000)
        like = design(
            x, n_frequencies=case.n_frequencies, n_components=case.n_components, seed=seed
        )
        sketch = partial_sketch(x, candidate.feature_map(like, n_frequencies, seed))
        plain = decode(sketch, case.n_components, seed=seed)
        refined, seconds = timed(
            lambda sketch=sketch, seed=seed: decode(
                sketch, case.n_components, seed=seed, refine="efficient"
            )
        )
        found.append((ln_kl(truth, plain, seed), ln_kl(truth, refined, seed), seconds))
    plain_mean, refined_mean, seconds_mean = np.mean(found, axis=0)
    return float(plain_mean), float(refined_mean), float(seconds_mean)
