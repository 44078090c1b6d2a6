"""Level and power of the test of two groups of sketches: ``make distributions``.

Levels are shares of false alarms at a nominal 5 %, with the 99 % interval of a binomial share.
Powers are beside those of published tests on the same benchmarks, from the files of their authors:
of ten tests (MMD-FUSE, MMDAgg, deep kernels, tests by classifiers and others) the best one is
shown. The benchmarks are those of Biggs, Schrab and Gretton (2023), MMD-FUSE.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dask_sketch import FeatureMap, design, partial_sketch
from dask_sketch.diagnostics.drift import drift
from dask_sketch.display.text import text_table
from dask_sketch.distributions import compare, compare_model, compare_rows
from dask_sketch.models import random_mixture
from tests.benchmarks import two_sample_rivals
from tests.benchmarks.scale.contest import last_line

Array = NDArray[np.float64]
Sample = tuple[Array, NDArray[np.intp], Array | None]  # rows, units and weights
LEVEL = 0.05
N_UNITS = 20
FOLD = 0.3


@dataclass(frozen=True)
class Case:
    """Two sides of rows in units.

    Attributes
    ----------
    name
        Description.
    draw
        Function of a generator of random numbers.
    repeats
        Number of draws.
    published
        Power of the best of ten published tests; ``None`` for a level.
    """

    name: str
    draw: Callable[[np.random.Generator], tuple[Sample, Sample]]
    repeats: int
    published: float | None = None


def frames(
    rng: np.random.Generator,
    n_units: int,
    *,
    correlation: float = 0.9,
    offset: float = 0.0,
    shift: float = 0.0,
    unequal: bool = False,
    weighted: bool = False,
) -> Sample:
    """Autoregressive rows of two features around a mean of each unit."""
    sizes = rng.integers(20, 200, n_units) if unequal else np.full(n_units, 100)
    noise = rng.normal(size=(n_units, sizes.max(), 2))
    x = noise.copy()
    for t in range(1, x.shape[1]):
        x[:, t] = correlation * x[:, t - 1] + np.sqrt(1 - correlation**2) * noise[:, t]
    x += offset * rng.normal(size=(n_units, 1, 2)) + [shift, 0.0]
    rows = np.concatenate([one[:size] for one, size in zip(x, sizes, strict=True)])
    weights = rng.exponential(size=len(rows)) if weighted else None
    return rows, np.repeat(np.arange(n_units), sizes), weights


def dependent(rng: np.random.Generator, counts: tuple[int, int], **how: bool) -> tuple[Sample, ...]:
    """Two sides of frames of one distribution."""
    return tuple(frames(rng, count, **how) for count in counts)


def in_units(x: Array) -> Sample:
    """Independent rows, dealt to units."""
    return x, np.arange(len(x)) % N_UNITS, None


def mixtures(rng: np.random.Generator, n: int, deviation: float) -> tuple[Sample, Sample]:
    """Four normal distributions 40 apart; on one side, one of another deviation."""
    sides = []
    for width in (1.0, deviation):
        cluster = rng.integers(0, 4, n)
        means = np.array(list(itertools.product((20.0, -20.0), repeat=2)))
        widths = np.where(np.arange(4) == 3, width, 1.0)
        sides.append(in_units(means[cluster] + rng.normal(size=(n, 2)) * widths[cluster][:, None]))
    return sides[0], sides[1]


def _bump(x: Array) -> Array:
    """Smooth function on (-1, 0): a bump, then its negative."""
    out = np.zeros_like(x)
    for low, centre, sign in ((-1.0, 3.0, 1.0), (-0.5, 1.0, -1.0)):
        inside = (x > low) & (x < low + 0.5)
        out[inside] = sign * np.exp(-1.0 / (1.0 - (4.0 * x[inside] + centre) ** 2))
    return out


def perturbed_uniforms(
    rng: np.random.Generator, n: int, d: int, scale: float
) -> tuple[Sample, Sample]:
    """Uniform rows in the unit cube, and rows of a density with two bumps in each feature."""
    signs = rng.choice([-1.0, 1.0], 2**d)
    found = np.empty((0, d))
    while len(found) < n:
        x = rng.uniform(size=(2 * n, d))
        density = np.ones(len(x))
        for sign, place in zip(signs, itertools.product((1, 2), repeat=d), strict=True):
            density += scale * np.exp(d) * sign * np.prod(_bump(2.0 * x - place), axis=1)
        kept = rng.uniform(0.0, 1.0 + scale, len(x)) <= density
        found = np.concatenate([found, x[kept]])
    return in_units(found[:n]), in_units(rng.uniform(size=(n, d)))


def levels(repeats: int) -> list[Case]:
    """Both sides have one distribution."""
    kinds = {
        "independent rows, 20 and 20 units": partial(dependent, counts=(20, 20), correlation=0.0),
        "AR(1) rows, 20 and 20": partial(dependent, counts=(20, 20)),
        "AR(1) rows, means of units 0.3 apart, 20 and 20": partial(
            dependent, counts=(20, 20), offset=0.3
        ),
        "the same, 8 and 8": partial(dependent, counts=(8, 8), offset=0.3),
        "the same, 4 and 4": partial(dependent, counts=(4, 4), offset=0.3),
        "the same, 6 and 30": partial(dependent, counts=(6, 30), offset=0.3),
        "the same, 20 and 20 of 20 to 200 rows": partial(
            dependent, counts=(20, 20), offset=0.3, unequal=True
        ),
        "the same, weighted rows": partial(dependent, counts=(20, 20), offset=0.3, weighted=True),
    }
    return [Case(name, draw, repeats) for name, draw in kinds.items()]


def few_units(repeats: int) -> list[tuple[str, float, float, float]]:
    """Shares of rejections by both methods where the sides have few units.

    Returns
    -------
    rows
        Name of each case, and the shares for permutations, at 5 %, and for ``method="cross"``, at
        1 and 5 %. Both sides have one distribution in the first cases.
    """
    draws: dict[str, Callable[[np.random.Generator], tuple[Sample, ...]]] = {
        f"AR(1) rows, means of units 0.3 apart, {a} and {b}": partial(
            dependent, counts=(a, b), offset=0.3
        )
        for a, b in ((3, 3), (4, 4), (6, 6), (3, 8), (10, 10))
    }
    draws["the same, 5 and 5 of 20 to 200 rows"] = partial(
        dependent, counts=(5, 5), offset=0.3, unequal=True
    )
    draws["independent rows, 4 and 4"] = partial(dependent, counts=(4, 4), correlation=0.0)
    n_levels = len(draws)
    for n in (3, 4, 6, 10):
        draws[f"AR(1) rows, mean 1 larger, {n} and {n}"] = partial(shifted, n_units=n, shift=1.0)
    rows = []
    for number, (name, draw) in enumerate(draws.items()):
        pilot = np.concatenate([x for x, _, _ in draw(np.random.default_rng(10**6))])
        feature_map = design(pilot, n_frequencies=64, task="comparison")
        found = []
        for seed in range(repeats if number < n_levels else repeats // 5):
            groups = [
                partial_sketch(x, feature_map, weights, groups=units)
                for x, units, weights in draw(np.random.default_rng(seed))
            ]
            # at this level no number of units is too small
            permuted = compare(*groups, level=0.2, n_permutations=299, seed=seed).p_value
            crossed = compare(*groups, method="cross", seed=seed).p_value
            found.append((permuted <= LEVEL, crossed <= 0.01, crossed <= LEVEL))
        rows.append((name, *(float(share) for share in np.mean(found, axis=0))))
        click.echo(rows[-1], err=True)
    return rows


def shifted(rng: np.random.Generator, n_units: int, shift: float) -> tuple[Sample, Sample]:
    """Two sides of frames, one of them with a larger mean."""
    return frames(rng, n_units, offset=0.1), frames(rng, n_units, offset=0.1, shift=shift)


def powers(repeats: int) -> list[Case]:
    """Benchmarks of two-sample tests, with the power of the best published one."""
    clusters = {500: 0.22, 1000: 0.42, 1500: 0.665, 2000: 0.81, 3000: 0.99}
    cases = [
        Case(f"mixture, {n} rows a side", partial(mixtures, n=n, deviation=1.3), repeats, best)
        for n, best in clusters.items()
    ]
    for d, scale, best_of in (
        (1, 0.2, {500: 0.24, 1500: 0.785, 3000: 0.99}),
        (2, 0.4, {500: 0.165, 1500: 0.69, 3000: 0.99}),
    ):
        cases += [
            Case(
                f"perturbed uniforms, d={d}, {n} rows a side",
                partial(perturbed_uniforms, n=n, d=d, scale=scale),
                repeats,
                best,
            )
            for n, best in best_of.items()
        ]
    return cases


def rejections(case: Case, fold: float | None = None) -> tuple[float, float]:
    """Shares of draws in which the test, and a noise of independent rows, find a difference."""
    ours, independent = [], []
    for seed in range(case.repeats):
        sides = case.draw(np.random.default_rng(seed))
        feature_map = map_of(sides, seed)
        groups = [
            partial_sketch(x, feature_map, weights, groups=units) for x, units, weights in sides
        ]
        ours.append(compare(*groups, fold=fold, n_permutations=299, seed=seed).p_value <= LEVEL)
        found = drift(*(group.merged() for group in groups))
        independent.append(found.deviations > stats.norm.isf(LEVEL))
    return float(np.mean(ours)), float(np.mean(independent))


def rival_rejections(case: Case, python: Path) -> dict[str, str]:
    """Shares of draws in which each test of other packages finds a difference, or why not.

    Parameters
    ----------
    case
        Case of rows without weights.
    python
        Interpreter of their environment.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        draws = Path(folder) / "draws.npz"
        sides = [case.draw(np.random.default_rng(seed)) for seed in range(case.repeats)]
        names = (f"{name}{seed}" for seed in range(case.repeats) for name in "xy")
        rows = (rows for both in sides for rows, _, _ in both)
        np.savez(draws, **dict(zip(names, rows, strict=True)))
        for name in two_sample_rivals.RIVALS:
            # -P: the folder of the script is no place to import from
            command = [python, "-P", two_sample_rivals.__file__, "draws", name, draws]
            given = list(map(str, command))
            done = subprocess.run(given, capture_output=True, text=True, check=False)
            if done.returncode:
                found[name] = last_line(done.stderr)
                continue
            p = json.loads(done.stdout.splitlines()[-1])["p_values"]
            found[name] = f"{np.mean(np.array(p) <= LEVEL):.3f}"
    return found


def map_of(sides: tuple[Sample, Sample], seed: int) -> FeatureMap:
    """Feature map for a comparison, from rows of both sides."""
    rows = np.concatenate([x for x, _, _ in sides])
    return design(rows, task="comparison", seed=seed)


def rows_rejections(repeats: int) -> tuple[float, float]:
    """False alarms of the tests of independent rows: of two sketches, and of one and a mixture."""
    model, pairs, models = random_mixture(3, 2, seed=0), [], []
    for seed in range(repeats):
        x = model.sample(1500, seed=seed)
        feature_map = design(x, task="comparison", n_frequencies=128, seed=seed)
        first, second = (
            partial_sketch(part, feature_map, sample=300) for part in (x[:500], x[500:])
        )
        pairs.append(compare_rows(first, second, n_draws=299, seed=seed).p_value <= LEVEL)
        models.append(compare_model(second, model, n_draws=299, seed=seed).p_value <= LEVEL)
    return float(np.mean(pairs)), float(np.mean(models))


def features_found(repeats: int, shift: float) -> float:
    """Share of draws in which the one of 20 features that is shifted comes first."""
    found = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        x = [rng.normal(size=(4000, 20)) for _ in range(2)]
        shifted = int(rng.integers(20))
        x[1][:, shifted] += shift
        sides = in_units(x[0]), in_units(x[1])
        feature_map = map_of(sides, seed)
        groups = [partial_sketch(rows, feature_map, groups=units) for rows, units, _ in sides]
        first = compare(*groups, seed=seed).features[0]
        found.append(first.name == f"feature {shifted}" and first.p_value <= LEVEL)
    return float(np.mean(found))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=1000, help="draws for a level")
    parser.add_argument("--powers", type=int, default=200, help="draws for a power")
    parser.add_argument("--rivals", type=Path, help="interpreter of the rivals, for theirs alone")
    chosen = parser.parse_args()
    if chosen.rivals is not None:
        _beside_rivals(chosen.powers, chosen.rivals)
        return
    low, high = stats.binom.interval(0.99, chosen.repeats, LEVEL)
    click.echo(
        f"level at a nominal {LEVEL:.0%}, {chosen.repeats} draws; with probability 99 % between "
        f"{low / chosen.repeats:.3f} and {high / chosen.repeats:.3f}"
    )
    rows = []
    for case in levels(chosen.repeats):
        start = time.process_time()
        share, independent = rejections(case)
        spent = (time.process_time() - start) / case.repeats
        rows.append((case.name, f"{share:.3f}", f"{independent:.3f}", f"{spent:.3f}"))
    header = ("case", "level", "as if rows were independent", "CPU s a test")
    click.echo(text_table(rows, header=header))
    found = few_units(chosen.repeats)
    rows = [(name, *(f"{share:.3f}" for share in shares)) for name, *shares in found]
    header = ("few units", "permutations, 5 %", "cross, 1 %", "cross, 5 %")
    click.echo(text_table(rows, header=header))
    pairs, models = rows_rejections(chosen.repeats)
    click.echo(f"level for 500 and 1000 independent rows: {pairs:.3f}; for a mixture: {models:.3f}")
    rows = []
    for case in powers(chosen.powers):
        share, _ = rejections(case)
        rows.append((case.name, f"{share:.3f}", f"{case.published:.3f}"))
        click.echo(", ".join(rows[-1]), err=True)
    click.echo(f"\npower at a level of {LEVEL:.0%}, {N_UNITS} units a side, {chosen.powers} draws")
    click.echo(text_table(rows, header=("case", "ours", "best of ten published")))
    chosen_cases = [levels(chosen.repeats)[2], *(powers(chosen.powers)[i] for i in (1, 6, 9))]
    rows = [(case.name, f"{rejections(case, FOLD)[0]:.3f}") for case in chosen_cases]
    click.echo(text_table(rows, header=("case", f"statistic chosen on {FOLD:.0%} of the units")))
    for shift in (0.1, 0.15):
        found = features_found(20, shift)
        click.echo(f"\nfeature of 20, shifted by {shift:g}, found: {found:.0%} of 20 draws")


def _beside_rivals(repeats: int, python: Path) -> None:
    """Print a level and two powers beside those of tests of other packages."""
    ar1, mixture, uniform = levels(repeats)[2], powers(repeats)[1], powers(repeats)[6]
    rows = []
    for case in (ar1, mixture, uniform):
        found = {"dask-sketch": f"{rejections(case)[0]:.3f}"} | rival_rejections(case, python)
        rows += [(case.name, name, share) for name, share in found.items()]
        click.echo(f"{case.name}: {found}", err=True)
    click.echo(text_table(rows, header=("case", "test", f"rejects at {LEVEL:.0%}")))


if __name__ == "__main__":
    main()
