"""Fits to private sketches, which have neither rows nor pilot rows to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dask_sketch.decoders.checks.expected_loss import expected_loss_by_noise
from dask_sketch.decoders.checks.misfit import WARNED_NATS
from dask_sketch.decoders.problem import Problem, Solution
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.warn import warn_user

# Parts of the range of a private sketch, its bounds, in which further fits begin. Where it was four
# times that of the data, two fits failed on 8 of 20 mixtures, and these on none.
_PARTS = (1 / 2, 1 / 4, 1 / 8, 1 / 16)
# Excess of a cost over its noise level: in standard deviations of chance, and as a fraction of the
# energy of the sketch. Costs of 18 mixtures that were found were 0.4 to 1.04 noise levels; those of
# poor minima had 1.8 to 380 noise levels, and 0.05 to 0.25 of the energy.
_CHANCE, _EXCESS = 3.0, 0.01
_OF_STABLE = 2.0  # losses of stable mixtures were 0.4 to 5 times those of such Gaussians
_MUCH = 1.0  # expected loss beyond which it only says that much is lost


def is_poor_minimum(problem: Problem, solution: Solution) -> bool:
    """Whether a search alone fits a private sketch worse than its noise explains.

    Parameters
    ----------
    problem
        Sketch and arguments.
    solution
        Best solution of the replicates.
    """
    searched = problem.sketch.privacy is not None and problem.start is None
    return searched and _is_unexplained(problem.sketch, solution)


def in_smaller_ranges(problem: Problem) -> Iterator[Problem]:
    """The same problem, whose fits begin nearer to the center of the feature map.

    The only range of a private sketch are its bounds, which may be far wider than the data: the
    correlation with the sketch is flat there.

    Parameters
    ----------
    problem
        Private sketch and arguments.

    Yields
    ------
    problem
        Problem with starts in a smaller range.
    """
    sketch = problem.sketch
    center = np.clip(sketch.feature_map.center, sketch.minimum, sketch.maximum)
    for part in _PARTS:
        low = center - part * (center - sketch.minimum)
        high = center + part * (sketch.maximum - center)
        yield replace(problem, sketch=replace(sketch, minimum=low, maximum=high))


def _is_unexplained(sketch: Sketch, solution: Solution) -> bool:
    excess = solution.cost - solution.noise_level
    by_chance = _CHANCE * solution.noise_level / np.sqrt(len(sketch.z))
    return bool(excess > max(by_chance, _EXCESS * float(np.vdot(sketch.z, sketch.z).real)))


def warn_of_private_fit(sketch: Sketch, solution: Solution) -> bool:
    """Warn of a fit to a private sketch that is poor, or that its noise does not determine.

    Parameters
    ----------
    sketch
        Private sketch that was decoded.
    solution
        Best solution of the replicates.

    Returns
    -------
    warned
        Whether there was a warning.
    """
    if _is_unexplained(sketch, solution):
        warn_user(
            f"the model leaves a cost of {solution.cost / solution.noise_level:.3g} noise levels "
            "of the private sketch: the search stopped at a poor minimum, or the data is not "
            "such a mixture. Decode with bounds=, the range of the data if it is known, with "
            "replicates=20, or another number of components."
        )
        return True
    scales = (solution.parameters or {}).get("scales")
    # a stable component is about as well determined as the Gaussian of its scales
    variances = solution.variances if scales is None else scales**2
    if variances is None:
        return False
    loss = expected_loss_by_noise(sketch, (solution.weights, solution.means, variances))
    loss *= 1.0 if scales is None else _OF_STABLE
    warned = loss > WARNED_NATS
    if warned:
        shown = f"about {loss:.2g} nats a sample" if loss < _MUCH else "more than a nat a sample"
        warn_user(
            f"the noise of the private sketch is expected to cost {shown} to first order, and it "
            "may cost far more where components are lost in it. Privatise with a larger epsilon, "
            "more rows or a map of fewer features, or decode fewer components."
        )
    return warned
