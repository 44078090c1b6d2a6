"""Diagnose the fit of a decoded model from sketches alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.checks.misfit import SUSPECT
from dask_sketch.decoders.checks.unusual_rows import rows_remedy
from dask_sketch.decoders.efficient import Overidentification
from dask_sketch.diagnostics.degenerate_components import (
    at_boundary,
    at_floor,
    coincident_pairs,
)
from dask_sketch.diagnostics.guarantees import Guarantees, guarantees
from dask_sketch.diagnostics.linearization import Linearization, linearise, overidentify
from dask_sketch.diagnostics.missingness import Missingness, compare_incomplete
from dask_sketch.diagnostics.mmd import (
    Discrepancy,
    discrepancy,
    effective_components,
    noise_level,
    weighted_residual,
)
from dask_sketch.display.html import card
from dask_sketch.display.text import counted, fields_text
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.open import refuse_other_families
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.choices import uses_matrices
from dask_sketch.validation.tables import require_names
from dask_sketch.validation.threads import one_blas_thread


def require_model(name: str, value: Any) -> None:
    """Validate a model that can be diagnosed."""
    refuse_other_families("diagnose", value)
    if not isinstance(value, (GaussianMixture, Centroids)):
        raise InputError(
            f"{name} of type {type(value).__name__}: give a GaussianMixture or Centroids, as "
            "returned by decode or open."
        )


def require_sketch(name: str, value: Any, model: GaussianMixture | Centroids) -> None:
    """Validate a sketch with the number and the names of the features of a model."""
    if not isinstance(value, Sketch):
        raise InputError(
            f"{name} of type {type(value).__name__}: give a Sketch; call .compute() on a lazy "
            "one, open() a stored one."
        )
    if value.feature_map.n_features != model.n_features:
        raise InputError(
            f"the model has {model.n_features} features, {name} {value.feature_map.n_features}: "
            "give a sketch of the same features."
        )
    require_names(
        value.feature_map.feature_names, name, model.feature_names, "the model", parameter=name
    )


# Standard deviations that noise does not exceed: the largest of 320 good fits had 4.3.
_NOISE_REACH = 5.0
# Fraction of the cost, and number of noise levels: if a least-squares step gains more than both,
# the descent has not converged. From consistent estimates, such as the true mixture, a step gains
# one noise level on average.
_UNFINISHED = 0.5, 3.0
# Standard errors within which a weight is not distinguished from zero.
_FROM_ZERO = 2.0
# Expected divergence relative to maximum likelihood above which a fit is unresolved. Least squares
# with the sizes of Keriven et al. (2018) has 1.3 to 3.3; if scales of features differ by a factor
# of 3 (Fig. 3), 3 to 4; of 4, 4 to 8; of 5, 7 to 15.
_LOST = 5.0
# Ratio of the width of components to the expected width beyond which another scale is advised.
_OTHER_SCALE = 1.5
_TEST_WORK = 1e11  # multiplications of a test of overidentification, about five CPU seconds
# Multiple of the smallest loss of a feature above which features are named.
_UNLIKE = 2.0


def findings(fit: FitDiagnostics) -> dict[str, str]:
    """Describe each problem of a fit in a sentence, by the name of the problem."""
    texts: dict[str, str] = {}
    if fit.missingness is not None and fit.missingness.excess > _NOISE_REACH:
        texts["missing values"] = fit.missingness.sentence
    if fit.linearization is not None:
        texts |= _mixture_findings(fit, fit.linearization)
    if fit.heavy_components < fit.n_components:
        texts["idle"] = (
            f"{fit.n_components - fit.heavy_components} of {fit.n_components} components have "
            "less than a hundredth of an equal weight: they explain nothing. Decode "
            f"{fit.heavy_components} components."
        )
    if fit.coincident:
        pairs = _listed(f"{a} and {b}" for a, b in fit.coincident)
        texts["coincident"] = (
            f"Components coincide ({pairs}): one of each pair would do. Decode "
            f"{fit.n_components - _redundant(fit)} components, or with merge=True."
        )
    if fit.at_boundary:
        texts["edge"] = (
            f"Means of {_components(fit.at_boundary)} lie at the boundary of the data's range or "
            "beyond, where there are hardly any samples. Decode again with replicates, or fewer "
            "components."
        )
    if fit.at_floor and fit.is_likeliest:
        texts["floor"] = (
            f"Variances of {_components(fit.at_floor)} are nearly zero: many rows share a value "
            "there, so that the likelihood rewards ever smaller variances. Decode fewer "
            "components, or leave out features of few values."
        )
    elif fit.at_floor:
        texts["floor"] = (
            f"Variances of {_components(fit.at_floor)} are at the decoder's lower bound: the "
            "sketch carries little information on widths that small, though the likelihood depends "
            "on them. Sketch with a smaller scale, or decode with another variance_floor."
        )
    return texts


def _mixture_findings(fit: FitDiagnostics, at: Linearization) -> dict[str, str]:
    texts: dict[str, str] = {}
    unit = fit.noise_level or np.nan
    if fit.misfit > _NOISE_REACH:
        texts["misfit"] = (
            f"The cost is {fit.cost_ratio:.3g} noise levels, where the true model leaves "
            f"{at.expected_cost / unit:.2g} ± {at.cost_deviation / unit:.1g}: the data is not such "
            f"a mixture of {fit.n_components} components, "
            + (
                "or the model was decoded from other data; it is the likeliest model that was "
                "found for its own data. For a closer fit, decode more components"
                + ("." if fit.has_rows else f", or {fit.rows_remedy}.")
                if fit.is_likeliest
                else "or the decoder stopped at a poor minimum. To decode the likeliest mixture "
                f"even so, {fit.rows_remedy}. Otherwise give more components, or "
                + (
                    "method='density' with four times the frequencies."
                    if fit.covariance_type == "diag"
                    else "covariance_type='diag'."
                )
            )
        )
    elif fit.overidentification is not None and fit.overidentification.excess > SUSPECT:
        texts["overidentification"] = (
            f"The overidentification statistic is {fit.overidentification.excess:.2g} standard "
            "deviations above its mean for a mixture of such components, though noise explains "
            "the cost: "
            + (
                "the data is not such a mixture, and this is the likeliest mixture that was found. "
                "Decode more components for a closer fit."
                if fit.is_likeliest
                else "a rare component is missing, or the data is not such a mixture. Decode with "
                f"replicates=5 or another number of components, or {fit.rows_remedy}."
            )
        )
    smallest_gain = max(_UNFINISHED[0] * fit.cost, _UNFINISHED[1] * fit.noise_level)
    if at.reducible > smallest_gain and not fit.is_likeliest:
        texts["unfinished"] = (
            f"One more least-squares step would reduce the cost by {at.reducible / fit.cost:.0%}: "
            "the descent stopped early. Continue with decode(sketch, start=model)."
        )
    weak = np.flatnonzero(at.weights <= _FROM_ZERO * at.weight_errors)  # errors of least squares
    if not fit.is_likeliest and len(weak) and fit.n_components > 1:
        texts["undetermined"] = (
            f"Weights of {_components(weak)} do not differ significantly from zero: fewer "
            "components may suffice, or these overlap too much for this number of samples. Decode "
            "fewer components and compare with select_model() on a held-out sketch, or sketch more "
            "samples."
        )
    if at.divergence > _LOST * at.attainable:  # the divergence is nan except for least squares
        texts["unresolved"] = _unresolved(fit, at)
    if fit.heldout is not None:
        # the parameters have fitted some of the noise
        by_noise = fit.expected_heldout
        if fit.heldout.squared > 3.0 * by_noise + _NOISE_REACH * fit.heldout.deviation:
            texts["unlike held-out"] = (
                f"The squared discrepancy from held-out samples is {fit.heldout.squared:.2g}; "
                f"noise explains {by_noise:.1g} ± {fit.heldout.deviation:.1g} of it. The model "
                "does not fit, or the held-out samples follow another distribution."
            )
    return texts


def _unresolved(fit: FitDiagnostics, at: Linearization) -> str:
    """Explain a poor likelihood at a low cost by the features that are poorly resolved."""
    times = at.divergence / at.attainable
    text = (
        f"{'The sketch' if fit.is_weighted else 'Least squares on this sketch'} is less precise "
        "than maximum likelihood: the fit is "
        f"expected {_nats(at.divergence)} from the truth (symmetric Kullback-Leibler divergence), "
        f"{_times(times)} as far as maximum likelihood on the same samples"
        + (". The low cost does not show this. " if not fit.misfit > _NOISE_REACH else ". ")
    )
    losses = fit.feature_losses
    poor = np.flatnonzero(losses > _UNLIKE * losses.min())
    if losses.min() > _LOST or not len(poor):
        width = np.sqrt(np.mean(fit.feature_widths**2))
        advice = "Sketch with more frequencies or samples"
        if not fit.is_weighted:
            advice = "Decode with refine='efficient', or sketch with more frequencies"
        if 1.0 / _OTHER_SCALE <= width <= _OTHER_SCALE:
            return text + f"{advice}."
        return text + (
            f"{advice} or another scale: components are {width:.2g} times as wide as the "
            "frequencies expect."
        )
    features = "features" if len(poor) > 1 else "feature"
    remedy = "Decode with refine='efficient', which recovers most of the precision, or sketch"
    better = "more frequencies"
    if not fit.is_designed:
        better = "a map of design(), which finds a scale for each feature"
    return text + (
        f"The variances of {features} {_listed(map(str, poor))} are poorly resolved: components "
        f"are {_range(fit.feature_widths[poor])} times as wide there as the frequencies expect. "
        f"{'Sketch' if fit.is_weighted else remedy} with {better}."
    )


def _redundant(fit: FitDiagnostics) -> int:
    """Number of components to remove so that no two coincide."""
    return len({second for _, second in fit.coincident})


def _listed(items: Iterable[str], max_items: int = 6) -> str:
    texts = list(items)
    more = f" and {len(texts) - max_items} more" if len(texts) > max_items else ""
    return ", ".join(texts[:max_items]) + more


def _components(numbers: Collection[int]) -> str:
    return f"component{'s' if len(numbers) > 1 else ''} {_listed(map(str, numbers))}"


def _range(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    low, high = f"{values.min():.2g}", f"{values.max():.2g}"
    return low if low == high else f"{low} to {high}"


def _nats(value: float) -> str:
    return f"{value:.2g} nats" if value < 1.0 else "more than a nat"


def _times(value: float) -> str:
    return f"{value:.2g} times" if value < 100.0 else "more than a hundred times"


# Fraction of an equal weight 1 / K below which a component is negligible.
_LIGHT = 0.01


@dataclass(frozen=True, repr=False)
class FitDiagnostics:
    """Diagnostics of a fit; the result of :func:`diagnose`.

    Attributes
    ----------
    cost
        Squared distance ``||z - A P||**2`` between the sketch and the sketch of the model.
    noise_level
        Expected cost of the true distribution, from the number of samples alone: ``(1 - |z|**2) /
        (n - 1)``.
    n_components
        Number of components ``K``.
    effective_components
        Exponential of the entropy of the weights, from 1 to ``K``.
    heavy_components
        Number of weights above a hundredth of an equal weight ``1 / K``.
    visible
        Fraction of the frequencies where the sketch exceeds its noise, in [0, 1].
    coincident
        Pairs of components that are too close to be distinguished.
    at_boundary
        Components with a mean at the boundary of the data's range in some feature, or beyond.
    at_floor
        Components with a variance at its lower bound in some feature; empty for centroids.
    linearization
        Expected cost, standard errors and expected divergence; None for centroids, which are
        never the distribution of their samples. An efficiently refined mixture has its own
        standard errors. The divergence of least squares is nan for efficiently refined mixtures
        and for mixtures of maximum likelihood.
    feature_widths
        Root-mean-square standard deviation of the components in each feature, relative to the
        component that the frequencies were sampled for, shape (n_features,).
    feature_losses
        Standard errors of the log variances in each feature, relative to standard errors from
        samples with known labels, shape (n_features,); nan where no variance is fitted.
    heldout
        Discrepancy from a held-out sketch, if one was given.
    is_likeliest
        Whether the likelihood of rows was preferred to the fit to the sketch.
    is_weighted
        Whether the fit is weighted by the noise of the sketch in any case, as with covariance
        matrices.
    overidentification
        Test whether the data is a mixture of such components, by the statistic J of the mixture
        nearest to the sketch in the metric of its noise; see
        :class:`~dask_sketch.decoders.efficient.Overidentification`. None for centroids, for
        covariances that it cannot refine, and if it would take more than a few seconds.
    missingness
        Comparison of complete rows with incomplete rows; None without missing values.
    theory
        Quantities of the theory of compressive learning; None unless ``theory=True``.
    covariance_type
        Type of the covariances; None for centroids.
    is_designed
        Whether the feature map was designed from pilot rows, which gave the scale of each feature.
    rows_remedy
        Advice on how to use random rows in a fit, as a clause.
    has_rows
        Whether the sketch has random rows.
    """

    cost: float
    noise_level: float
    n_components: int
    effective_components: float
    heavy_components: int
    visible: float
    coincident: tuple[tuple[int, int], ...]
    at_boundary: tuple[int, ...]
    at_floor: tuple[int, ...]
    linearization: Linearization | None
    feature_widths: NDArray[np.float64]
    feature_losses: NDArray[np.float64]
    heldout: Discrepancy | None
    is_likeliest: bool = False
    is_weighted: bool = False
    overidentification: Overidentification | None = None
    missingness: Missingness | None = None
    theory: Guarantees | None = None
    covariance_type: str | None = None
    is_designed: bool = False
    rows_remedy: str = ""
    has_rows: bool = False

    @property
    def cost_ratio(self) -> float:
        """Cost in noise levels; well below one for a good fit of data from such a mixture."""
        return self.cost / self.noise_level if self.noise_level > 0 else np.inf

    @property
    def misfit(self) -> float:
        """Standard deviations of the cost above the cost of the true model; nan for centroids.

        The gain of one more least-squares step is subtracted first, so that any consistent
        estimate can be compared with the expectation. The cost is a sum of squares with few
        effective degrees of freedom, whose cube root is nearly normal (Wilson and Hilferty 1931).
        In 320 decodes of Gaussian mixtures (d=2 and 10) the mean was 0.1 to 0.2, the standard
        deviation 0.9 to 1.1, and the maximum 4.3.
        """
        if self.linearization is None or not self.linearization.expected_cost > 0:
            return np.nan
        mean, deviation = self.linearization.expected_cost, self.linearization.cost_deviation
        freedom = 2.0 * (mean / deviation) ** 2
        cost = max(self.cost - self.linearization.reducible, 0.0)
        variance = 2.0 / (9.0 * freedom)
        return float((np.cbrt(cost / mean) - (1.0 - variance)) / np.sqrt(variance))

    @property
    def expected_heldout(self) -> float:
        """Expected squared held-out discrepancy of a fitted model of the true form, by noise."""
        if self.linearization is None:
            return np.nan
        return max(self.noise_level - self.linearization.expected_cost, 0.0)

    @property
    def findings(self) -> Mapping[str, str]:
        """Problems and their remedies, one sentence for each name; empty for a good fit."""
        return findings(self)

    def as_dict(self) -> dict[str, Any]:
        """All attributes and properties, the nested ones as plain values."""
        names = ("cost_ratio", "misfit", "expected_heldout", "findings")
        values = asdict(self) | {name: getattr(self, name) for name in names}
        if self.heldout is not None:
            values["heldout"] |= {"squared": self.heldout.squared}
        if self.missingness is not None:
            values["missingness"] |= {"excess": self.missingness.excess}
        if self.overidentification is not None:
            values["overidentification"] |= {"p_value": self.overidentification.p_value}
        return values

    def _fields(self) -> dict[str, str]:
        """Main measurements, as text."""
        out = {
            "cost": f"{self.cost:.3g}",
            "expected from noise alone": f"{self.noise_level:.3g}",
            "cost in noise levels": f"{self.cost_ratio:.3g}",
        }
        if self.linearization is not None:
            linearization = self.linearization
            if self.noise_level > 0:
                after = max(self.cost - linearization.reducible, 0.0) / self.noise_level
                expected = linearization.expected_cost / self.noise_level
                spread = linearization.cost_deviation / self.noise_level
                out["cost after one more step"] = f"{after:.3g}"
                out["expected of the true model"] = f"{expected:.3g} ± {spread:.2g}"
            out["misfit"] = (
                f"{self.misfit:.2g} standard deviations of the cube root of this cost; noise alone "
                "gives -3 to 3"
            )
            test = self.overidentification
            if test is not None:
                out["overidentification statistic J"] = (
                    f"{test.statistic:,.0f} on {test.freedom:,.0f} degrees of freedom, "
                    f"p-value {test.p_value:.2g}"
                )
            if not np.isnan(linearization.divergence):
                out["expected divergence"] = (
                    f"{linearization.divergence:.2g} nats; of maximum likelihood "
                    f"{linearization.attainable:.2g}"
                )
        if self.missingness is not None:
            out["complete rows"] = f"{self.missingness.complete:.1%}"
        out |= {
            "frequencies above the noise": f"{self.visible:.0%}",
            "components": f"{self.n_components}",
            "effective components": f"{self.effective_components:.1f}",
            "components of notable weight": f"{self.heavy_components}",
            "coincident pairs": f"{len(self.coincident)}",
            "means at the boundary of the data": f"{len(self.at_boundary)}",
        }
        if self.linearization is not None:
            out["components at the variance floor"] = f"{len(self.at_floor)}"
        if self.heldout is not None:
            out["squared held-out discrepancy"] = (
                f"{self.heldout.squared:.2g} ± {self.heldout.deviation:.2g} "
                f"(noise level {self.heldout.noise_level:.2g} subtracted)"
            )
            if self.linearization is not None:
                out["expected of a fitted true model"] = f"{self.expected_heldout:.2g}"
        return out if self.theory is None else out | self.theory.fields()

    def __repr__(self) -> str:
        nothing = "No problem found."
        if self.linearization is None:
            nothing += (
                " The cost of centroids is not informative: clusters have a width, points none."
            )
        return "\n\n".join([fields_text(self._fields()), *(self.findings.values() or [nothing])])

    def _repr_html_(self) -> str:
        problems = self.findings
        summary = counted(len(problems), "finding") if problems else "no problem found"
        return card("FitDiagnostics", self._fields(), summary=summary, notes=problems.values())


def diagnose(
    model: GaussianMixture | Centroids,
    sketch: Sketch,
    heldout: Sketch | None = None,
    seed: int = 0,
    *,
    theory: bool = False,
) -> FitDiagnostics:
    """Diagnose the fit of a model to the sketch that it was decoded from.

    A low cost does not prove a good fit: where the frequencies poorly resolve a feature, the sketch
    is matched and the likelihood is poor (section 5.4 of Keriven et al. 2018). The expected
    Kullback-Leibler divergence, computed from the frequencies and the model to first order in the
    noise, shows this.

    A sketch with missing values (``nan_policy="available"``) is valid if values are missing
    completely at random. For such a sketch, the moments of complete rows are compared with the
    moments of incomplete rows. Equal moments do not prove it: values may be missing because of
    themselves.

    Parameters
    ----------
    model
        Model decoded from the sketch.
    sketch
        Sketch of at least two samples.
    heldout
        Sketch of samples that the model was not fitted to, by the same feature map. A part of the
        data can be held out afterwards: ``whole - part``.
    seed
        Seed of the points sampled from the model to compute expectations, ``>= 0``.
    theory
        Whether to add the quantities of the theorems of Gribonval et al. (2017): sizes of sketches,
        separation, coherence, isometry and a bound of the excess risk. They explain the causes of
        errors, and are far too conservative for the choice of a size.

    Returns
    -------
    diagnostics
        Measurements and findings; prints as a table and sentences.

    Raises
    ------
    InputError
        If a sketch is too small, or the numbers or names of the features differ.
    MergeError
        If the feature maps of the sketches differ.

    Examples
    --------
    >>> from dask_sketch import decode, design, partial_sketch
    >>> from dask_sketch.models import random_mixture
    >>> x = random_mixture(3, 2, seed=5).sample(20_000, seed=2)
    >>> sketch = partial_sketch(x, design(x, n_frequencies=150, n_components=3))
    >>> dict(diagnose(decode(sketch, 3), sketch).findings)
    {}
    >>> list(diagnose(decode(sketch, 2), sketch).findings)
    ['misfit']
    """
    require_model("model", model)
    require_sketch("sketch", sketch, model)
    if heldout is not None:
        require_sketch("heldout", heldout, model)
        sketch.feature_map.require_same(heldout.feature_map)
    with one_blas_thread():
        diagnostics = _measured(model, sketch, heldout, seed)
        if theory:
            diagnostics = replace(diagnostics, theory=guarantees(model, sketch, seed))
        return diagnostics


def _relative_errors(model: GaussianMixture, errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard errors of log variances (n_components, n_features), from errors of covariances."""
    if uses_matrices(model.covariance_type):
        errors = np.diagonal(errors, axis1=-2, axis2=-1)
    elif model.covariance_type == "spherical":
        errors = errors[:, None]
    return np.asarray(errors / model.variances)


def _measured(
    model: GaussianMixture | Centroids, sketch: Sketch, heldout: Sketch | None, seed: int
) -> FitDiagnostics:
    level = noise_level(sketch)
    residual = weighted_residual(model, sketch)
    visible = np.abs(sketch.characteristic) > 2.0 * sketch.noise_modulus
    is_likeliest = model.decoding is not None and model.decoding.is_likeliest
    linearization = test = None
    widths = np.zeros(model.n_features)
    losses = np.full(model.n_features, np.nan)
    if isinstance(model, GaussianMixture):
        linearization = linearise(model, sketch, seed)
        if model.stderr is not None:
            linearization = replace(
                linearization,
                weight_errors=model.stderr.weights,
                variance_errors=_relative_errors(model, model.stderr.covariances),
                divergence=np.nan,
            )
        elif is_likeliest:
            linearization = replace(linearization, divergence=np.nan)
        if _is_testable(model, sketch):
            test = overidentify(model, sketch)
        unit = sketch.feature_map.mean_variances
        widths = np.sqrt(model.weights @ model.variances / unit)
        counts = sketch.effective_count * model.weights[:, None]
        losses = np.sqrt(np.mean(linearization.variance_errors**2 * counts / 2.0, axis=0))
    return FitDiagnostics(
        cost=float(np.vdot(residual, residual).real),
        noise_level=level,
        n_components=model.n_components,
        effective_components=effective_components(model.weights),
        heavy_components=int(np.sum(model.weights * model.n_components > _LIGHT)),
        visible=float(np.mean(visible)),
        coincident=coincident_pairs(model, sketch),
        at_boundary=at_boundary(model, sketch),
        at_floor=at_floor(model, sketch) if isinstance(model, GaussianMixture) else (),
        linearization=linearization,
        feature_widths=widths,
        feature_losses=losses,
        heldout=None if heldout is None else discrepancy(model, heldout, seed),
        is_likeliest=is_likeliest,
        is_weighted=isinstance(model, GaussianMixture) and uses_matrices(model.covariance_type),
        overidentification=test,
        missingness=compare_incomplete(model, sketch),
        covariance_type=getattr(model, "covariance_type", None),
        is_designed=sketch.feature_map.pilot is not None,
        rows_remedy=rows_remedy(sketch),
        has_rows=sketch.sample is not None,
    )


def _is_testable(model: GaussianMixture, sketch: Sketch) -> bool:
    """Whether the overidentification statistic exists, and is affordable."""
    p, m = model.n_parameters + 1, sketch.feature_map.n_frequencies
    work = p * m * (p + 4096) + (2.0 * m) ** 3
    return 2 * m > p and work < _TEST_WORK
