"""Select a model by its discrepancy from a held-out sketch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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
from dask_sketch.display.text import text_table
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.validation.blas import one_blas_thread

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch

# Standard deviations of a difference within which two models are equally good. For mixtures of
# three components in two dimensions, K = 1 to 5 decoded from n samples and n / 2 held out, 40
# draws: three are selected in 32, 39 and 40 draws at n = 5000, 20,000 and 100,000; with one
# deviation, in 30, 36 and 37.
_WITHIN = 2.0
_HEADER = ("model", "MMD^2", "excess over the best", "its noise", "verdict")


@dataclass(frozen=True)
class RankedModel:
    """Model with its rank among others.

    Attributes
    ----------
    model
        Model.
    index
        Index of the model in the sequence given.
    n_parameters
        Number of free parameters.
    heldout
        Discrepancy from the held-out samples.
    excess, excess_deviation
        Excess of the squared discrepancy over the lowest, and its standard deviation.
    """

    model: GaussianMixture | Centroids
    index: int
    n_parameters: int
    heldout: Discrepancy
    excess: float
    excess_deviation: float

    @property
    def as_good(self) -> bool:
        """Whether noise alone may explain the excess."""
        return self.excess <= _WITHIN * self.excess_deviation


@dataclass(frozen=True, repr=False)
class ModelSelection:
    """Models ranked by discrepancy from held-out samples; the result of :func:`select_model`.

    Attributes
    ----------
    ranking
        All models, by increasing discrepancy.
    selected
        Model with the fewest parameters among those as good as the first.
    """

    ranking: tuple[RankedModel, ...]
    selected: RankedModel

    @property
    def model(self) -> GaussianMixture | Centroids:
        """Selected model."""
        return self.selected.model

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        """Name, squared discrepancy, excess and its noise, verdict, of each model."""
        rows = []
        for entry in self.ranking:
            verdict = "as good as the best" if entry.as_good else "worse"
            if entry is self.selected:
                verdict = "selected"
            rows.append(
                (
                    _name(entry.model),
                    f"{entry.heldout.squared:.3g}",
                    f"{entry.excess:.2g}",
                    f"{entry.excess_deviation:.2g}",
                    verdict,
                )
            )
        return rows

    def __repr__(self) -> str:
        noise = self.ranking[0].heldout.noise_level
        text = f"held-out discrepancy, noise level {noise:.3g} subtracted"
        return f"{text}\n\n{text_table(self._rows(), _HEADER)}"

    def _repr_html_(self) -> str:
        selected = f"{_name(self.model)} (model {self.selected.index}) of {len(self.ranking)}"
        rows = [
            (entry.index, *cells) for entry, cells in zip(self.ranking, self._rows(), strict=True)
        ]
        return card(
            "ModelSelection",
            {
                "selected": selected,
                "noise level, subtracted": f"{self.ranking[0].heldout.noise_level:.3g}",
            },
            below=html_table(("", *_HEADER), rows),
        )


def select_model(
    models: Sequence[GaussianMixture | Centroids], heldout: Sketch, seed: int = 0
) -> ModelSelection:
    """Select a model, such as a number of components or a method, by a sketch of held-out samples.

    Models are ranked by their squared maximum mean discrepancy from the held-out samples. The
    difference of two models is known far more precisely than either discrepancy, because the noise
    of the held-out sketch is common to both. Its variance is ``4 d' C d / n``, for the difference
    ``d`` of the two sketches and the covariance ``C`` of the features of a sample, which is
    estimated from points of the best model. Of all models whose excess over the best is less than
    two of these standard deviations, the one with the fewest parameters is selected.

    Parameters
    ----------
    models
        Models, at least one; they may have been decoded from sketches of any feature map.
    heldout
        Sketch of at least two samples of the same distribution, which no model was fitted to. Its
        feature map determines the kernel of the discrepancy.
    seed
        Seed of the points sampled from the best model, ``>= 0``.

    Returns
    -------
    selection
        Ranking, with the selected model as ``selection.model``; prints as a table.

    Raises
    ------
    InputError
        If there is no model, the sketch is too small, or numbers of features differ.

    Examples
    --------
    >>> from dask_sketch import decode, design, partial_sketch
    >>> from dask_sketch.models import random_mixture
    >>> x = random_mixture(2, 2, seed=1).sample(20_000, seed=2)
    >>> feature_map = design(x, n_frequencies=100, n_components=3)
    >>> sketch, heldout = (partial_sketch(x[part::2], feature_map) for part in (0, 1))
    >>> select_model([decode(sketch, k) for k in (1, 2, 3)], heldout).model.n_components
    2
    """
    if isinstance(models, (GaussianMixture, Centroids)) or not isinstance(models, Iterable):
        raise InputError(f"models of type {type(models).__name__}: give a list of models.")
    candidates = list(models)
    if not candidates:
        raise InputError("models=[]: give at least one model.")
    for number, model in enumerate(candidates):
        require_model(f"models[{number}]", model)
        require_sketch("heldout", heldout, model)
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
            heldout=found[index],
            excess=found[index].cost - found[first].cost,
            excess_deviation=float(deviations[index]),
        )
        for index in order
    )
    as_good = [entry for entry in ranking if entry.as_good]
    return ModelSelection(ranking, min(as_good, key=lambda entry: entry.n_parameters))


def _name(model: GaussianMixture | Centroids) -> str:
    kind = "Centroids" if isinstance(model, Centroids) else "GaussianMixture"
    how = "" if model.decoding is None else f", {model.decoding.method}"
    return f"{kind} of {model.n_components}{how}"
