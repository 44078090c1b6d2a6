"""Choice among models by a held-out sketch: the smallest that noise does not tell from the best."""

from __future__ import annotations

from collections.abc import Sequence
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
    one_blas_thread,
    weighted_residual,
)
from dask_sketch.display.html import card, html_table
from dask_sketch.display.text import text_table
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture

if TYPE_CHECKING:
    from dask_sketch.sketching.sketch import Sketch

# Standard deviations of a difference up to which two models count as equally good. For mixtures of
# three in two dimensions, K = 1 to 5 decoded from n samples and n / 2 held out, 40 draws: three are
# chosen in 32, 39 and 40 of them at n = 5000, 20,000 and 100,000; with one deviation in 30, 36, 37.
_WITHIN = 2.0
_HEADER = ("model", "MMD^2", "behind the best", "its noise", "verdict")


@dataclass(frozen=True)
class Candidate:
    """A model beside the others.

    Attributes
    ----------
    model
        As given.
    index
        Its place among the models given.
    n_parameters
        Number of free parameters.
    heldout
        Its discrepancy from the held-out samples.
    behind, behind_deviation
        By how much its squared discrepancy exceeds the lowest, and the standard deviation of that.
    """

    model: GaussianMixture | Centroids
    index: int
    n_parameters: int
    heldout: Discrepancy
    behind: float
    behind_deviation: float

    @property
    def as_good(self) -> bool:
        """Whether noise alone may have put it behind the lowest."""
        return self.behind <= _WITHIN * self.behind_deviation


@dataclass(frozen=True, repr=False)
class Choice:
    """Models by their discrepancy from held-out samples; see :func:`choose`.

    Attributes
    ----------
    ranking
        All candidates, the lowest discrepancy first.
    chosen
        The candidate of fewest parameters among those as good as the first.
    """

    ranking: tuple[Candidate, ...]
    chosen: Candidate

    @property
    def model(self) -> GaussianMixture | Centroids:
        """The model chosen."""
        return self.chosen.model

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        """Name, squared discrepancy, lag and its noise, verdict, of each candidate."""
        rows = []
        for entry in self.ranking:
            verdict = "as good as the best" if entry.as_good else "worse"
            if entry is self.chosen:
                verdict = "chosen"
            rows.append(
                (
                    _name(entry.model),
                    f"{entry.heldout.squared:.3g}",
                    f"{entry.behind:.2g}",
                    f"{entry.behind_deviation:.2g}",
                    verdict,
                )
            )
        return rows

    def __repr__(self) -> str:
        noise = self.ranking[0].heldout.noise_level
        text = f"held-out discrepancy, noise level {noise:.3g} taken off"
        return f"{text}\n\n{text_table(self._rows(), _HEADER)}"

    def _repr_html_(self) -> str:
        chosen = f"{_name(self.model)} (model {self.chosen.index}) of {len(self.ranking)}"
        rows = [
            (entry.index, *cells) for entry, cells in zip(self.ranking, self._rows(), strict=True)
        ]
        return card(
            "Choice by held-out discrepancy",
            {
                "chosen": chosen,
                "noise level, taken off": f"{self.ranking[0].heldout.noise_level:.3g}",
            },
            below=html_table(("", *_HEADER), rows),
        )


def choose(models: Sequence[GaussianMixture | Centroids], heldout: Sketch, seed: int = 0) -> Choice:
    """Choose a model, and with it ``k`` and the method, by a sketch of samples that none has seen.

    Models are ranked by their squared maximum mean discrepancy from the held-out samples. The
    difference of two models is far better known than either discrepancy, because the noise of the
    held-out sketch is common to both: it is ``4 d' C d / n``, for the difference ``d`` of the two
    sketches and the covariance ``C`` of the features of a sample, which is estimated from points
    of the best model. Of all models behind the best by less than two of these standard deviations,
    the one of fewest parameters is chosen.

    Parameters
    ----------
    models
        At least one; they may have been decoded from sketches of any feature map.
    heldout
        A sketch of at least two samples of the same distribution as those that the models were
        decoded from, none of them among those. Its feature map sets what differences count.
    seed
        Seed of the points.

    Returns
    -------
    choice
        With ``choice.model``; prints as a table.

    Raises
    ------
    InputError
        If there is no model, the sketch is too small, or numbers of features differ.

    Examples
    --------
    >>> from dask_sketch import FeatureMap, decode, partial_sketch
    >>> from dask_sketch.models import random_mixture
    >>> x = random_mixture(2, 2, seed=1).sample(20_000, seed=2)
    >>> feature_map = FeatureMap(2, 100, scale=1.0)
    >>> sketch, heldout = (partial_sketch(x[part::2], feature_map) for part in (0, 1))
    >>> choose([decode(sketch, k) for k in (1, 2, 3)], heldout).model.n_components
    2
    """
    if isinstance(models, (GaussianMixture, Centroids)):
        raise InputError("models is one model: give a list of those to choose from.")
    candidates = list(models)
    if not candidates:
        raise InputError("models is empty: give at least one model to choose.")
    for number, model in enumerate(candidates):
        require_model(f"models[{number}]", model)
        require_sketch("the held-out sketch", heldout, model)
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
        Candidate(
            model=candidates[index],
            index=index,
            n_parameters=count_parameters(candidates[index]),
            heldout=found[index],
            behind=found[index].cost - found[first].cost,
            behind_deviation=float(deviations[index]),
        )
        for index in order
    )
    as_good = [entry for entry in ranking if entry.as_good]
    return Choice(ranking, min(as_good, key=lambda entry: entry.n_parameters))


def _name(model: GaussianMixture | Centroids) -> str:
    kind = "Centroids" if isinstance(model, Centroids) else "GaussianMixture"
    how = "" if model.decoding is None else f", {model.decoding.method}"
    return f"{kind} of {model.n_components}{how}"
