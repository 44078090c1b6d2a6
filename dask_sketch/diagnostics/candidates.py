"""Decode mixtures of several numbers of components from a sketch, with their criteria."""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_sketch.decoders.arguments import without_few_rows
from dask_sketch.decoders.calibrated_sample import CalibratedSample, calibrate
from dask_sketch.decoders.checks.misfit import SUSPECT, mean_log_likelihood
from dask_sketch.decoders.decode import decode
from dask_sketch.decoders.efficient import Overidentification
from dask_sketch.decoders.names import TRANSFORMS
from dask_sketch.decoders.objectives.atoms import count_shapes
from dask_sketch.decoders.transform_fit import max_weighted
from dask_sketch.diagnostics.linearization import count_parameters, overidentify
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.density import gap_variances, masses_on_grid
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.mixture import information_criterion
from dask_sketch.models.open import AnyModel
from dask_sketch.models.von_mises_fisher import VonMisesFisherMixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import unit_rows
from dask_sketch.validation.choices import MAX_SOLVABLE, uses_matrices
from dask_sketch.validation.threads import one_blas_thread

logger = logging.getLogger(__name__)

_LONG = 20.0  # seconds after which a warning states how the search goes on
# Growth of the numbers of components, and number of failures in a row that end it.
_GROWTH, _MAX_FAILED = 1.4, 2
_FAR = 30.0  # noise levels of a cost that noise cannot explain, so that no test is needed
_PER_PARAMETER = 2  # frequencies for each parameter of the largest mixture that is tried
_WITH_ROWS = "A sketch with random rows has criterion='likelihood'."
LATENT_CLASSES = "latent-classes"  # family of a sketch with categories


@dataclass
class Candidate:
    """Model decoded from a sketch, with its criteria and the warnings of its decoding.

    Attributes
    ----------
    model
        Model.
    by_rows
        Bayesian information criterion of the calibrated rows; infinity without rows.
    caught
        Warnings of the decoding.
    test
        Overidentification test; computed on demand, since it may take long.
    """

    model: AnyModel
    by_rows: float
    caught: list[warnings.WarningMessage]
    test: Overidentification | None = None


class Candidates:
    """Models of one sketch, decoded on demand.

    Parameters
    ----------
    sketch
        Sketch of the data.
    family
        Family of mixtures that are not Gaussian, or None for Gaussians.
    criterion
        Name of a criterion; None for the default, see :func:`select_model`.
    options
        Arguments of the decoder.

    Attributes
    ----------
    sketch
        Sketch from which the models are decoded.
    found
        Candidates by type or family and by number of components.

    Raises
    ------
    InputError
        If the criterion cannot be computed for the family or the sketch.
    """

    def __init__(
        self, sketch: Sketch, family: str | None, criterion: str | None, options: dict[str, Any]
    ):
        sketch = without_few_rows(sketch)
        has_rows = sketch.sample is not None and len(sketch.sample) > 0
        if family == "alpha-stable" and criterion == "likelihood":
            raise InputError(
                f"criterion={criterion!r} with model={family!r}: heavy tails are fitted to sums, "
                "without rows. Leave it out.",
                parameter="criterion",
            )
        if family is not None:
            usable = has_rows and family != "alpha-stable"
            criterion = criterion or ("likelihood" if usable else "overidentification")
            if family != LATENT_CLASSES:
                options = options | {"model": family}
            if criterion == "overidentification":
                sketch, has_rows = sketch.without_sample(), False
                if family == LATENT_CLASSES:  # this refinement computes their statistic
                    options = options | {"refine": "efficient"}
        self.sketch, self.family = sketch, family
        self._criterion, self._options = criterion, options
        self.found: dict[tuple[str, int], Candidate] = {}
        self._rows = calibrate(sketch) if has_rows else None
        if criterion == "likelihood" and self._rows is None:
            raise InputError(
                "criterion='likelihood' with a sketch without random rows: sketch with "
                "sample=True, or leave it out.",
                parameter="criterion",
            )

    def decode(self, kind: str, n_components: int) -> None:
        """Decode a mixture of a type or family, unless it was decoded before."""
        if (kind, n_components) in self.found:
            return
        covariance_type: str | None = kind
        if self.family is not None and self.criterion == "overidentification":
            self._require_statistic(self.family, n_components)
        # warnings of models that may be rejected
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            is_implied = self._options.get("model") is not None and kind == "diag"
            if is_implied or self.family is not None:  # the model implies it
                covariance_type = None
            model: AnyModel = decode(
                self.sketch, n_components, **self._options, covariance_type=covariance_type
            )
            require_mixture(self._options, not isinstance(model, Centroids))
        by_rows = np.inf
        if self._rows is not None:
            n = self._rows.effective_count
            total = n * _mean_log_likelihood(model, self._rows)
            by_rows = information_criterion("bic", total, n, count_parameters(model))
        self.found[kind, n_components] = Candidate(model, by_rows, list(caught))

    def _require_statistic(self, family: str, n_components: int) -> None:
        """Raise for a fit without an overidentification statistic from the decoder."""
        m = self.sketch.feature_map.n_frequencies
        if self.sketch.missing is not None or self.sketch.privacy is not None:
            reason, remedy = "with missing values or added noise", "sketch complete rows"
        elif family in TRANSFORMS and n_components > max_weighted(m):
            reason = f"with {m:,} frequencies"
            remedy = f"give at most {max_weighted(m)}, or sketch with fewer frequencies"
        else:
            return
        raise InputError(
            f"n_components={n_components} with model={family!r} and criterion="
            f"'overidentification': the statistic is not computed {reason}; {remedy}. "
            f"{'' if family == 'alpha-stable' else _WITH_ROWS}".strip(),
            parameter="n_components",
        )

    def test(self, candidate: Candidate) -> Overidentification:
        """Overidentification test of a model, computed at most once."""
        if candidate.test is None:
            if isinstance(candidate.model, GaussianMixture):
                with one_blas_thread():
                    candidate.test = overidentify(candidate.model, self.sketch)
            else:
                candidate.test = _recorded_test(candidate.model)
        return candidate.test

    def largest(self, each: int) -> int:
        """Largest number of components to try, for a number of parameters of one component."""
        m = self.sketch.feature_map.n_frequencies
        limits = [m // (_PER_PARAMETER * each), MAX_SOLVABLE // each, self.sketch.count]
        if self.family in TRANSFORMS and self.criterion == "overidentification":
            limits.append(max_weighted(m))
        return max(min(limits), 1)

    def _is_explained(self, candidate: Candidate) -> bool:
        """Whether noise explains the distance from the sketch."""
        decoding = candidate.model.decoding
        is_far = decoding is not None and decoding.cost > _FAR * decoding.noise_level
        return not is_far and self.test(candidate).excess <= SUSPECT

    @property
    def criterion(self) -> str:
        """Name of the criterion for the models that were decoded so far."""
        if self._criterion is not None:
            return self._criterion
        by_rows = self._rows is not None and (
            self.sketch.holds_all_rows or not any(map(self._is_explained, self.found.values()))
        )
        return "likelihood" if by_rows else "overidentification"

    def value(self, candidate: Candidate) -> float:
        """Value of the criterion."""
        if self.criterion == "likelihood":
            return candidate.by_rows
        test = self.test(candidate)
        penalty = float(np.log(self.sketch.effective_count)) - 1.0  # penalty of each parameter
        return test.statistic - test.freedom + count_parameters(candidate.model) * penalty


def _mean_log_likelihood(model: AnyModel, sample: CalibratedSample) -> float:
    """Mean log-density of calibrated rows; for Gaussians, allowing for rounded values."""
    rows = np.asarray(sample.rows, dtype=np.float64)
    if not isinstance(model, GaussianMixture):
        assert not isinstance(model, Centroids)  # no candidate
        if isinstance(model, VonMisesFisherMixture):
            rows = unit_rows(rows)
        return float(sample.weights @ model.density().log_total(rows))
    rounding = gap_variances(rows)
    if uses_matrices(model.covariance_type):
        shapes = model.covariance_matrices + np.diag(rounding)
    else:
        shapes = model.variances + rounding
    fractions = model.weights / masses_on_grid(model.variances + rounding, rounding)
    return mean_log_likelihood(rows, sample.weights, (fractions, model.means, shapes))


def _recorded_test(model: AnyModel) -> Overidentification:
    """Overidentification test in the record of a decoder of a family that is not Gaussian."""
    record = model.decoding
    assert record is not None  # it was decoded
    if record.overidentification is None or record.freedom is None:
        raise InputError(
            f"n_components={model.n_components}: the sketch has too few frequencies for the "
            "statistic of criterion='overidentification'. Sketch with more, or give smaller "
            "n_components.",
            parameter="n_components",
        )
    deviation = float(np.sqrt(2.0 * max(record.freedom, 1.0)))
    return Overidentification(record.overidentification, record.freedom, deviation)


def require_mixture(options: dict[str, Any], is_mixture: bool) -> None:
    """Raise an error for a model of a sketch that is not a mixture.

    Parameters
    ----------
    options
        Arguments of the decoder, with the name of the model.
    is_mixture
        Whether the model is a mixture.
    """
    if not is_mixture:
        raise InputError(
            f"model={options.get('model')!r} with a sketch: only numbers of components of mixtures "
            "are tested; decode each, and give the models and a held-out sketch.",
            parameter="model",
        )


def close_in(candidates: Candidates, kind: str) -> None:
    """Decode growing numbers of components, and then numbers around the best one.

    Parameters
    ----------
    candidates
        Models of one sketch, to which the decoded models are added.
    kind
        Covariance type, or family of mixtures that are not Gaussian.
    """
    d = candidates.sketch.feature_map.n_features
    start, stated, largest = time.perf_counter(), False, 1

    def value(number: int) -> float:
        nonlocal stated
        candidates.decode(kind, number)
        seconds = time.perf_counter() - start
        if seconds > _LONG and not stated and largest > 1:
            stated = True
            logger.warning(
                "select_model has decoded %d mixtures of up to %d components in %.0f seconds, and "
                "goes on while the criterion falls, to at most %d components. Give n_components, "
                "such as range(1, 11), to bound it.",
                len(candidates.found), max(n for _, n in candidates.found), seconds, largest,
            )  # fmt: skip
        return candidates.value(candidates.found[kind, number])

    tried, failed = [1], 0
    value(1)
    if candidates.family is None:
        family = {"diag": "gaussian", "tied": "gaussian", "spherical": "isotropic"}.get(kind, kind)
        each = 1 + d + count_shapes(family, d)
    else:
        each = 1 + count_parameters(candidates.found[kind, 1].model)
    largest = candidates.largest(each)
    while tried[-1] < largest and failed < _MAX_FAILED:
        tried.append(min(max(tried[-1] + 1, int(_GROWTH * tried[-1])), largest))
        failed = 0 if value(tried[-1]) <= min(map(value, tried)) else failed + 1
    _halve(tried, value)


def _halve(tried: list[int], value: Callable[[int], float]) -> None:
    """Evaluate the middles between the best number and its neighbours, until none is left."""
    while True:
        tried.sort()
        at = tried.index(min(tried, key=value))
        gaps = [pair for pair in itertools.pairwise(tried) if tried[at] in pair]
        between = [(low + high) // 2 for low, high in gaps if high > low + 1]
        if not between:
            return
        tried += between
