"""Fit a universal background model: one mixture of the frames of all speakers, from one sketch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da

from dask_sketch.decoders.decode import decode
from dask_sketch.diagnostics.model_selection import ModelSelection, select_model
from dask_sketch.errors import InputError
from dask_sketch.graph.compute import compute_plain
from dask_sketch.graph.design import design
from dask_sketch.graph.polish import polish
from dask_sketch.graph.sketch import sketch
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.merge import merge
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.speech.frames import Frames

__all__ = ["UniversalModel", "universal_model"]
HOLD_OUT = 5  # every fifth recording is held out to select the number of components


# Components that the frequencies of the sketches resolve separate speakers better than those of
# least squares, and than narrower ones of greatest likelihood, which the sketch of an enrolment
# does not see.
DECODING = {"method": "density", "model": "gaussian", "replicates": 2}


@dataclass(frozen=True, eq=False)
class UniversalModel:
    """Result of :func:`universal_model`.

    Attributes
    ----------
    mixture
        Universal mixture.
    sketch
        Sketch of all frames, from which the mixture was decoded.
    selection
        Selection of the number of components, if several were given.
    """

    mixture: GaussianMixture
    sketch: Sketch
    selection: ModelSelection | None = None


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
    """Fit a mixture to the frames of many speakers in one pass.

    Calls :func:`dask_sketch.design`, :func:`dask_sketch.sketch` and :func:`dask_sketch.decode` with
    settings for speech: no rows are kept, and ``method="density"`` gives wider components than
    maximum likelihood. With 64 components they separate speakers better, though other recordings
    are less likely by some tenths of a nat a frame; ``method="likelihood"`` gives likelier ones.

    Parameters
    ----------
    frames
        Frames from :func:`open_frames`.
    recordings
        Names of the recordings to learn from; all by default.
    n_components
        Number of components, or several numbers to select from: every fifth recording is held out
        for :func:`dask_sketch.select_model`, and the model is decoded from the merged sketch.
    n_frequencies
        Number of frequencies; by default as :func:`design` chooses for the largest ``K``.
    steps
        Number of subsequent steps of expectation-maximisation, ``>= 0``, each with one more lazy
        pass over the frames.
    seed
        Seed of frequencies and decoder, ``>= 0``.
    progress
        Show the progress of the pass on the standard error stream.
    decoding
        Keyword arguments of :func:`dask_sketch.decode`. With ``method``, its defaults are used.

    Returns
    -------
    universal
        Universal mixture, its sketch, and the selection of the number of components.

    Raises
    ------
    InputError
        If a recording does not exist, there are too few for a selection, or ``steps`` is negative.
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
        raise InputError(f"steps={steps!r}: give an integer of at least 0.")
    names = list(frames.recordings if recordings is None else recordings)
    sizes = [n_components] if isinstance(n_components, int) else list(n_components)
    rows = frames.of(names)
    feature_map = design(
        rows, n_frequencies=n_frequencies, n_components=max(sizes), seed=seed,
        covariance_type=decoding.get("covariance_type"),
    )  # fmt: skip
    settings = {**({} if "method" in decoding else DECODING), **decoding, "seed": seed}
    if len(sizes) == 1:
        whole = sketch(rows, feature_map, sample=False).compute(progress=progress)
        mixture = _mixture(whole, sizes[0], settings)
        return UniversalModel(expectation_maximization(rows, mixture, steps), whole)
    if len(names) < HOLD_OUT:
        raise InputError(
            f"recordings has {len(names)} names, too few to select n_components: give "
            f"{HOLD_OUT}, or "
            "one number of components."
        )
    held = names[HOLD_OUT - 1 :: HOLD_OUT]
    learned_names = sorted(set(names) - set(held))
    parts = [sketch(frames.of(part), feature_map, sample=False) for part in (learned_names, held)]
    learned, heldout = compute_plain(*parts)
    models = [_mixture(learned, size, settings) for size in sizes]
    selection = select_model(models, heldout, seed)
    whole = merge([learned, heldout])
    mixture = _mixture(whole, selection.model.n_components, settings)
    return UniversalModel(expectation_maximization(rows, mixture, steps), whole, selection)


def expectation_maximization(
    rows: da.Array, mixture: GaussianMixture, steps: int
) -> GaussianMixture:
    """Perform steps of expectation-maximisation, each with one lazy pass over the rows."""
    return polish(mixture, rows, steps, variance_floor=1e-3) if steps else mixture


def _mixture(whole: Sketch, n_components: int, settings: dict[str, Any]) -> GaussianMixture:
    with warnings.catch_warnings():
        # the warning is of mixtures that are likelier, but separate speakers less well
        warnings.filterwarnings("ignore", message="the mixture is", category=UserWarning)
        mixture = decode(whole, n_components, **settings)
    if not isinstance(mixture, GaussianMixture):
        raise InputError(
            f"model={settings.get('model')!r}, method={settings.get('method')!r}: give those of a "
            "Gaussian mixture."
        )
    return mixture
