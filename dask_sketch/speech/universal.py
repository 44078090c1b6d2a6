"""The universal background model: one mixture for the frames of everybody, from one sketch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dask

from dask_sketch.decoders import decode
from dask_sketch.diagnostics import choose
from dask_sketch.diagnostics.choice import Choice
from dask_sketch.errors import InputError
from dask_sketch.graph import design, sketch
from dask_sketch.models import GaussianMixture
from dask_sketch.sketching import Sketch, merge
from dask_sketch.speech.frames import Frames

__all__ = ["UniversalModel", "universal_model"]

HOLD_OUT = 5  # every fifth recording chooses the number of components
# of speech, which has no clusters: see the last two of decode()'s
DECODING = {"method": "splitting", "variance_floor": 0.3}


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
    choice: Choice | None = None


def universal_model(
    frames: Frames,
    recordings: Iterable[str] | None = None,
    n_components: int | Sequence[int] = 64,
    n_frequencies: int | None = None,
    *,
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
        apart, :func:`dask_sketch.choose` chooses by it, and the model is decoded from both
        sketches.
    n_frequencies
        Size of the sketch; ``5 (2 d + 1) K`` by default, of the largest ``K``.
    seed
        Seed of frequencies and decoder.
    progress
        Show the progress of the pass on the standard error stream.
    decoding
        Further arguments of :func:`dask_sketch.decode`.

    Returns
    -------
    universal

    Raises
    ------
    InputError
        If a recording is not there, or there are too few to choose by.
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
    names = list(frames.recordings if recordings is None else recordings)
    sizes = [n_components] if isinstance(n_components, int) else list(n_components)
    rows = frames.of(names)
    feature_map = design(rows, n_frequencies, max(sizes), seed=seed)
    settings = {**DECODING, **decoding, "seed": seed}
    if len(sizes) == 1:
        whole = sketch(rows, feature_map).compute(progress=progress)
        return UniversalModel(_mixture(whole, sizes[0], settings), whole)
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
    choice = choose(models, heldout, seed)
    whole = merge([learned, heldout])
    return UniversalModel(_mixture(whole, choice.model.n_components, settings), whole, choice)


def _mixture(whole: Sketch, n_components: int, settings: dict[str, Any]) -> GaussianMixture:
    found = decode(whole, n_components, **settings)
    if not isinstance(found, GaussianMixture):
        raise InputError("a universal model is a mixture: leave out model and method of centroids.")
    return found
