"""Level and power of the test of many groups of sketches: ``make distributions``.

Rows of a unit are autoregressive, around a mean of the unit; where groups differ, their means do.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import click
import numpy as np
from numpy.typing import NDArray

from dask_sketch import FeatureMap, SketchGroup, design, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import compare_all, compare_each

Codes = NDArray[np.intp]
Case = tuple[SketchGroup, Codes, Codes | None]  # units, their groups and their strata
LEVEL, N_PERMUTATIONS = 0.05, 199
MAP = FeatureMap(2, 64, scale=1.0)


def units_of(
    rng: np.random.Generator,
    by: Codes,
    n_rows: Codes | int,
    *,
    apart: float = 0.0,
    weights: bool = False,
    feature_map: FeatureMap = MAP,
    strata: Codes | None = None,
) -> Case:
    """Units of AR(1) rows; means of groups have the standard deviation ``apart``."""
    counts = np.broadcast_to(n_rows, by.shape)
    longest = int(counts.max())
    noise = rng.normal(size=(longest, len(by), 2))
    x = noise.copy()
    for t in range(1, longest):
        x[t] = 0.9 * x[t - 1] + np.sqrt(1.0 - 0.81) * noise[t]
    x += 0.2 * rng.normal(size=(len(by), 2)) + apart * rng.normal(size=(by.max() + 1, 2))[by]
    if strata is not None:
        x += strata[:, None]
    kept = np.arange(longest)[:, None] < counts
    unit = np.broadcast_to(np.arange(len(by)), kept.shape)[kept]
    scale = rng.uniform(0.5, 2.0, len(unit)) * 10.0 ** (by[unit] - 3) if weights else None
    return partial_sketch(x[kept], feature_map, scale, groups=unit), by, strata


SIX = np.repeat(np.arange(6), 5)
UNEQUAL = np.repeat(np.arange(6), [2, 3, 4, 6, 8, 12])
DESIGNED = design(
    np.random.default_rng(9).normal(size=(2000, 2)), task="comparison", n_frequencies=128
)
LEVELS: dict[str, Callable[[np.random.Generator], Case]] = {
    "6 groups of 5 units of 50 rows": lambda rng: units_of(rng, SIX, 50),
    "the same, map for comparisons": lambda rng: units_of(rng, SIX, 50, feature_map=DESIGNED),
    "the same, weights of 1 to 10^5 by group": lambda rng: units_of(rng, SIX, 50, weights=True),
    "the same, in 3 strata 1 apart": lambda rng: units_of(
        rng, np.tile(np.arange(6), 6), 50, strata=np.arange(36) // 12
    ),
    "6 groups of 2 to 12 units of 10 to 160 rows": lambda rng: units_of(
        rng, UNEQUAL, rng.integers(10, 161, len(UNEQUAL))
    ),
    "40 groups of 2 units of 50 rows": lambda rng: units_of(rng, np.arange(80) % 40, 50),
    "6 groups of 5 units, of 20 to 160 rows by group": lambda rng: units_of(
        rng, SIX, (20 * 8 ** (SIX / 5)).astype(int)
    ),
    "2 groups of 3 units of 20 rows, 2 of 12 of 160": lambda rng: units_of(
        rng, np.repeat(np.arange(4), [3, 3, 12, 12]), np.repeat([20, 160], [6, 24])
    ),
    "6 groups of 5 units, of 10 to 320 rows by group": lambda rng: units_of(rng, SIX, 10 * 2**SIX),
}
TWELVE = np.arange(60) % 12


def rejections(draw: Callable[[np.random.Generator], Case], repeats: int) -> float:
    """Share of draws in which a difference is found."""
    found = 0
    for seed in range(repeats):
        units, by, strata = draw(np.random.default_rng(seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unlike units
            test = compare_all(units, by, strata=strata, n_permutations=N_PERMUTATIONS, seed=seed)
        found += test.p_value <= LEVEL
    return found / repeats


def found_by_each(apart: float, repeats: int) -> float:
    """Share of draws in which single tests find any group, of a false discovery rate of 5 %."""
    found = 0
    for seed in range(repeats):
        units, by, _ = units_of(np.random.default_rng(seed), TWELVE, 50, apart=apart)
        found += bool(compare_each(units, by, rate=LEVEL, method="bh", seed=seed).different)
    return found / repeats


def coverage(by: Codes, shifts: NDArray[np.float64], repeats: int) -> float:
    """Share of draws in which the interval of 95 % contains the mean discrepancy.

    Parameters
    ----------
    by
        Group of each unit of 50 independent rows.
    shifts
        Shift of the second feature in each group, beside means of units 0.3 apart.
    repeats
        Number of draws.
    """
    means, spread = np.column_stack([np.zeros(len(shifts)), shifts]), 1.0 + 0.3**2
    envelope = np.exp(-0.5 * spread * np.sum(MAP.frequencies**2, axis=0))
    transforms, part = np.exp(-1j * means @ MAP.frequencies) * envelope, np.bincount(by) / len(by)
    squares = np.mean(np.abs(transforms - part @ transforms) ** 2, axis=1)
    exact, unit, found = float(np.sqrt(part @ squares)), np.repeat(np.arange(len(by)), 50), 0
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(len(unit), 2)) + 0.3 * rng.normal(size=(len(by), 2))[unit]
        x[:, 1] += shifts[by[unit]]
        units = partial_sketch(x, MAP, groups=unit)
        low, high = compare_all(units, by, n_permutations=19, seed=seed).interval
        found += low <= exact <= high
    return found / repeats


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=400, help="draws of the levels")
    repeats = parser.parse_args().repeats
    rows = []
    for name, draw in LEVELS.items():
        rows.append((name, f"{rejections(draw, repeats):.4f}"))
        click.echo(", ".join(rows[-1]), err=True)
    click.echo(text_table(rows, header=("one distribution", "level 5 %")))
    powers = []
    for apart in (0.1, 0.2, 0.3):
        share = rejections(
            lambda rng, apart=apart: units_of(rng, TWELVE, 50, apart=apart), repeats // 4
        )
        powers.append((f"{apart:g}", f"{share:.2f}", f"{found_by_each(apart, repeats // 4):.2f}"))
    click.echo(text_table(powers, header=("deviation of groups", "compare_all", "compare_each")))
    pattern, covered = np.array([1.0, -1.0, 0.5, 0.0, -0.5, 0.0]), []
    for name, by, shifts in (
        *((f"6 groups of 5 units, {apart:g}", SIX, apart * pattern) for apart in (0.0, 0.1, 0.3)),
        (
            "40 groups of 2 units",
            np.arange(80) % 40,
            0.3 * np.random.default_rng(1).normal(size=40),
        ),
        ("3 groups of 20 units", np.arange(60) % 3, np.array([0.0, 0.3, -0.3])),
    ):
        covered.append((name, f"{coverage(by, shifts, repeats):.3f}"))
    click.echo(text_table(covered, header=("independent rows, shifts of means", "covered")))


if __name__ == "__main__":
    main()
