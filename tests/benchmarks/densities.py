"""Kernel densities of all rows from a sketch, beside scikit-learn: ``make distributions``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import KernelDensity

from dask_sketch import GaussianMixture, design, partial_sketch, sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import EmpiricalDistribution
from dask_sketch.models import random_mixture

Array = NDArray[np.float64]
BLOCK = 500_000  # rows of a stream that are drawn at once


def timed(function: Callable[[], Array]) -> tuple[Array, float]:
    """Result of a function and its CPU seconds."""
    start = time.process_time()
    found = function()
    return found, time.process_time() - start


def densities(
    mixture: GaussianMixture, n_samples: int, n_points: int, n_frequencies: int = 500
) -> list[tuple[str, ...]]:
    """Rows of the table for one number of samples.

    Both methods have the same bandwidth, the rule of Scott for a feature of mean deviation. Errors
    are roots of mean squares, relative to the mean density of the points.
    """
    x = mixture.sample(n_samples, seed=0)
    points = mixture.sample(n_points, seed=1)
    bandwidth = float(n_samples ** (-1 / (x.shape[1] + 4)) * x.std(axis=0).mean())
    density = np.exp(mixture.logpdf(points))
    unit = density.mean()

    def exact() -> Array:
        return np.exp(KernelDensity(bandwidth=bandwidth).fit(x).score_samples(points))

    feature_map = design(x[:5000], task="comparison", n_frequencies=n_frequencies)
    partial_sketch(x[:1000], feature_map, sample=100)  # compiled
    size = min(20_000, n_samples // 5)
    summed, seconds = timed(lambda: partial_sketch(x, feature_map, sample=size))
    rows = EmpiricalDistribution(summed)
    found, asked = timed(lambda: rows.kernel_density(points, bandwidth=bandwidth))
    truth, direct = timed(exact)

    def error(values: Array, other: Array) -> str:
        return f"{np.sqrt(np.mean((values - other) ** 2)) / unit:.4f}"

    stated = f"{np.sqrt(np.mean(found.standard_error**2)) / unit:.4f}"
    count = f"{n_samples:,}"
    return [
        ("scikit-learn", count, "0", "", error(truth, density), "0", f"{direct:.2f}"),
        (
            *("sketch", count, error(found.value, truth), stated, error(found.value, density)),
            *(f"{seconds:.2f}", f"{asked:.2f}"),
        ),
    ]


def streamed(
    mixture: GaussianMixture, n_samples: int, n_points: int, n_frequencies: int = 500
) -> tuple[str, ...]:
    """Row of the table for samples that are drawn as they are read, without scikit-learn."""
    spent, deviations = [0.0], mixture.sample(100_000, seed=0).std(axis=0)

    def blocks() -> Iterator[Array]:
        for number in range(-(-n_samples // BLOCK)):
            rows = min(BLOCK, n_samples - number * BLOCK)
            x, seconds = timed(lambda rows=rows, seed=number + 2: mixture.sample(rows, seed=seed))
            spent[0] += seconds
            yield x

    points = mixture.sample(n_points, seed=1)
    feature_map = design(
        mixture.sample(5000, seed=0), task="comparison", n_frequencies=n_frequencies
    )
    partial_sketch(points, feature_map, sample=100)  # compiled
    start = time.process_time()
    rows = EmpiricalDistribution(sketch(blocks(), feature_map, sample=20_000))
    passed = time.process_time() - start - spent[0]
    bandwidth = float(n_samples ** (-1 / (points.shape[1] + 4)) * deviations.mean())
    start = time.process_time()
    found = rows.kernel_density(points, bandwidth=bandwidth)
    asked = time.process_time() - start
    density = np.exp(mixture.logpdf(points))
    error = np.sqrt(np.mean((found.value - density) ** 2)) / density.mean()
    stated = np.sqrt(np.mean(found.standard_error**2)) / density.mean()
    return (
        *("sketch", f"{n_samples:,}", "", f"{stated:.4f}", f"{error:.4f}"),
        *(f"{passed:.2f}", f"{asked:.2f}"),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--streamed", type=int, nargs="*", default=[], help="sizes of ours alone")
    parser.add_argument("--points", type=int, default=500)
    chosen = parser.parse_args()
    header = (
        *("kernel density", "rows", "error to that of all rows", "standard error"),
        *("error to the density", "CPU s, pass", "CPU s, points"),
    )
    mixture = random_mixture(5, 3, seed=0)
    table = [row for n in chosen.sizes for row in densities(mixture, n, chosen.points)]
    table += [streamed(mixture, n, chosen.points) for n in chosen.streamed]
    click.echo(f"{chosen.points} points of a mixture of 5 components of 3 features")
    click.echo(text_table(table, header=header))


if __name__ == "__main__":
    main()
