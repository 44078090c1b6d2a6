"""The universal background model: one mixture for the frames of everybody, from one sketch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import dask.array as da

from dask_sketch.decoders.decode import decode
from dask_sketch.diagnostics.model_selection import ModelSelection, select_model
from dask_sketch.errors import InputError
from dask_sketch.graph.design import design
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.graph.sketch import sketch
from dask_sketch.models.em import ExpectationStatistics, expectation_statistics, maximization_step
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.sources.open import open_samples
from dask_sketch.speech.frames import Frames

__all__ = ["UniversalModel", "universal_model"]
HOLD_OUT = 5  # every fifth recording chooses the number of components
# Speech is no mixture of so few Gaussians: components that maximum likelihood would choose tell
# speakers apart better than those of least squares.
DECODING = {"method": "density", "model": "gaussian", "replicates": 2}


@dataclass(frozen=True, eq=False)
class UniversalModel:
    """What :func:`universal_model` gives.

    Attributes
    ----------
    mixture
        The model.
    sketch
        What it was decoded from, of all the frames.
    choice
        How the number of components was chosen, if it was.
    """

    mixture: GaussianMixture
    sketch: Sketch
    choice: ModelSelection | None = None


def universal_model(
    frames: Frames,
    recordings: Iterable[str] | None = None,
    n_components: int | Sequence[int] = 64,
    n_frequencies: int | None = None,
    *,
    steps: int = 0,
    seed: int = 0,
    progress: bool = False,
    **decoding: Any,
) -> UniversalModel:
    """Fit a mixture to the frames of many speakers, read once.

    Three calls that can be made by themselves: :func:`dask_sketch.design`,
    :func:`dask_sketch.sketch` and :func:`dask_sketch.decode`, with the settings that suit speech.

    Parameters
    ----------
    frames
        From :func:`open_frames`.
    recordings
        Names of those to learn from; all by default.
    n_components
        Number of components, or several of which to choose one: every fifth recording is sketched
        apart, :func:`dask_sketch.select_model` selects it, and the model is decoded from both
        sketches.
    n_frequencies
        Size of the sketch; ``5 (2 d + 1) K`` by default, of the largest ``K``.
    steps
        Steps of expectation-maximisation after that, ``>= 0``, each of one more lazy pass, whose
        sums merge as sketches do, towards maximum likelihood on the frames themselves.
    seed
        Seed of frequencies and decoder.
    progress
        Show the progress of the pass on the standard error stream.
    decoding
        Further arguments of :func:`dask_sketch.decode`; with another ``method``, that method's
        defaults.

    Returns
    -------
    universal

    Raises
    ------
    InputError
        If a recording is not there, there are too few to choose by, or ``steps`` is negative.
    DecodeError
        If the sketch is too small for the mixture.

    Examples
    --------
    >>> from dask_sketch.speech import open_frames
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal([[-5.0]] * 500 + [[5.0]] * 500)
    >>> frames = open_frames(x, np.repeat(["anna_1", "bert_1"], 500))
    >>> np.sort(universal_model(frames, n_components=2).mixture.means.ravel()).round()
    array([-5.,  5.])
    """
    if not isinstance(steps, int) or steps < 0:
        raise InputError(f"steps={steps!r}: give a whole number of at least 0.")
    names = list(frames.recordings if recordings is None else recordings)
    sizes = [n_components] if isinstance(n_components, int) else list(n_components)
    rows = frames.of(names)
    feature_map = design(rows, n_frequencies, max(sizes), seed=seed)
    settings = {**({} if "method" in decoding else DECODING), **decoding, "seed": seed}
    if len(sizes) == 1:
        whole = sketch(rows, feature_map).compute(progress=progress)
        mixture = _mixture(whole, sizes[0], settings)
        return UniversalModel(stepped(rows, mixture, steps), whole)
    if len(names) < HOLD_OUT:
        raise InputError(
            f"{len(names)} recordings are too few to choose n_components by: give {HOLD_OUT}, or "
            "one number of components."
        )
    held = names[HOLD_OUT - 1 :: HOLD_OUT]
    kept = sorted(set(names) - set(held))
    parts = [sketch(frames.of(part), feature_map) for part in (kept, held)]
    learned, heldout = dask.compute(*parts)
    models = [_mixture(learned, size, settings) for size in sizes]
    choice = select_model(models, heldout, seed)
    whole = merge([learned, heldout])
    mixture = _mixture(whole, choice.model.n_components, settings)
    return UniversalModel(stepped(rows, mixture, steps), whole, choice)


def stepped(rows: da.Array, mixture: GaussianMixture, steps: int) -> GaussianMixture:
    """A mixture after steps of expectation-maximisation, each of one lazy pass over the rows."""
    samples = open_samples(rows)
    for _ in range(steps):
        chunk = partial(_statistics_of_chunk, mixture=mixture)
        maximize = partial(maximization_step, mixture)
        mixture = LazyResult(samples, Reduction("expectation", chunk, _merged, maximize)).compute()
    return mixture


def _statistics_of_chunk(
    rows: Any, weights: None, label: str, mixture: GaussianMixture
) -> ExpectationStatistics:
    return expectation_statistics(rows, mixture)


def _merged(parts: list[ExpectationStatistics]) -> ExpectationStatistics:
    return functools.reduce(operator.add, parts)


def _mixture(whole: Sketch, n_components: int, settings: dict[str, Any]) -> GaussianMixture:
    found = decode(whole, n_components, **settings)
    if not isinstance(found, GaussianMixture):
        raise InputError("a universal model is a mixture: leave out model and method of centroids.")
    return found
