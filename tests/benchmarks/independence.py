"""Level and power of the test of independence of two columns: ``make distributions``.

Rows of a unit are autoregressive; the two columns are independent, or one is a function of the
other with noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import click
import numpy as np
from numpy.typing import NDArray

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import compare_columns, split_columns

Array = NDArray[np.float64]
Rows = tuple[Array, NDArray[np.intp]]  # rows and their units
N_ROWS, N_UNITS = 50, 20
LEVELS = (0.05, 0.1)
MAP = FeatureMap(
    2, 128, covariances=np.array([[0.25, 0.25], [1.0, 1.0], [4.0, 4.0]]), distribution="gaussian"
)


def frames(
    rng: np.random.Generator,
    n_units: int = N_UNITS,
    *,
    correlation: float = 0.9,
    offset: float = 0.0,
    unequal: bool = False,
) -> Rows:
    """Autoregressive rows of two independent columns, around means of the units."""
    noise = rng.normal(size=(N_ROWS, n_units, 2))
    x = noise.copy()
    for t in range(1, N_ROWS):
        x[t] = correlation * x[t - 1] + np.sqrt(1.0 - correlation**2) * noise[t]
    x += offset * rng.normal(size=(n_units, 2))
    units = np.tile(np.arange(n_units), N_ROWS)
    x = x.reshape(-1, 2)
    if unequal:
        kept = rng.random(len(x)) < np.linspace(0.1, 1.0, n_units)[units]
        return x[kept], units[kept]
    return x, units


def skewed(rng: np.random.Generator) -> Rows:
    """Independent rows whose columns have long tails."""
    x, units = frames(rng, correlation=0.0)
    return rng.exponential(size=x.shape) ** 2, units


def parabola(rng: np.random.Generator, slope: float) -> Rows:
    """Autoregressive rows; the second column depends on the square of the first."""
    x, units = frames(rng)
    x[:, 1] += slope * (x[:, 0] ** 2 - 1.0)
    return x, units


def circle(rng: np.random.Generator) -> Rows:
    """Independent rows near a circle, whose columns are not correlated."""
    angle = 2.0 * np.pi * rng.random(N_ROWS * N_UNITS)
    x = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.5 * rng.normal(size=(len(angle), 2))
    return x, np.arange(len(x)) % N_UNITS


CASES: dict[str, Callable[[np.random.Generator], Rows]] = {
    "independent rows, 20 units": lambda rng: frames(rng, correlation=0.0),
    "AR(1) rows, 20 units": frames,
    "AR(1) rows, 8 units": lambda rng: frames(rng, 8),
    "AR(1) rows, means of units 1 apart, 20 units": lambda rng: frames(rng, offset=1.0),
    "AR(1) rows, 20 units of 5 to 50 rows": lambda rng: frames(rng, unequal=True),
    "independent rows, squares of exponential numbers": skewed,
    "dependent: 0.2 of the square, AR(1) rows": lambda rng: parabola(rng, 0.2),
    "dependent: 0.5 of the square, AR(1) rows": lambda rng: parabola(rng, 0.5),
    "dependent: circle with noise 0.5": circle,
}


def rejections(draw: Callable[[np.random.Generator], Rows], repeats: int) -> list[float]:
    """Shares of draws in which a dependence is found, at each level."""
    found = []
    for seed in range(repeats):
        x, units = draw(np.random.default_rng(seed))
        rows = [x, *split_columns(x, [0], MAP)]
        groups = [partial_sketch(one, MAP, groups=units) for one in rows]
        found.append(compare_columns(*groups, n_permutations=199, seed=seed).p_value)
    return [float(np.mean(np.array(found) <= level)) for level in LEVELS]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=400, help="draws")
    repeats = parser.parse_args().repeats
    rows = []
    for name, draw in CASES.items():
        rows.append((name, *(f"{share:.4f}" for share in rejections(draw, repeats))))
        click.echo(", ".join(rows[-1]), err=True)
    header = ("case", *(f"at {level:.0%}" for level in LEVELS))
    click.echo(text_table(rows, header=header))


if __name__ == "__main__":
    main()
