"""Compare the data that a run read, and its models, with the limits of the job file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dask_sketch.decoders.checks.misfit import loss_to_rival
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.choices import uses_matrices

_MIN_COST = 10.0  # noise levels
_GROWTH_OF_COST = 10.0  # growth of the cost between two runs from which there is a warning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dask_sketch.jobs.job_keys import LimitsTable
    from dask_sketch.jobs.ledger.sums import Sums
    from dask_sketch.models.model import Model


def data_breaches(
    limits: LimitsTable,
    n_partitions: int,
    read: Sums | None,
    others: Sums | None = None,
    names: Sequence[str] | None = None,
) -> Iterator[str]:
    """Describe the limits that the data of a run exceeds.

    Parameters
    ----------
    limits
        Limits of the job file.
    n_partitions
        Number of partitions that the run read.
    read
        Sketch of the samples that the run read; ``None`` if it read no partition.
    others
        Sketch of all other samples, which replace the pilot rows if the feature map has no record
        of them; ``None`` if there are no other samples.
    names
        Names of the features.

    Yields
    ------
    text
        Limit, value and remedy.
    """
    count, omitted = (0, 0) if read is None else (read.count, read.omitted)
    fraction = omitted / max(count + omitted, 1)
    if fraction > limits.omitted:
        yield (
            f"limits.omitted = {limits.omitted:g}: {omitted:,} of the {count + omitted:,} rows "
            f"that were read ({100 * fraction:.3g} %) are not finite, and were omitted. Check the "
            "sources."
        )
    for key, noun, value in (("rows", "rows", count), ("partitions", "partitions", n_partitions)):
        expected = getattr(limits, key)
        if expected is not None and not expected[0] <= value <= expected[1]:
            yield (
                f"limits.{key} = {list(expected)}: the run read {value:,} {noun}. Check whether "
                "the sources are complete."
            )
    if limits.range is not None and isinstance(read, Sketch) and read.count:
        yield from _outside(limits.range, read, others, names)


def _outside(
    limit: float, read: Sketch, others: Sums | None, names: Sequence[str] | None
) -> Iterator[str]:
    """Features with values too far from the pilot rows, or from the other samples."""
    pilot = read.feature_map.pilot
    mean: NDArray[np.float64]
    if pilot is not None and pilot.mixture is not None:
        owner = "the pilot rows"
        mean, variance = pilot.mixture.weights @ pilot.mixture.means, pilot.variance
    elif others is not None and others.count > 1:
        owner, mean, variance = "the other samples", others.mean, others.variance
    else:
        return
    width = limit * np.sqrt(variance)
    for k in np.flatnonzero((read.minimum < mean - width) | (read.maximum > mean + width)):
        name = names[int(k)] if names else f"feature {k}"
        yield (
            f"limits.range = {limit:g}: {name} is {read.minimum[k]:.4g} to {read.maximum[k]:.4g}, "
            f"and {mean[k]:.4g} ± {variance[k] ** 0.5:.3g} in {owner}. Check its source and unit."
        )


def model_breaches(
    limits: LimitsTable, name: str, model: Model | PrincipalComponents, sketch: Sums
) -> Iterator[str]:
    """Describe the limits that a decoded model exceeds.

    Parameters
    ----------
    limits
        Limits of the job file.
    name
        Name of the model.
    model
        Decoded model; principal components have no limits.
    sketch
        Sketch that the model was decoded from.

    Yields
    ------
    text
        Limit, value and remedy.
    """
    if isinstance(model, PrincipalComponents):
        return
    decoding = model.decoding
    if limits.cost is not None and decoding is not None and decoding.noise_level > 0:
        cost = decoding.cost / decoding.noise_level
        if cost > limits.cost:
            yield (
                f"limits.cost = {limits.cost:g}: {name} leaves a cost of {cost:.3g} noise levels. "
                "Decode more components or more replicates, or check the data."
            )
    if limits.nats is None or not isinstance(sketch, Sketch):
        return
    if isinstance(model, GaussianMixture):
        has_matrices = uses_matrices(model.covariance_type)
        shapes = model.covariance_matrices if has_matrices else model.variances
        loss = loss_to_rival(sketch, model.weights, model.means, shapes)
        if loss is not None and loss[0] > limits.nats:
            yield (
                f"limits.nats = {limits.nats:g}: {name} is {loss[0]:.3g} nats a sample below "
                f"{loss[1]}. Decode with more replicates or another method, or check the data."
            )


def growth_of_cost(name: str, model: Model, earlier: Model) -> Iterator[str]:
    """Describe a cost that is far above the cost of the last model.

    Parameters
    ----------
    name
        Name of the model.
    model, earlier
        Decoded model, and the model of the last run.

    Yields
    ------
    text
        Costs and remedy.
    """
    costs = [
        decoding.cost / decoding.noise_level
        if decoding is not None and decoding.noise_level > 0
        else 0.0
        for decoding in (model.decoding, earlier.decoding)
    ]
    limit = max(_MIN_COST, _GROWTH_OF_COST * costs[1])
    if costs[1] > 0.0 and costs[0] > limit:
        yield (
            f"{name} leaves a cost of {costs[0]:.3g} noise levels, and the last one left "
            f"{costs[1]:.3g}: it does not fit the new data as well. Check the newest data, such as "
            f"its units. limits.cost = {limit:.2g} in the job file refuses such a model."
        )
