"""Select a model, or the number of components of a sketch."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from dask_sketch.decoders.checks.misfit import SUSPECT
from dask_sketch.decoders.decode import decode
from dask_sketch.decoders.efficient import Overidentification
from dask_sketch.decoders.names import TRANSFORMS
from dask_sketch.diagnostics.candidates import LATENT_CLASSES, Candidates, close_in, require_mixture
from dask_sketch.diagnostics.fit import require_model, require_sketch
from dask_sketch.diagnostics.linearization import count_parameters
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
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.open import AnyModel
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.choices import (
    CovarianceTypes,
    listed_types,
    named_types,
    require_keywords,
)
from dask_sketch.validation.tables import require_common_names
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Criterion = Literal["overidentification", "likelihood", "heldout"]
CRITERIA: tuple[str, ...] = get_args(Criterion)
# Standard deviations of a difference within which two models are equally good. For mixtures of
# three components in two dimensions, K = 1 to 5 decoded from n samples and n / 2 held out, 40
# draws: three are selected in 32, 39 and 40 draws at n = 5000, 20,000 and 100,000; with one
# deviation, in 30, 36 and 37.
_WITHIN = 2.0
_WITH_ROWS = "Sketch with sample=True, or leave criterion out where the sketch carries rows."
# Remedies where no number of components explains a sketch, by the family of the mixtures.
_REMEDIES = {
    None: "Sketch with sample=True, or give a held-out sketch.",
    "alpha-stable": "Decode with replicates=5, or another model.",
}
_LABELS = {
    "heldout": ("held-out discrepancy", "MMD^2"),
    "overidentification": ("overidentification statistic with a penalty", "criterion"),
    "likelihood": ("BIC of the calibrated rows", "criterion"),
}


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
        Excess of the criterion over its lowest value, and the standard deviation of the excess;
        zero if it is not known.
    heldout
        Discrepancy from the held-out samples, if there are any.
    overidentification
        Test whether the data is such a mixture; None if the likelihood decides without it.
    """

    model: AnyModel
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
        Model with the fewest parameters among the models that are as good as the first.
    criterion
        Name of the criterion.
    """

    ranking: tuple[RankedModel, ...]
    selected: RankedModel
    criterion: str = "heldout"

    @property
    def model(self) -> AnyModel:
        """Selected model."""
        return self.selected.model

    @property
    def plot(self) -> SelectionPlots:
        """Plots (extra ``plot``): ``selection.plot.criterion()``."""
        curves: dict[str, tuple[list[float], list[float]]] = {}
        for entry in sorted(self.ranking, key=lambda entry: entry.model.n_components):
            name = getattr(entry.model, "covariance_type", _noun(entry.model))
            numbers, values = curves.setdefault(name, ([], []))
            numbers.append(entry.model.n_components)
            values.append(entry.excess)
        point = float(self.model.n_components), self.selected.excess
        label = f"{_LABELS[self.criterion][0]}, above the lowest"
        return SelectionPlots(curves, point, label)

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

    - ``"heldout"``, for models and a sketch of samples that no model was fitted to: the squared
      maximum mean discrepancy. The difference of two discrepancies is known far more precisely than
      either, because both have the noise of the held-out sketch. Its variance is ``4 d' C d / n``,
      for the difference ``d`` of the sketches of two models and the covariance ``C`` of the
      features of a sample, which is estimated from points of the best model. Among all models whose
      excess over the best is less than two of these standard deviations, the model with the fewest
      parameters is selected.
    - ``"overidentification"``, for a sketch: the statistic ``J`` of the mixture nearest to the
      sketch (:func:`diagnose`), minus its degrees of freedom, plus ``p (ln n - 1)`` with ``p``
      parameters. Up to a constant, this is the criterion of Andrews and Lu, ``J - (2 m - p) ln n``.
      It is consistent if the data is such a mixture.
    - ``"likelihood"``, for a sketch with random rows: the Bayesian information criterion of the
      calibrated rows (:func:`calibrate`), with their effective number. For Gaussians, values are
      treated as rounded to the median gap between distinct values, so that repeated values are not
      taken for components. The statistic ``J`` is only computed if it matters for the decision.

    A sketch of directions (``normalize=True``) is decoded to von Mises-Fisher mixtures, a sketch
    with categories to latent classes, and any other sketch with ``model="alpha-stable"`` to
    alpha-stable mixtures. Their statistic comes from the fit to the sums, without random rows;
    alpha-stable mixtures never use rows.

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
        parameter. Then numbers around the best one are tried.
    covariance_types
        Types of the covariances of Gaussians to decode from the sketch, see :func:`decode`, such as
        ``("diag", ("low-rank", 3))``.
    criterion
        Name of the criterion. By default ``"heldout"`` with a held-out sketch; otherwise
        ``"likelihood"`` if the sketch carries all rows; otherwise ``"overidentification"``. If no
        candidate explains a sketch with rows, it is ``"likelihood"`` instead. For directions and
        latent classes, it is ``"likelihood"`` whenever the sketch carries rows.
    options
        Further arguments of :func:`decode`, such as ``model``, ``replicates`` and ``threads``.

    Returns
    -------
    selection
        Ranking, with the selected model as ``selection.model``; prints as a table, and
        ``selection.plot.criterion()`` is a picture of it.

    Raises
    ------
    InputError
        If there is no model, an argument does not fit the others, the sketch is too small, numbers
        or names of features differ, or a criterion cannot be computed.
    DecodeError
        If one of the given numbers of components cannot be decoded.

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
    if "covariance_type" in options:
        raise InputError(
            f"covariance_type={options['covariance_type']!r}: give the types to compare as "
            "covariance_types.",
            parameter="covariance_type",
        )
    require_keywords(select_model, options, inspect.signature(decode).parameters, "decode")
    if isinstance(models, Sketch):
        return _select_from_sketch(
            models, heldout, seed, n_components, covariance_types, criterion, options
        )
    keywords = {"n_components": n_components, **options}
    names = [name for name, value in keywords.items() if value is not None]
    if names or criterion not in (None, "heldout"):
        name = names[0] if names else "criterion"
        raise InputError(
            f"{name}={keywords.get(name, criterion)!r} with models: give a sketch in their place, "
            "or leave it out.",
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
    assert heldout is not None  # checked above
    # a held-out sketch without names does not show that two models have different ones
    require_common_names(
        {f"models[{number}]": model.feature_names for number, model in enumerate(candidates)}
    )
    distances = [discrepancy(model, heldout, seed) for model in candidates]
    order = sorted(range(len(candidates)), key=lambda index: distances[index].cost)
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
            value=distances[index].squared,
            excess=distances[index].cost - distances[first].cost,
            excess_deviation=float(deviations[index]),
            heldout=distances[index],
        )
        for index in order
    )
    as_good = [entry for entry in ranking if entry.as_good]
    return ModelSelection(ranking, min(as_good, key=lambda entry: entry.n_parameters))


def _select_from_sketch(
    sketch: Sketch,
    heldout: Sketch | None,
    seed: int,
    n_components: Iterable[int] | None,
    covariance_types: CovarianceTypes,
    criterion: str | None,
    options: dict[str, Any],
) -> ModelSelection:
    family = _family(sketch, options)
    types = _checked_types(covariance_types, options, family)
    numbers = None if n_components is None else _checked_numbers(n_components)
    if criterion == "heldout" and heldout is None:
        raise InputError("criterion='heldout' without heldout: give a held-out sketch.")
    by_heldout = criterion == "heldout" or (criterion is None and heldout is not None)
    if by_heldout and isinstance(heldout, Sketch):
        names = {"models": sketch.feature_map, "heldout": heldout.feature_map}
        require_common_names(
            {name: feature_map.feature_names for name, feature_map in names.items()}
        )
    if by_heldout and family is not None:
        raise InputError(
            f"heldout with model={family!r}: held-out sketches compare Gaussians and centroids. "
            "Leave it out; or compare score(x) of held-out rows.",
            parameter="heldout",
        )
    if by_heldout and numbers is None:
        raise InputError(
            "n_components=None with heldout: give the numbers of components, such as range(1, 11).",
            parameter="n_components",
        )
    candidates = Candidates(
        sketch, family, None if by_heldout else criterion, options | {"seed": seed}
    )
    for kind in types:
        if numbers is None:
            close_in(candidates, kind)
        for number in numbers or ():
            candidates.decode(kind, number)
    decoded = list(candidates.found.values())
    if by_heldout:
        models: list[Any] = [each.model for each in decoded]
        chosen = _select_by_heldout(models, heldout, seed)
        ranking = tuple(
            replace(entry, overidentification=candidates.test(decoded[entry.index]))
            for entry in chosen.ranking
        )
        selected = ranking[chosen.ranking.index(chosen.selected)]
        result = ModelSelection(ranking, selected, "heldout")
    else:
        result = _rank(candidates)
    for warning in decoded[result.selected.index].caught:
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


def _family(sketch: Sketch, options: dict[str, Any]) -> str | None:
    """Family of the mixtures of a sketch; None for Gaussians."""
    if sketch.feature_map.categories is not None:
        return LATENT_CLASSES
    model: str | None = options.get("model")
    if model is None and sketch.feature_map.normalize:
        return "von-mises-fisher"
    return model if model in TRANSFORMS else None


def _checked_types(
    covariance_types: CovarianceTypes, options: dict[str, Any], family: str | None
) -> list[str]:
    """Names of covariance types, or the name of another family."""
    types = named_types(covariance_types)
    if not types:
        raise InputError(f"covariance_types={covariance_types!r}: give some of {listed_types()}.")
    if options.get("start") is not None:
        raise InputError(
            "start: the number of components is selected without a start. Leave it out.",
            parameter="start",
        )
    require_mixture(options, options.get("model") != "dirac")
    if family is None:
        return types
    if types != ["diag"]:
        raise InputError(
            f"covariance_types={covariance_types!r} with model={family!r}: only Gaussians have "
            "covariances of several types; leave it out."
        )
    return [family]


def _rank(candidates: Candidates) -> ModelSelection:
    ranked = list(candidates.found.values())
    values = [candidates.value(each) for each in ranked]
    lowest = min(values)
    ranking = tuple(
        RankedModel(
            model=ranked[index].model,
            index=index,
            n_parameters=count_parameters(ranked[index].model),
            value=values[index],
            excess=values[index] - lowest,
            excess_deviation=0.0,
            overidentification=ranked[index].test,
        )
        for index in sorted(range(len(ranked)), key=values.__getitem__)
    )
    return ModelSelection(ranking, ranking[0], candidates.criterion)


def _warn_of_selection(
    candidates: Candidates, result: ModelSelection, numbers: list[int] | None
) -> None:
    test = result.selected.overidentification
    k = result.model.n_components
    if test is not None and result.criterion == "overidentification" and test.excess > SUSPECT:
        warn_user(
            f"no number of components explains the sketch: {k} leave an overidentification "
            f"statistic of {test.statistic:,.0f}, where a mixture leaves {test.freedom:,.0f} ± "
            f"{test.deviation:,.0f}. The data is not such a mixture, and the criterion prefers "
            f"ever more components. {_REMEDIES.get(candidates.family, _WITH_ROWS)}"
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


def _noun(model: AnyModel) -> str:
    """Name of the family of a model in a picture."""
    if isinstance(model, Centroids):
        return "centroids"
    return type(model).__name__ if model.decoding is None else model.decoding.model


def _name(model: AnyModel) -> str:
    kind = getattr(model, "covariance_type", "diag")
    kind = "" if kind == "diag" else f", {kind}"
    method = "" if model.decoding is None else f", {model.decoding.method}"
    return f"{type(model).__name__} of {model.n_components}{kind}{method}"
