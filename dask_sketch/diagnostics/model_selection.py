"""Select a model, or the number of components of a sketch."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from dask_sketch.decoders.arguments import without_few_rows
from dask_sketch.decoders.atoms import count_shapes
from dask_sketch.decoders.calibrated_sample import calibrate
from dask_sketch.decoders.decode import decode
from dask_sketch.decoders.efficient import Overidentification
from dask_sketch.decoders.misfit import SUSPECT, mean_log_likelihood
from dask_sketch.decoders.names import TRANSFORMS
from dask_sketch.diagnostics.fit import require_model, require_sketch
from dask_sketch.diagnostics.linearization import count_parameters, overidentify
from dask_sketch.diagnostics.mmd import (
    N_POINTS,
    Discrepancy,
    discrepancy,
    halves,
    noise_blocks,
    weighted_residual,
)
from dask_sketch.display.html import card, html_table
from dask_sketch.display.plots import SelectionPlots
from dask_sketch.display.text import text_table
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.density import rounding_variances
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.mixture import information_criterion
from dask_sketch.models.open import gaussian_or_centroids
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.choices import MAX_SOLVABLE, CovarianceTypes, listed_types, named_types
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Criterion = Literal["overidentification", "likelihood", "heldout"]
CRITERIA: tuple[str, ...] = get_args(Criterion)
# Standard deviations of a difference within which two models are equally good. For mixtures of
# three components in two dimensions, K = 1 to 5 decoded from n samples and n / 2 held out, 40
# draws: three are selected in 32, 39 and 40 draws at n = 5000, 20,000 and 100,000; with one
# deviation, in 30, 36 and 37.
_WITHIN = 2.0
_LABELS = {
    "heldout": ("held-out discrepancy", "MMD^2"),
    "overidentification": ("overidentification statistic with a penalty", "criterion"),
    "likelihood": ("BIC of the calibrated rows", "criterion"),
}
# Numbers of components that are tried first, and the number of failures in a row that end them.
_GROWTH, _MAX_FAILED = 1.4, 2
_FAR = 30.0  # noise levels of a cost that noise does not explain, without a test
_PER_PARAMETER = 2  # frequencies for each parameter of the largest mixture that is tried


@dataclass(frozen=True)
class RankedModel:
    """Model with its rank among others.

    Attributes
    ----------
    model
        Model.
    index
        Index of the model in the sequence given, or in the order of decoding.
    n_parameters
        Number of free parameters.
    value
        Criterion, lower is better.
    excess, excess_deviation
        Excess of the criterion over the lowest, and its standard deviation; zero where it is not
        known.
    heldout
        Discrepancy from the held-out samples, if there are any.
    overidentification
        Test of whether the data is such a mixture; None where the likelihood decides without it.
    """

    model: GaussianMixture | Centroids
    index: int
    n_parameters: int
    value: float
    excess: float
    excess_deviation: float
    heldout: Discrepancy | None = None
    overidentification: Overidentification | None = None

    @property
    def as_good(self) -> bool:
        """Whether noise alone may explain the excess."""
        return self.excess <= _WITHIN * self.excess_deviation


@dataclass(frozen=True, repr=False)
class ModelSelection:
    """Models ranked by a criterion; the result of :func:`select_model`.

    Attributes
    ----------
    ranking
        All models, the best first.
    selected
        Model with the fewest parameters among those as good as the first.
    criterion
        Name of the criterion.
    """

    ranking: tuple[RankedModel, ...]
    selected: RankedModel
    criterion: str = "heldout"

    @property
    def model(self) -> GaussianMixture | Centroids:
        """Selected model."""
        return self.selected.model

    @property
    def plot(self) -> SelectionPlots:
        """Plots (extra ``plot``): ``selection.plot.criterion()``."""
        curves: dict[str, tuple[list[float], list[float]]] = {}
        for entry in sorted(self.ranking, key=lambda entry: entry.model.n_components):
            name = getattr(entry.model, "covariance_type", "centroids")
            numbers, values = curves.setdefault(name, ([], []))
            numbers.append(entry.model.n_components)
            values.append(entry.excess)
        place = float(self.model.n_components), self.selected.excess
        label = f"{_LABELS[self.criterion][0]}, above the lowest"
        return SelectionPlots(curves, place, label)

    def as_dict(self) -> dict[str, Any]:
        """Criterion, selected number of components, and the values of all models by rank."""
        return {
            "criterion": self.criterion,
            "n_components": self.model.n_components,
            "covariance_type": getattr(self.model, "covariance_type", None),
            "candidates": [
                {
                    "n_components": entry.model.n_components,
                    "covariance_type": getattr(entry.model, "covariance_type", None),
                    "n_parameters": entry.n_parameters,
                    "value": entry.value,
                    "excess": entry.excess,
                    "excess_deviation": entry.excess_deviation,
                    "statistic": test and test.statistic,
                    "freedom": test and test.freedom,
                    "p_value": test and test.p_value,
                }
                for entry in self.ranking
                for test in [entry.overidentification]
            ],
        }

    def _header(self) -> tuple[str, ...]:
        middle = ("its noise",) if self.criterion == "heldout" else ("J", "freedom", "p-value")
        value = _LABELS[self.criterion][1]
        return ("model", value, "excess over the best", *middle, "verdict")

    def _rows(self) -> list[tuple[str, ...]]:
        """Cells of a table of the models."""
        rows: list[tuple[str, ...]] = []
        for entry in self.ranking:
            verdict = "as good as the best" if entry.as_good else "worse"
            verdict = "selected" if entry is self.selected else verdict
            rows.append((_name(entry.model), *_cells(entry), verdict))
        return rows

    def _heading(self) -> str:
        noise = self.ranking[0].heldout
        text = _LABELS[self.criterion][0]
        return text if noise is None else f"{text}, noise level {noise.noise_level:.3g} subtracted"

    def __repr__(self) -> str:
        return f"{self._heading()}\n\n{text_table(self._rows(), self._header())}"

    def _repr_html_(self) -> str:
        selected = f"{_name(self.model)} (model {self.selected.index}) of {len(self.ranking)}"
        rows = [
            (entry.index, *cells) for entry, cells in zip(self.ranking, self._rows(), strict=True)
        ]
        return card(
            "ModelSelection",
            {"selected": selected, "criterion": self._heading()},
            below=html_table(("", *self._header()), rows),
        )


def select_model(
    models: Sequence[GaussianMixture | Centroids] | Sketch,
    heldout: Sketch | None = None,
    seed: int = 0,
    *,
    n_components: Iterable[int] | None = None,
    covariance_types: CovarianceTypes = ("diag",),
    criterion: str | None = None,
    **options: Any,
) -> ModelSelection:
    """Select a model among several, or the number of components of the mixture of a sketch.

    The criteria are lower for better models:

    - ``"heldout"``, for models and a sketch of samples that none of them was fitted to: the squared
      maximum mean discrepancy. The difference of two models is known far more precisely than
      either discrepancy, because the noise of the held-out sketch is common to both. Its variance
      is ``4 d' C d / n``, for the difference ``d`` of the two sketches and the covariance ``C`` of
      the features of a sample, which is estimated from points of the best model. Of all models
      whose excess over the best is less than two of these standard deviations, the one with the
      fewest parameters is selected.
    - ``"overidentification"``, for a sketch: the statistic ``J`` of the mixture nearest to the
      sketch (:func:`diagnose`), less its degrees of freedom, plus ``p (ln n - 1)`` with ``p``
      parameters. It is that of Andrews and Lu, ``J - (2 m - p) ln n``, up to a constant, and
      consistent if the data is a mixture of Gaussians.
    - ``"likelihood"``, for a sketch with random rows: the Bayesian information criterion of the
      calibrated rows (:func:`calibrate`), with their effective number. Values count as rounded
      to the median gap between distinct ones, so that repeated values are no components. The
      statistic ``J`` is not computed where it decides nothing.

    Parameters
    ----------
    models
        Models, at least one, which may have been decoded from sketches of any feature map; or the
        sketch to decode.
    heldout
        Sketch of at least two samples of the same distribution, which no model was fitted to. Its
        feature map determines the kernel of the discrepancy.
    seed
        Seed of the decoder, and of the points sampled from the best model, ``>= 0``.
    n_components
        Numbers of components to decode from the sketch, such as ``range(1, 11)``. By default they
        grow by factors, as long as the criterion falls and there are two frequencies for each
        parameter, and then close in on the best.
    covariance_types
        Types of the covariances to decode from the sketch, see :func:`decode`, such as
        ``("diag", ("low-rank", 3))``.
    criterion
        Name of the criterion. By default ``"heldout"`` with a held-out sketch; otherwise
        ``"likelihood"`` where the sketch carries all rows; otherwise ``"overidentification"``,
        unless no candidate explains the sketch, and it carries rows for ``"likelihood"``.
    options
        Further arguments of :func:`decode`, such as ``replicates`` and ``threads``.

    Returns
    -------
    selection
        Ranking, with the selected model as ``selection.model``; prints as a table, and
        ``selection.plot.criterion()`` is a picture of it.

    Raises
    ------
    InputError
        If there is no model, an argument does not suit the others, the sketch is too small, or
        numbers of features differ.
    DecodeError
        If a number of components that was given cannot be decoded.

    Warns
    -----
    UserWarning
        If no candidate explains a sketch without rows, or the largest number is selected.

    References
    ----------
    Andrews, Lu (2001), Consistent model and moment selection procedures for GMM estimation,
    Journal of Econometrics 101(1). Schwarz (1978), Estimating the dimension of a model, Annals of
    Statistics 6(2).

    Examples
    --------
    >>> from dask_sketch import decode, design, partial_sketch
    >>> from dask_sketch.models import random_mixture
    >>> x = random_mixture(2, 2, seed=1).sample(20_000, seed=2)
    >>> feature_map = design(x, n_frequencies=100, n_components=3)
    >>> sketch, heldout = (partial_sketch(x[part::2], feature_map) for part in (0, 1))
    >>> select_model([decode(sketch, k) for k in (1, 2, 3)], heldout).model.n_components
    2
    >>> select_model(sketch, n_components=range(1, 5)).model.n_components
    2
    """
    if criterion is not None and criterion not in CRITERIA:
        raise InputError(f"criterion={criterion!r}: choose one of {', '.join(CRITERIA)}.")
    if isinstance(models, Sketch):
        gaussian_or_centroids("select_model", models)
        return _select_from_sketch(
            models, heldout, seed, n_components, covariance_types, criterion, options
        )
    given = {"n_components": n_components, **options}
    names = [name for name, value in given.items() if value is not None]
    if names or criterion not in (None, "heldout"):
        name = names[0] if names else "criterion"
        raise InputError(
            f"{name}={given.get(name, criterion)!r} with models: give a sketch in their place, or "
            "leave it out.",
            parameter=name,
        )
    if isinstance(models, (GaussianMixture, Centroids)) or not isinstance(models, Iterable):
        raise InputError(
            f"models of type {type(models).__name__}: give a list of models, or a Sketch; call "
            ".compute() on a lazy one."
        )
    return _select_by_heldout(list(models), heldout, seed)


def _select_by_heldout(
    candidates: list[GaussianMixture | Centroids], heldout: Sketch | None, seed: int
) -> ModelSelection:
    if not candidates:
        raise InputError("models=[]: give at least one model.")
    for number, model in enumerate(candidates):
        require_model(f"models[{number}]", model)
        require_sketch("heldout", heldout, model)
    assert heldout is not None  # it is a sketch
    found = [discrepancy(model, heldout, seed) for model in candidates]
    order = sorted(range(len(candidates)), key=lambda index: found[index].cost)
    first = order[0]
    apart = np.stack([weighted_residual(model, heldout) for model in candidates])
    apart -= apart[first].copy()
    along = np.zeros((len(candidates), N_POINTS))
    with one_blas_thread():
        for block, noise in noise_blocks(candidates[first], heldout, seed):
            along += halves(apart[:, block]) @ noise.T
    deviations = 2.0 * np.sqrt(np.mean(along**2, axis=1) / heldout.effective_count)
    ranking = tuple(
        RankedModel(
            model=candidates[index],
            index=index,
            n_parameters=count_parameters(candidates[index]),
            value=found[index].squared,
            excess=found[index].cost - found[first].cost,
            excess_deviation=float(deviations[index]),
            heldout=found[index],
        )
        for index in order
    )
    as_good = [entry for entry in ranking if entry.as_good]
    return ModelSelection(ranking, min(as_good, key=lambda entry: entry.n_parameters))


@dataclass
class _Candidate:
    """Model decoded from a sketch, its criterion of the rows, and the warnings of its decoding."""

    model: GaussianMixture
    by_rows: float
    caught: list[warnings.WarningMessage]
    test: Overidentification | None = None  # made where it decides: it may take long


class _Candidates:
    """Models of one sketch, decoded on demand.

    Parameters
    ----------
    sketch
        Sketch.
    criterion
        Name of a criterion, or None.
    options
        Arguments of the decoder.
    """

    def __init__(self, sketch: Sketch, criterion: str | None, options: dict[str, Any]):
        sketch = without_few_rows(sketch)
        self.sketch, self._criterion, self._options = sketch, criterion, options
        self.found: dict[tuple[str, int], _Candidate] = {}
        has_rows = sketch.sample is not None and len(sketch.sample) > 0
        self._rows = calibrate(sketch) if has_rows else None
        if criterion == "likelihood" and self._rows is None:
            raise InputError(
                "criterion='likelihood' with a sketch without random rows: sketch with "
                "sample=True, or leave it out.",
                parameter="criterion",
            )

    def decode(self, covariance_type: str, n_components: int) -> None:
        """Decode a mixture, unless it was decoded before."""
        if (covariance_type, n_components) in self.found:
            return
        with warnings.catch_warnings(record=True) as caught:  # of models that may be rejected
            warnings.simplefilter("always")
            given = self._options.get("model") is not None and covariance_type == "diag"
            model = decode(
                self.sketch, n_components, **self._options,
                covariance_type=None if given else covariance_type,  # the model implies it
            )  # fmt: skip
            _require_mixture(self._options, isinstance(model, GaussianMixture))
            assert isinstance(model, GaussianMixture)
        by_rows = np.inf
        if self._rows is not None:
            n = self._rows.effective_count
            rows = np.asarray(self._rows.rows, dtype=np.float64)
            rounding = rounding_variances(rows)
            shapes = model.covariance_matrices + np.diag(rounding)
            if covariance_type in ("diag", "spherical"):
                shapes = model.variances + rounding
            mixture = model.weights, model.means, shapes
            total = n * mean_log_likelihood(rows, self._rows.weights, mixture)
            by_rows = information_criterion("bic", total, n, model.n_parameters)
        self.found[covariance_type, n_components] = _Candidate(model, by_rows, list(caught))

    def test(self, candidate: _Candidate) -> Overidentification:
        """Overidentification test of a model, unless it was made before."""
        if candidate.test is None:
            with one_blas_thread():
                candidate.test = overidentify(candidate.model, self.sketch)
        return candidate.test

    def _is_explained(self, candidate: _Candidate) -> bool:
        """Whether noise explains the distance from the sketch."""
        found = candidate.model.decoding
        is_far = found is not None and found.cost > _FAR * found.noise_level
        return not is_far and self.test(candidate).excess <= SUSPECT

    @property
    def criterion(self) -> str:
        """Name of the criterion for the models so far."""
        if self._criterion is not None:
            return self._criterion
        by_rows = self._rows is not None and (
            self.sketch.holds_all_rows or not any(map(self._is_explained, self.found.values()))
        )
        return "likelihood" if by_rows else "overidentification"

    def value(self, candidate: _Candidate) -> float:
        """Value of the criterion."""
        if self.criterion == "likelihood":
            return candidate.by_rows
        test = self.test(candidate)
        penalty = float(np.log(self.sketch.effective_count)) - 1.0  # of each parameter
        return test.statistic - test.freedom + candidate.model.n_parameters * penalty


def _select_from_sketch(
    sketch: Sketch,
    heldout: Sketch | None,
    seed: int,
    n_components: Iterable[int] | None,
    covariance_types: CovarianceTypes,
    criterion: str | None,
    options: dict[str, Any],
) -> ModelSelection:
    types = _checked_types(covariance_types, options)
    numbers = None if n_components is None else _checked_numbers(n_components)
    if criterion == "heldout" and heldout is None:
        raise InputError("criterion='heldout' without heldout: give a held-out sketch.")
    by_heldout = criterion == "heldout" or (criterion is None and heldout is not None)
    if by_heldout and numbers is None:
        raise InputError(
            "n_components=None with heldout: give the numbers of components, such as range(1, 11).",
            parameter="n_components",
        )
    candidates = _Candidates(sketch, None if by_heldout else criterion, options | {"seed": seed})
    for kind in types:
        if numbers is None:
            _close_in(candidates, kind)
        for number in numbers or ():
            candidates.decode(kind, number)
    found = list(candidates.found.values())
    if by_heldout:
        chosen = _select_by_heldout([each.model for each in found], heldout, seed)
        ranking = tuple(
            replace(entry, overidentification=candidates.test(found[entry.index]))
            for entry in chosen.ranking
        )
        selected = ranking[chosen.ranking.index(chosen.selected)]
        result = ModelSelection(ranking, selected, "heldout")
    else:
        result = _ranked(candidates)
    for warning in found[result.selected.index].caught:
        warn_user(warning.message)
    _warn_of_selection(candidates, result, numbers)
    return result


def _checked_numbers(n_components: Iterable[int]) -> list[int]:
    if isinstance(n_components, (str, bytes)) or not isinstance(n_components, Iterable):
        raise InputError(
            f"n_components={n_components!r}: give several numbers, such as range(1, 11).",
            parameter="n_components",
        )
    numbers = sorted({require_integer("n_components", number, 1) for number in n_components})
    if not numbers:
        raise InputError("n_components is empty: give numbers, such as range(1, 11).")
    return numbers


def _checked_types(covariance_types: CovarianceTypes, options: dict[str, Any]) -> list[str]:
    types = named_types(covariance_types)
    if not types:
        raise InputError(f"covariance_types={covariance_types!r}: give some of {listed_types()}.")
    if options.get("start") is not None:
        raise InputError("start with a sketch of which a number is selected: leave it out.")
    _require_mixture(options, options.get("model") not in ("dirac", *TRANSFORMS))
    return types


def _require_mixture(options: dict[str, Any], is_mixture: bool) -> None:
    if not is_mixture:
        raise InputError(
            f"model={options.get('model')!r} with a sketch: only numbers of Gaussians are tested; "
            "decode each, and give the models and a held-out sketch.",
            parameter="model",
        )


def _close_in(candidates: _Candidates, kind: str) -> None:
    """Decode growing numbers of components, then those around the best."""
    d, m = candidates.sketch.feature_map.n_features, candidates.sketch.feature_map.n_frequencies
    family = {"diag": "gaussian", "tied": "gaussian", "spherical": "isotropic"}.get(kind, kind)
    each = 1 + d + count_shapes(family, d)
    most = m // (_PER_PARAMETER * each), MAX_SOLVABLE // each, candidates.sketch.count
    largest = max(min(most), 1)

    def value(number: int) -> float:
        candidates.decode(kind, number)
        return candidates.value(candidates.found[kind, number])

    tried, failed = [1], 0
    value(1)
    while tried[-1] < largest and failed < _MAX_FAILED:
        tried.append(min(max(tried[-1] + 1, int(_GROWTH * tried[-1])), largest))
        failed = 0 if value(tried[-1]) <= min(map(value, tried)) else failed + 1
    _halve(tried, value)


def _halve(tried: list[int], value: Callable[[int], float]) -> None:
    """Evaluate numbers between the best and its neighbours until none is left."""
    while True:
        tried.sort()
        at = tried.index(min(tried, key=value))
        gaps = [pair for pair in itertools.pairwise(tried) if tried[at] in pair]
        between = [(low + high) // 2 for low, high in gaps if high > low + 1]
        if not between:
            return
        tried += between


def _ranked(candidates: _Candidates) -> ModelSelection:
    found = list(candidates.found.values())
    values = [candidates.value(each) for each in found]
    lowest = min(values)
    ranking = tuple(
        RankedModel(
            model=found[index].model,
            index=index,
            n_parameters=found[index].model.n_parameters,
            value=values[index],
            excess=values[index] - lowest,
            excess_deviation=0.0,
            overidentification=found[index].test,
        )
        for index in sorted(range(len(found)), key=values.__getitem__)
    )
    return ModelSelection(ranking, ranking[0], candidates.criterion)


def _warn_of_selection(
    candidates: _Candidates, result: ModelSelection, numbers: list[int] | None
) -> None:
    test = result.selected.overidentification
    k = result.model.n_components
    if test is not None and result.criterion == "overidentification" and test.excess > SUSPECT:
        warn_user(
            f"no number of components explains the sketch: {k} leave an overidentification "
            f"statistic of {test.statistic:,.0f}, where a mixture leaves {test.freedom:,.0f} ± "
            f"{test.deviation:,.0f}. The data is no such mixture of Gaussians, and the criterion "
            "prefers ever more components. Sketch with sample=True, or give a held-out sketch."
        )
    elif numbers is not None and len(numbers) > 1 and k == numbers[-1]:
        warn_user(
            f"n_components: the largest number, {k}, was selected; give larger ones, and sketch "
            "with more frequencies where they are too few."
        )


def _cells(entry: RankedModel) -> tuple[str, ...]:
    if entry.heldout is not None:
        numbers = entry.excess, entry.excess_deviation
        return f"{entry.heldout.squared:.3g}", *(f"{each:.2g}" for each in numbers)
    test, value, excess = entry.overidentification, f"{entry.value:,.1f}", f"{entry.excess:,.1f}"
    if test is None:
        return value, excess, "", "", ""
    return value, excess, f"{test.statistic:,.0f}", f"{test.freedom:,.0f}", f"{test.p_value:.2g}"


def _name(model: GaussianMixture | Centroids) -> str:
    kind = "Centroids" if isinstance(model, Centroids) else "GaussianMixture"
    own = getattr(model, "covariance_type", "diag")
    own = "" if own == "diag" else f", {own}"
    how = "" if model.decoding is None else f", {model.decoding.method}"
    return f"{kind} of {model.n_components}{own}{how}"
