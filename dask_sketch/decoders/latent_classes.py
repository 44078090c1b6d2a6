"""Decode sketches of categorical and mixed columns to mixtures of latent classes."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from dask_sketch.decoders.arguments import require_content
from dask_sketch.decoders.calibrated_sample import CalibratedSample, calibrate, calibrate_rows
from dask_sketch.decoders.checks.expected_loss import gain_by_chance
from dask_sketch.decoders.objectives.product_transform import ProductTransform
from dask_sketch.errors import DecodeError
from dask_sketch.models.latent_class_mixture import LatentClassMixture
from dask_sketch.models.model import LIKELIEST, Decoding
from dask_sketch.models.product_em import (
    FittedProduct,
    ProductDensity,
    ProductMixture,
    fit_product,
)
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.tables import require_names
from dask_sketch.validation.warn import warn_user

_ROWS_PER_COMPONENT = 4  # rows of the sample for each component from which its likelihood decides
_SIMULATED = 20_000  # rows simulated from a mixture of the pilot of another number of components
_RANDOM_STARTS = 5  # random starts of each replicate if there are no pilot and no rows
_ROUNDS = 2  # rounds of weighting the moments: the weights depend on the mixture
# Numbers of components, times categorical columns, times squared frequencies up to which moments
# are weighted by the inverse of their covariance, and frequencies: 16 m**2 doubles of memory.
_MAX_WEIGHTED, _MAX_FREQUENCIES = 4e8, 2000
_MAX_PARAMETERS = 4096  # parameters in the normal equations, at most
# deviations above its mean up to which the overidentification statistic may be chance
_DEVIATIONS = 4.0


class _Fit(NamedTuple):
    """Fit to the sketch; a weighted one has a ``statistic`` and its ``freedom``."""

    mixture: ProductMixture
    cost: float
    converged: bool
    statistic: float | None = None
    freedom: float | None = None

    @property
    def is_misfit(self) -> bool:
        """Whether the statistic is too large for chance: the data is not such a mixture."""
        if self.statistic is None or self.freedom is None:
            return False
        return self.statistic > self.freedom + _DEVIATIONS * np.sqrt(2.0 * self.freedom)


def decode_latent_classes(
    sketch: Sketch,
    n_components: int | None,
    *,
    start: Any = None,
    refine: str | None = None,
    seed: int = 0,
    replicates: int = 1,
    variance_floor: float,
    **others: Any,
) -> LatentClassMixture:
    """Fit a mixture of products to a sketch with categorical features.

    Starts are the mixture of the pilot of the feature map, and EM on the random rows of the sketch,
    whose weights are calibrated to it. From each, the squared distance to the sketch is minimised,
    and then that in which the moments are weighted by the inverse of their covariance, unless its
    statistic shows that the data is not such a mixture. The rows decide between this fit and
    maximum likelihood on the rows; without rows, those that are simulated from the mixture of the
    pilot and calibrated to the sketch.

    Parameters
    ----------
    sketch
        Sketch of at least one row, of a feature map with categories.
    n_components, start, refine, seed, replicates, variance_floor
        Arguments of :func:`dask_sketch.decode`.
    others
        Other arguments of :func:`dask_sketch.decode`, which do not apply here and must have their
        defaults.

    Raises
    ------
    DecodeError
        If the sketch is empty or too short for the model, or an argument is out of range.
    """
    start_time = time.perf_counter()
    _require_arguments(others, refine)
    require_content(sketch)
    feature_map = sketch.feature_map
    categories = feature_map.categories
    assert categories is not None
    if start is not None:
        n_components = _checked_start(start, sketch, n_components)
    if n_components is None:
        raise DecodeError(
            "n_components=None of a sketch with categories: give the number of latent classes."
        )
    k = require_integer("n_components", n_components, 1, DecodeError)
    seed = require_integer("seed", seed, 0, DecodeError)
    replicates = require_integer("replicates", replicates, 1, DecodeError)
    _require_enough(sketch, k)
    numeric = categories.numeric
    variances = feature_map.distribution_variances[:, numeric]
    transform = ProductTransform(
        categories, feature_map.frequencies, variance_floor * variances.mean(axis=0),
        np.sqrt(variances.mean(axis=0)),
    )  # fmt: skip
    problem = _Problem(sketch, transform, k, refine)
    rows = _calibrated(sketch, k)
    given = None if start is None else start.parameters
    trace: list[float] = []
    fits: list[_Fit] = []
    likeliest: list[FittedProduct | None] = []
    for replicate in range(replicates):
        starts, fitted = _starts(sketch, k, rows, given, seed + replicate)
        likeliest.append(fitted)
        fits += [problem.fit(one) for one in starts]
        trace.append(min(fit.cost for fit in fits))
    fit = problem.weighted(min(fits, key=lambda one: one.cost))
    trace.append(fit.cost)
    if rows is None:
        _warn_of_statistic(fit, sketch)
        rows = _simulated(sketch, seed)
        likeliest += [] if rows is None else [_starts(sketch, k, rows, given, seed)[1]]
    mixture, message, score, gain = _chosen(problem, fit, rows, likeliest)
    order = np.argsort(-mixture.weights, kind="stable")
    mixture = ProductMixture(*(part[order] for part in mixture))
    record = Decoding(
        method="likelihood" if message.startswith(LIKELIEST) else "latent-classes",
        model="latent-classes",
        cost=problem.cost(mixture),
        noise_level=problem.noise_level,
        trace=tuple(trace),
        seconds=time.perf_counter() - start_time,
        seed=seed,
        replicates=replicates,
        n_evaluations=problem.n_evaluations,
        converged=fit.converged,
        message=message,
        refine=refine,
        variance_floor=variance_floor if len(numeric) else None,
        score=score,
        gain=gain,
        overidentification=fit.statistic,
        freedom=fit.freedom,
        feature_names=feature_map.feature_names,
    )
    return LatentClassMixture(
        mixture.weights, mixture.probabilities, categories, mixture.means, mixture.variances,
        decoding=record,
    )  # fmt: skip


class _Problem:
    """Sketch, transform and weights of the moments."""

    def __init__(self, sketch: Sketch, transform: ProductTransform, k: int, refine: str | None):
        self.sketch, self.transform, self.k = sketch, transform, k
        found = sketch.characteristic
        self.target = np.stack([found.real, found.imag])
        m = sketch.feature_map.n_frequencies
        self.noise_level = max(1.0 - float(np.vdot(found, found).real) / m, 0.0)
        self.noise_level /= sketch.effective_count
        categories = sketch.feature_map.categories
        assert categories is not None
        effort = k * len(categories.sizes) * m**2
        small = m <= _MAX_FREQUENCIES and effort <= _MAX_WEIGHTED
        self._weighs = (small or refine is not None) and sketch.privacy is None
        self.n_evaluations = 0

    def cost(self, mixture: ProductMixture) -> float:
        """Squared distance from the sketch, eq. (9) of Keriven et al."""
        left = self.transform.values(self.transform.pack(mixture)) - self.target
        return float((left**2).sum()) / left.shape[1]

    def fit(self, start: ProductMixture) -> _Fit:
        """Least squares from one start."""
        descent = self.transform.descend(self.transform.pack(start), self.target)
        self.n_evaluations += descent.n_evaluations
        mixture = self.transform.unpack(descent.theta)
        return _Fit(mixture, descent.cost / self.target.shape[1], descent.converged)

    def weighted(self, fit: _Fit) -> _Fit:
        """Fit weighted by the inverse covariance of the moments, where that is affordable."""
        if not self._weighs:
            return fit
        sketch, mixture = self.sketch, fit.mixture
        patterns = sketch.observed.patterns
        overlaps = None if patterns is None else patterns.overlaps()
        for _ in range(_ROUNDS):
            factor, rank = self.transform.whitening(mixture, sketch.effective_count, overlaps)
            descent = self.transform.descend(self.transform.pack(mixture), self.target, factor)
            self.n_evaluations += descent.n_evaluations
            mixture = self.transform.unpack(descent.theta)
        n_parameters = self.k * _parameters_of_each(sketch) - 1
        statistic = freedom = None
        if rank > n_parameters:
            statistic, freedom = descent.cost, rank - n_parameters
        made = _Fit(mixture, self.cost(mixture), descent.converged, statistic, freedom)
        # the weights assume such a mixture, and least squares does not
        return made._replace(mixture=fit.mixture, cost=fit.cost) if made.is_misfit else made


def _require_arguments(others: dict[str, Any], refine: str | None) -> None:
    """Raise an error for arguments that latent classes do not take."""
    defaults = {
        "method": (None,), "model": (None,), "covariance_type": (None, "diag"), "maxima": ("shift",)
    }  # fmt: skip
    for name, value in others.items():
        known = defaults.get(name, (None, False))
        if not any(value is one or (isinstance(one, str) and value == one) for one in known):
            raise DecodeError(
                f"{name}={value!r} of a sketch with categories: leave it out. Such a sketch is "
                "decoded to latent classes; to fit other models, sketch the numeric columns alone."
            )
    if refine not in (None, "efficient"):
        raise DecodeError(f"refine={refine!r} is unknown: give 'efficient', or leave it out.")


def _checked_start(start: Any, sketch: Sketch, n_components: int | None) -> int:
    if not isinstance(start, LatentClassMixture):
        raise DecodeError(
            f"start of type {type(start).__name__} of a sketch with categories: give an earlier "
            "LatentClassMixture."
        )
    if start.categories != sketch.feature_map.categories:
        raise DecodeError("start has other categories than the sketch: give a model of the same.")
    names = sketch.feature_map.feature_names
    require_names(start.feature_names, "start", names, "the sketch", parameter="start")
    if n_components not in (None, start.n_components):
        raise DecodeError(
            f"n_components={n_components} with a start of {start.n_components} components: leave "
            "one of them out."
        )
    return start.n_components


def _parameters_of_each(sketch: Sketch) -> int:
    """Number of free parameters of one component, its weight included."""
    categories = sketch.feature_map.categories
    assert categories is not None
    return 1 + 2 * len(categories.numeric) + categories.n_levels - len(categories.sizes)


def _require_enough(sketch: Sketch, k: int) -> None:
    each, m = _parameters_of_each(sketch), sketch.feature_map.n_frequencies
    n_parameters = each * k
    if n_parameters > min(2 * m, _MAX_PARAMETERS):
        n_possible = min(2 * m, _MAX_PARAMETERS) // each
        fewer = f"Decode at most {n_possible} components, or sketch" if n_possible else "Sketch"
        raise DecodeError(
            f"n_components={k} has {n_parameters:,} parameters, for a sketch of {2 * m:,} real "
            f"numbers; at most {_MAX_PARAMETERS:,} can be fitted. {fewer} with at least "
            f"{5 * n_parameters:,} frequencies."
        )
    if sketch.count < k:
        raise DecodeError(
            f"n_components={k} from a sketch of {sketch.count:,} samples: decode no more "
            "components than there are samples."
        )
    if m < 2 * n_parameters:
        warn_user(
            f"n_components={k} has {n_parameters:,} parameters, for which {m:,} frequencies are "
            f"few: estimates may fail. Sketch with {5 * n_parameters:,} frequencies."
        )


def _calibrated(sketch: Sketch, k: int) -> CalibratedSample | None:
    """Calibrated rows of the sketch, if there are enough."""
    sample = sketch.sample
    if sample is None or sketch.privacy is not None or sketch.missing is not None:
        return None
    return calibrate(sketch) if len(sample) >= _ROWS_PER_COMPONENT * k else None


def _pilot_mixture(sketch: Sketch) -> LatentClassMixture | None:
    """Mixture of the pilot rows of the feature map, if it has one."""
    categories, pilot = sketch.feature_map.categories, sketch.feature_map.pilot
    if categories is None or pilot is None or pilot.mixture is None:
        return None
    mixture = pilot.mixture.product_of(categories)
    if mixture is None:
        return None
    return LatentClassMixture(
        mixture.weights, mixture.probabilities, categories, mixture.means, mixture.variances
    )


def _simulated(sketch: Sketch, seed: int) -> CalibratedSample | None:
    """Rows of the mixture of the pilot, calibrated to the sketch."""
    pilot = _pilot_mixture(sketch)
    if pilot is None or sketch.missing is not None or sketch.privacy is not None:
        return None
    rows = pilot.sample_codes(_SIMULATED, seed=seed)
    return calibrate_rows(rows, np.full(len(rows), 1.0 / len(rows)), sketch, seed=seed)


def _starts(
    sketch: Sketch,
    k: int,
    rows: CalibratedSample | None,
    given: ProductMixture | None,
    seed: int,
) -> tuple[list[ProductMixture], FittedProduct | None]:
    """Mixtures from which the sketch is fitted, and maximum likelihood on its rows."""
    categories = sketch.feature_map.categories
    assert categories is not None
    starts = [] if given is None else [given]
    pilot = _pilot_mixture(sketch)
    if given is None and pilot is not None:
        parameters = pilot.parameters
        if pilot.n_components != k:
            drawn = pilot.sample_codes(_SIMULATED, seed=seed)
            parameters = fit_product(drawn, None, k, categories, seed=seed).mixture
        starts += [parameters]
    if rows is not None:
        values = np.asarray(rows.rows, dtype=np.float64)
        n_starts = 8 if given is None else 0
        fitted = fit_product(
            values, rows.weights, k, categories, starts=starts, n_starts=n_starts, seed=seed
        )
        return [*starts, fitted.mixture], fitted
    if not starts:
        starts = _random_starts(sketch, k, np.random.default_rng(seed))
    return starts, None


def _random_starts(sketch: Sketch, k: int, rng: np.random.Generator) -> list[ProductMixture]:
    """Components with random probabilities, around random points."""
    categories = sketch.feature_map.categories
    assert categories is not None
    mean, variance = (part[categories.numeric] for part in sketch.extent)
    shape = (k, len(mean))
    return [
        ProductMixture(
            np.full(k, 1.0 / k),
            mean + np.sqrt(variance) * rng.standard_normal(shape),
            np.tile(np.maximum(variance, 1e-300), (k, 1)),
            np.concatenate([rng.dirichlet(np.ones(n), size=k) for n in categories.sizes], axis=1),
        )
        for _ in range(_RANDOM_STARTS)
    ]


def _chosen(
    problem: _Problem,
    fit: _Fit,
    rows: CalibratedSample | None,
    likeliest: list[FittedProduct | None],
) -> tuple[ProductMixture, str, float | None, float | None]:
    """Fit to the sketch, or maximum likelihood on its rows where that is likelier than by chance.

    Returns
    -------
    mixture, message, score, gain
        Mixture, and entries of its record.
    """
    sketch, mixture = problem.sketch, fit.mixture
    message = "descent on the sketch"
    n_parameters = problem.k * _parameters_of_each(sketch) - 1
    if rows is None:
        return mixture, message, None, None
    categories = sketch.feature_map.categories
    assert categories is not None
    values = np.asarray(rows.rows, dtype=np.float64)
    score = float(rows.weights @ ProductDensity(mixture, categories).log_total(values))
    near = fit_product(values, rows.weights, problem.k, categories, starts=[mixture], n_starts=0)
    known = [near, *(one for one in likeliest if one is not None)]
    best = max(known, key=lambda one: one.log_likelihood)
    gain = best.log_likelihood - score
    # as for mixtures of Gaussians: a maximum is likelier than the truth by chance
    by_chance = gain_by_chance(n_parameters)
    pilot, n_rows = sketch.feature_map.pilot, rows.effective_count
    if sketch.sample is not None:
        by_chance *= max(1.0 - len(values) / sketch.count, 0.0)
    elif pilot is not None:  # the mixture of the pilot is known as well as its rows allow
        n_rows = min(n_rows, pilot.n_rows)
    if gain > by_chance / n_rows:
        origin = "rows of the pilot mixture, calibrated" if sketch.sample is None else "the rows"
        mixture, message = best.mixture, f"{LIKELIEST}{origin}"
        score, gain = best.log_likelihood, -gain
    single = fit_product(values, rows.weights, 1, categories, n_starts=1).log_likelihood
    if problem.k > 1 and single > score:
        warn_user(
            f"n_components={problem.k}: one class, whose features are independent, is "
            f"{single - score:.3g} nats a sample likelier for the random rows. Decode fewer "
            "components, or sketch with more frequencies."
        )
    return mixture, message, score, -gain


def _warn_of_statistic(fit: _Fit, sketch: Sketch) -> None:
    """Warn where a fit without rows leaves more of the sketch than noise explains."""
    if fit.is_misfit and fit.statistic is not None and fit.freedom is not None:
        nats = (fit.statistic - fit.freedom) / (2.0 * sketch.effective_count)
        cause, rows = "", "sketch with sample=True"
        if sketch.missing is not None:
            cause, rows = ", or values are not missing completely at random", "leave out features"
        warn_user(
            f"the data is not a mixture of this many classes{cause}, or a better one was not "
            f"found: the overidentification statistic is {fit.statistic:.4g}, and "
            f"{fit.freedom:.4g} by chance, which costs about {nats:.3g} nats a sample. Decode more "
            f"components, give more replicates, or {rows}."
        )
