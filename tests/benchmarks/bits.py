"""Mixtures from phases of few bits, beside plain sketches: ``python -m tests.benchmarks.bits``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import click
import numpy as np

from dask_sketch import GaussianMixture, Sketch, decode, design, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.models import random_mixture
from dask_sketch.sketching.quantized_phases import quantize_phases


def errors(
    truth: GaussianMixture, draws: int, n_samples: int, make: Callable[..., Sketch]
) -> tuple[float, float, float]:
    """Errors of the means, in standard deviations, and the loss of likelihood.

    Returns
    -------
    found, ratio, loss
        Root mean square error; that of the errors over their standard errors; mean loss on new rows
        beside the true mixture, in thousandths of a nat.
    """
    found, ratios, losses = [], [], []
    new = truth.sample(50_000, seed=10_000)
    deviations = np.sqrt(truth.covariances)
    for seed in range(draws):
        x = truth.sample(n_samples, seed=seed)
        feature_map = design(x, n_components=len(truth.weights), seed=seed)
        model = decode(
            make(x, feature_map, seed), len(truth.weights), refine="efficient", seed=seed
        )
        distances = np.square(model.means[:, None] - truth.means).sum(axis=2)
        nearest = distances.argmin(axis=0)
        assert model.stderr is not None
        away = (model.means[nearest] - truth.means) / deviations
        found.append(np.mean(away**2))
        ratios.append(np.mean((away * deviations / model.stderr.means[nearest]) ** 2))
        losses.append(1000 * (truth.score(new) - model.score(new)))
    return float(np.sqrt(np.mean(found))), float(np.sqrt(np.mean(ratios))), float(np.mean(losses))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--samples", type=int, default=10_000)
    options = parser.parse_args()
    mixture = random_mixture(5, 4, seed=3)
    weights, covariances = mixture.weights, mixture.covariances
    makers: list[tuple[str, Callable[..., Sketch]]] = [
        ("plain sketch", lambda x, feature_map, seed: partial_sketch(x, feature_map))
    ]
    for bits in (1, 2, 3, 4):
        makers.append(
            (
                str(bits),
                lambda x, feature_map, seed, bits=bits: quantize_phases(
                    x, feature_map, bits=bits, seed=seed
                ).sketch(),
            )
        )
    rows = []
    for stretch in (1.0, 2.0):  # overlapping, and apart
        truth = GaussianMixture(weights, stretch * mixture.means, covariances)
        for name, make in makers:
            values = errors(truth, options.draws, options.samples, make)
            rows.append((stretch, name, *(f"{value:.4f}" for value in values)))
    header = ("distances", "bits", "error of means", "errors / stated", "loss, 1e-3 nats")
    click.echo(text_table(rows, header))


if __name__ == "__main__":
    main()
