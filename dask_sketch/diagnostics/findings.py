"""What measurements of a fit mean, and the way out, in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dask_sketch.diagnostics.fit import FitDiagnostics
    from dask_sketch.diagnostics.linearised import Linearised

# Standard deviations that noise does not reach: the largest of 320 good fits had 4.3.
_FAR = 5.0
# Of the cost, and in noise levels: a least-squares step that takes more is not the end of a
# descent. From estimates that are no least squares, the truth itself, it takes one on average.
_UNFINISHED = 0.5, 3.0
# Standard errors up to which a weight is not told from zero.
_FROM_ZERO = 2.0
# Expected divergence in that of maximum likelihood. Least squares at the paper's sizes has 1.3 to
# 3.3; with features unlike by a factor of 3 (Fig. 3) 3 to 4, by 4 it is 4 to 8, by 5 it is 7 to 15.
_LOST = 5.0
# Times the least loss of a feature: those above are named, unless all are lost.
_UNLIKE = 2.0


def findings(fit: FitDiagnostics) -> dict[str, str]:
    """Name and sentence of everything that is not as in a good fit."""
    found: dict[str, str] = {}
    if fit.linearised is not None:
        found |= _of_mixture(fit, fit.linearised)
    if fit.heavy_components < fit.n_components:
        found["idle"] = (
            f"{fit.n_components - fit.heavy_components} of {fit.n_components} components weigh "
            "less than a hundredth of an equal share: they explain nothing. Decode "
            f"{fit.heavy_components} components."
        )
    if fit.coincident:
        pairs = _listed(f"{a} and {b}" for a, b in fit.coincident)
        found["coincident"] = (
            f"Components coincide ({pairs}): one of each pair does the work of both. Decode "
            f"{fit.n_components - _redundant(fit)} components, or with merge=True."
        )
    if fit.on_the_edge:
        found["edge"] = (
            f"Means lie at the end of the data's range or beyond (components "
            f"{_listed(map(str, fit.on_the_edge))}), where hardly a sample is. Decode again with "
            "replicates or fewer components."
        )
    if fit.without_width:
        found["floor"] = (
            "Some are as thin in a feature as the decoder lets them be (components "
            f"{_listed(map(str, fit.without_width))}): the sketch hardly sees their width, "
            "likelihoods do. Sketch with a smaller scale, or decode with another variance_floor."
        )
    return found


def _of_mixture(fit: FitDiagnostics, at: Linearised) -> dict[str, str]:
    found: dict[str, str] = {}
    unit = fit.noise_level or np.nan
    if fit.misfit > _FAR:
        found["misfit"] = (
            f"The cost is {fit.cost_ratio:.3g} noise levels, where a right model leaves "
            f"{at.expected_cost / unit:.2g} ± {at.cost_deviation / unit:.1g}: the data is no such "
            f"mixture of {fit.n_components} components, or the decoder stopped at a poor minimum. "
            "Decode with replicates; if the cost stays, with more components."
        )
    if at.reducible > max(_UNFINISHED[0] * fit.cost, _UNFINISHED[1] * fit.noise_level):
        found["unfinished"] = (
            f"One least-squares step would still take {at.reducible / fit.cost:.0%} off the cost: "
            "the descent stopped early. Go on from here with decode(sketch, start=model)."
        )
    weak = np.flatnonzero(at.weights <= _FROM_ZERO * at.weight_errors)
    if len(weak) and fit.n_components > 1:
        found["undetermined"] = (
            f"Weights are not told from zero (components {_listed(map(str, weak))}): fewer "
            "components may do, or these overlap too much for so few samples. Decode fewer and "
            "compare with choose() on a held-out sketch, or sketch more samples."
        )
    if at.divergence > _LOST * at.attainable:
        found["unresolved"] = _unresolved(fit, at)
    if fit.heldout is not None:
        # a fit is off by the noise that it took for parameters
        own = fit.expected_heldout
        if fit.heldout.squared > 3.0 * own + _FAR * fit.heldout.deviation:
            found["unlike held-out"] = (
                f"The squared discrepancy from held-out samples is {fit.heldout.squared:.2g}, of "
                f"which noise explains {own:.1g} ± {fit.heldout.deviation:.1g}: the model does not "
                "fit, or the held-out samples follow another law."
            )
    return found


def _unresolved(fit: FitDiagnostics, at: Linearised) -> str:
    """The cost is small and the likelihood poor: features that the frequencies hardly see."""
    times = at.divergence / at.attainable
    text = (
        "Least squares on this sketch sees less than the likelihood: its fit is expected "
        f"{_nats(at.divergence)} from the truth (symmetric Kullback-Leibler divergence), "
        f"{_times(times)} as far as maximum likelihood on the same samples"
        + (". A cost as low as noise does not show it. " if not fit.misfit > _FAR else ". ")
    )
    losses = fit.feature_losses
    poor = np.flatnonzero(losses > _UNLIKE * losses.min())
    if losses.min() > _LOST or not len(poor):
        width = np.sqrt(np.mean(fit.feature_widths**2))
        return text + (
            "Decode with refine='efficient', or sketch with more frequencies or another scale: "
            f"components are {width:.2g} times as wide as those that they were drawn for."
        )
    features = "features" if len(poor) > 1 else "feature"
    return text + (
        f"Hardly resolved are the variances of {features} {_listed(map(str, poor))}, where "
        f"components are {_range(fit.feature_widths[poor])} times as wide as those that the "
        "frequencies were drawn for. Decode with refine='efficient', which gets most of it back, "
        "or sketch with a map of design(), which finds a scale for each feature."
    )


def _redundant(fit: FitDiagnostics) -> int:
    """Components that go when each set of coincident ones becomes one."""
    return len({second for _, second in fit.coincident})


def _listed(items: Iterable[str], most: int = 6) -> str:
    texts = list(items)
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _range(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


def _nats(value: float) -> str:
    return f"{value:.2g} nats" if value < 1.0 else "more than a nat"


def _times(value: float) -> str:
    return f"{value:.2g} times" if value < 100.0 else "more than a hundred times"
