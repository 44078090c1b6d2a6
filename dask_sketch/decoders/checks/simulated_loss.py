"""Loss of a mixture by the noise of its sketch, by simulation, where equations are too large."""

from __future__ import annotations

from dataclasses import replace

from dask_sketch.decoders.checks.misfit import WARNED_NATS, is_large_cost
from dask_sketch.decoders.descent import Fit, descend_fully
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.decoders.problem import Problem
from dask_sketch.display.text import counted
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.validation.threads import Threads
from dask_sketch.validation.warn import warn_user

_MAX_ROWS = 100_000  # simulated rows; the loss is inversely proportional to their number
_HELD_OUT = 20_000  # simulated rows whose log-likelihoods are compared
# Ratio of costs that is no chance: at 64 clusters of 50 features, four fits that began at the truth
# had 0.90 to 1.08 times the cost of their simulation, and fits without the rare clusters, or with
# misplaced ones, 1.25, 1.47 and 1.98 times.
_MORE = 1.2


def warn_of_noise(problem: Problem, objective: Objective, fit: Fit, threads: Threads) -> None:
    """Warn of a fit that noise does not explain, or that noise changes much.

    For sketches without rows, of maps without data, so that nothing else shows the loss. Costs that
    are warned of in any case are left out.

    Parameters
    ----------
    problem
        Sketch and arguments.
    objective
        Objective of the problem.
    fit
        Minimum that a search found.
    threads
        Threads that work on blocks of frequencies.
    """
    if not objective.space.family.diagonal:
        return
    title = f"n_components={len(fit.weights)}"
    remedy = (
        "Sketch with random rows (sample=True), or with a feature map of design() or of more "
        "frequencies."
    )
    energy = float(sum(part @ part for part in objective.target))
    if is_large_cost(fit.cost, objective.unit, energy):
        return
    levels = fit.cost / objective.unit
    loss, explained = simulated_loss(problem, objective, fit, threads)
    if levels > _MORE * explained:
        warn_user(
            f"{title}: the cost is {levels:.2g} noise levels, and that of a simulation of such a "
            f"mixture is {explained:.2g}: components are missing or misplaced, or the data is not "
            f"such a mixture. {remedy}"
        )
    elif loss > WARNED_NATS:
        rows = counted(round(objective.effective_count), "sample")
        warn_user(
            f"{title}: about {loss:.2g} nats a sample are lost by the noise of a sketch of {rows}, "
            f"by a simulation of such a mixture: {objective.n_frequencies:,} frequencies "
            f"determine its means and variances poorly. {remedy}"
        )


def simulated_loss(
    problem: Problem, objective: Objective, fit: Fit, threads: Threads
) -> tuple[float, float]:
    """Loss and cost of a fit to a sketch of rows of the fitted mixture.

    The fit begins at the mixture, so that the search has no part in them.

    Parameters
    ----------
    problem, objective, fit, threads
        Arguments of :func:`warn_of_noise`.

    Returns
    -------
    loss
        Loss of log-likelihood to the mixture, in nats a sample.
    cost
        Cost in noise levels.
    """
    means, variances = objective.space.to_data_units(fit.theta)
    mixture = GaussianMixture(fit.weights / fit.weights.sum(), means, variances)
    n_rows = int(min(max(objective.effective_count, 1.0), _MAX_ROWS))
    rows = mixture.sample(n_rows, seed=problem.seed)
    again = replace(problem, sketch=partial_sketch(rows, problem.sketch.feature_map))
    simulated = again.objective(threads)
    theta = simulated.space.clip(simulated.space.from_data_units(means, variances))
    found = descend_fully(simulated, theta, mixture.weights)
    refit = GaussianMixture(
        found.weights / found.weights.sum(), *simulated.space.to_data_units(found.theta)
    )
    heldout = mixture.sample(_HELD_OUT, seed=problem.seed + 1)
    loss = mixture.score(heldout) - refit.score(heldout)
    return float(loss * n_rows / objective.effective_count), found.cost / simulated.unit
