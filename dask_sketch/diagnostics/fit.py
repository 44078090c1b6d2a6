"""How good a decoded model is, from nothing but the model and sketches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.degenerate_components import (
    coincident_pairs,
    on_the_edge,
    without_width,
)
from dask_sketch.diagnostics.linearization import Linearised, linearise
from dask_sketch.diagnostics.mmd import (
    Discrepancy,
    discrepancy,
    effective_components,
    noise_level,
    one_blas_thread,
    weighted_residual,
)
from dask_sketch.display.html import card
from dask_sketch.display.text import fields_text
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch

# Models and sketches given to the diagnostics, checked.


def require_model(name: str, value: Any) -> None:
    """Refuse what is no model."""
    if not isinstance(value, (GaussianMixture, Centroids)):
        raise InputError(
            f"{name} of type {type(value).__name__}: give a model, as decode or open_model returns "
            "it."
        )


def require_sketch(name: str, value: Any, model: GaussianMixture | Centroids) -> None:
    """Refuse what is no sketch, or one of other features than the model's."""
    if not isinstance(value, Sketch):
        raise InputError(
            f"{name} of type {type(value).__name__}: give a Sketch; call .compute() on a lazy one, "
            "open_sketch a stored one."
        )
    if value.feature_map.n_features != model.n_features:
        raise InputError(
            f"the model has {model.n_features} features, {name} {value.feature_map.n_features}: "
            "give a sketch of the same features."
        )


# What measurements of a fit mean, and the way out, in sentences.

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
                "fit, or the held-out samples follow another distribution."
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


# Of an equal share 1 / K: a lighter atom counts for nothing.
_LIGHT = 0.01


@dataclass(frozen=True, repr=False)
class FitDiagnostics:
    """What a sketch says about a model; see :func:`diagnose`.

    Attributes
    ----------
    cost
        ``||z - A P||**2``: squared distance between the sketch and that of the model.
    noise_level
        Expected cost of the true distribution, from the number of samples alone: ``(1 - |z|**2) /
        (n - 1)``.
    n_components
        Number of components ``K``.
    effective_components
        Exponential of the entropy of the weights, from 1 to ``K``.
    heavy_components
        Number of weights above a hundredth of an equal share ``1 / K``.
    visible
        Share of the frequencies at which the sketch stands above its noise, in [0, 1].
    coincident
        Pairs of components that lie so close that they count as one.
    on_the_edge
        Components with a mean at the end of the data's range in some feature, or beyond.
    without_width
        Components whose variance was held at its floor in some feature; none for centroids.
    linearised
        Expected cost, standard errors and expected divergence; None for centroids, which are never
        the distribution of their samples. Of an efficiently refined mixture the standard errors are
        its own, and the divergence of least squares, nan, is not its.
    feature_widths
        Root mean square deviation of the components in each feature, in deviations of the
        component that the frequencies were drawn for, shape (n_features,).
    feature_losses
        Standard errors of the log variances in each feature, in those that samples with known
        labels would leave, shape (n_features,); nan where no variance is fitted.
    heldout
        Discrepancy from a held-out sketch, if one was given.
    """

    cost: float
    noise_level: float
    n_components: int
    effective_components: float
    heavy_components: int
    visible: float
    coincident: tuple[tuple[int, int], ...]
    on_the_edge: tuple[int, ...]
    without_width: tuple[int, ...]
    linearised: Linearised | None
    feature_widths: NDArray[np.float64]
    feature_losses: NDArray[np.float64]
    heldout: Discrepancy | None

    @property
    def cost_ratio(self) -> float:
        """Cost in noise levels: well below one for a good fit of data that is such a mixture."""
        return self.cost / self.noise_level if self.noise_level > 0 else np.inf

    @property
    def misfit(self) -> float:
        """The cost in standard deviations above that of a right model; nan for centroids.

        What one more least-squares step would take is taken off first, so that any consistent
        estimate may be held against the expectation. The cost is a sum of squares with few
        effective degrees of freedom, whose cube root is nearly normal (Wilson and Hilferty 1931).
        On 320 decodes of Gaussian mixtures (d=2 and 10) its mean was 0.1 to 0.2, its deviation 0.9
        to 1.1, and the largest 4.3.
        """
        if self.linearised is None or not self.linearised.expected_cost > 0:
            return np.nan
        mean, deviation = self.linearised.expected_cost, self.linearised.cost_deviation
        freedom = 2.0 * (mean / deviation) ** 2
        cost = max(self.cost - self.linearised.reducible, 0.0)
        variance = 2.0 / (9.0 * freedom)
        return float((np.cbrt(cost / mean) - (1.0 - variance)) / np.sqrt(variance))

    @property
    def expected_heldout(self) -> float:
        """Squared discrepancy of a right model: the noise that it took for parameters."""
        if self.linearised is None:
            return np.nan
        return max(self.noise_level - self.linearised.expected_cost, 0.0)

    @property
    def findings(self) -> Mapping[str, str]:
        """What is wrong, and the way out, in a sentence for each name; empty for a good fit."""
        return findings(self)

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        out = {
            "cost": f"{self.cost:.3g}",
            "expected from noise alone": f"{self.noise_level:.3g}",
            "cost in noise levels": f"{self.cost_ratio:.3g}",
        }
        if self.linearised is not None:
            found = self.linearised
            if self.noise_level > 0:
                after = max(self.cost - found.reducible, 0.0) / self.noise_level
                expected = found.expected_cost / self.noise_level
                spread = found.cost_deviation / self.noise_level
                out["after one more step"] = f"{after:.3g}"
                out["there, of a right model"] = f"{expected:.3g} ± {spread:.2g}"
            out["misfit"] = f"{self.misfit:.2g} standard deviations; noise alone gives -3 to 3"
            if not np.isnan(found.divergence):
                out["expected divergence"] = (
                    f"{found.divergence:.2g} nats, of maximum likelihood {found.attainable:.2g}"
                )
        out |= {
            "frequencies above the noise": f"{self.visible:.0%}",
            "components": f"{self.n_components}",
            "effective components": f"{self.effective_components:.1f}",
            "components of some weight": f"{self.heavy_components}",
            "coincident pairs": f"{len(self.coincident)}",
            "means at the end of the data": f"{len(self.on_the_edge)}",
        }
        if self.linearised is not None:
            out["components at the variance floor"] = f"{len(self.without_width)}"
        if self.heldout is not None:
            out["squared held-out discrepancy"] = (
                f"{self.heldout.squared:.2g} ± {self.heldout.deviation:.2g} "
                f"(noise level {self.heldout.noise_level:.2g} taken off)"
            )
            if self.linearised is not None:
                out["held-out, of a right model"] = f"{self.expected_heldout:.2g}"
        return out

    def __repr__(self) -> str:
        nothing = "Nothing found."
        if self.linearised is None:
            nothing += " The cost of centroids tells little: clusters have a width, points none."
        return "\n\n".join([fields_text(self._fields()), *(self.findings.values() or [nothing])])

    def _repr_html_(self) -> str:
        found = self.findings
        summary = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "nothing found"
        return card("FitDiagnostics", self._fields(), summary=summary, notes=found.values())


def diagnose(
    model: GaussianMixture | Centroids,
    sketch: Sketch,
    heldout: Sketch | None = None,
    seed: int = 0,
) -> FitDiagnostics:
    """Say how good a model is from the sketch that it was decoded from.

    A low cost is no proof of a good fit: where the frequencies hardly resolve a feature, the sketch
    is matched and the likelihood is poor (section 5.4 of Keriven et al. 2018). The expected
    Kullback-Leibler divergence says so beforehand: it is computed from the frequencies and the
    model to first order in the noise.

    Parameters
    ----------
    model
        Decoded from the sketch.
    sketch
        Of at least two samples.
    heldout
        A sketch by the same feature map of samples that the model has not seen. A part of the data
        can be held out after the fact: ``whole - part``.
    seed
        Seed of the points of the model by which expectations are computed.

    Returns
    -------
    diagnostics
        Prints as a table with what was found, in sentences.

    Raises
    ------
    InputError
        If a sketch is too small or the numbers of features differ.
    MergeError
        If the feature maps of the sketches differ.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, decode, partial_sketch
    >>> from dask_sketch.models import random_mixture
    >>> x = random_mixture(3, 2, seed=5).sample(20_000, seed=2)
    >>> sketch = partial_sketch(x, FeatureMap(2, 150, scale=1.0))
    >>> dict(diagnose(decode(sketch, 3), sketch).findings)
    {}
    >>> list(diagnose(decode(sketch, 2), sketch).findings)
    ['misfit']
    """
    require_model("model", model)
    require_sketch("the sketch", sketch, model)
    if heldout is not None:
        require_sketch("the held-out sketch", heldout, model)
    if heldout is not None:
        sketch.feature_map.require_same(heldout.feature_map)
    with one_blas_thread():
        return _measured(model, sketch, heldout, seed)


def _measured(
    model: GaussianMixture | Centroids, sketch: Sketch, heldout: Sketch | None, seed: int
) -> FitDiagnostics:
    level = noise_level(sketch)
    residual = weighted_residual(model, sketch)
    visible = np.abs(sketch.characteristic) > 2.0 * sketch.noise_modulus
    found = None
    widths = np.zeros(model.n_features)
    losses = np.full(model.n_features, np.nan)
    if isinstance(model, GaussianMixture):
        found = linearise(model, sketch, seed)
        if model.stderr is not None:
            found = replace(
                found,
                weight_errors=model.stderr.weights,
                variance_errors=model.stderr.covariances / model.covariances,
                divergence=np.nan,
            )
        unit = sketch.feature_map.mean_variances
        widths = np.sqrt(model.weights @ model.covariances / unit)
        counts = sketch.effective_count * model.weights[:, None]
        losses = np.sqrt(np.mean(found.variance_errors**2 * counts / 2.0, axis=0))
    return FitDiagnostics(
        cost=float(np.vdot(residual, residual).real),
        noise_level=level,
        n_components=model.n_components,
        effective_components=effective_components(model.weights),
        heavy_components=int(np.sum(model.weights * model.n_components > _LIGHT)),
        visible=float(np.mean(visible)),
        coincident=coincident_pairs(model, sketch),
        on_the_edge=on_the_edge(model, sketch),
        without_width=without_width(model, sketch) if isinstance(model, GaussianMixture) else (),
        linearised=found,
        feature_widths=widths,
        feature_losses=losses,
        heldout=None if heldout is None else discrepancy(model, heldout, seed),
    )
