"""One score for each trial: how much likelier its frames are from the speaker than from anybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_sketch import config
from dask_sketch.errors import InputError
from dask_sketch.graph.tree import reduce_samples, unwrap
from dask_sketch.models.likelihood_ratio import LikelihoodRatios
from dask_sketch.speech.enrolment import SpeakerModels
from dask_sketch.speech.frames import Frames, segments
from dask_sketch.speech.trials import Trial

__all__ = ["score_trials"]

_Claims = dict[int, tuple[int, ...]]  # numbers of models, by that of the recording
_Sums = dict[int, tuple[int, NDArray[np.float64]]]  # frames, and totals of those models


def score_trials(frames: Frames, models: SpeakerModels, trials: Sequence[Trial]) -> da.Array:
    """Score trials, in one lazy pass over all frames.

    The score of a trial is the logarithm of the likelihood ratio of its frames, for the speaker
    and for the universal mixture, eq. (25), divided by the number of frames, so that recordings of
    any length share one threshold. Each task adds up ratios for the trials of the recordings in its
    chunk; these sums merge in a tree.

    Parameters
    ----------
    frames
        From :func:`open_frames`.
    models
        From :func:`enrol`, computed.
    trials
        Such as :func:`read_trials` gives.

    Returns
    -------
    scores
        Of each trial, in nats per frame, shape (n_trials,), lazy.

    Raises
    ------
    InputError
        If there is no trial, or a model or a recording is not there.

    References
    ----------
    Keriven, Bourrier, Gribonval, Pérez (2018), section 6.1.

    Examples
    --------
    >>> from dask_sketch.models import GaussianMixture
    >>> from dask_sketch.speech import enrol, open_frames
    >>> x = np.repeat([4.0, 4.5, 2.0], 16)[:, None]
    >>> frames = open_frames(x, np.repeat(["anna_1", "anna_2", "bert_1"], 16))
    >>> universal = GaussianMixture([1.0], [[3.0]], [[1.0]])
    >>> models = enrol(frames, {"anna": ["anna_1"]}, universal).compute()
    >>> score_trials(frames, models, [Trial("anna", "anna_2"), Trial("anna", "bert_1")]).compute()
    array([ 0.625, -0.625])
    """
    listed = list(trials)
    if not listed:
        raise InputError("trials is empty: give at least one.")
    numbers = {name: number for number, name in enumerate(models.names)}
    unknown = sorted({trial.model for trial in listed} - numbers.keys())
    if unknown:
        raise InputError(
            f"{len(unknown)} models, the first {unknown[0]!r}, were not enrolled; there are "
            f"{', '.join(models.names[:9])}{', ...' if len(models) > 9 else ''}."
        )
    claimed = [numbers[trial.model] for trial in listed]
    tested = frames.numbers(trial.test for trial in listed)
    of: dict[int, list[int]] = {}
    for number, file in enumerate(tested):
        of.setdefault(file, []).append(number)
    claims = {file: tuple(claimed[i] for i in places) for file, places in of.items()}
    sums = reduce_samples(
        frames.samples,
        _scores_of_chunk,
        _merge,
        split_every=config.get("split-every"),
        name="score-trials",
        grouped=True,
        # delayed, they are sent to each worker once
        arguments={"models": dask.delayed(models), "claims": dask.delayed(claims)},
    )
    part = sums.to_delayed().item()
    scores = dask.delayed(_scores, pure=True)(part, dask.delayed(of), len(listed))
    return da.from_delayed(scores, shape=(len(listed),), dtype=np.dtype(np.float64))


def _scores_of_chunk(
    block: Any,
    weights: None,
    label: str,
    models: SpeakerModels,
    claims: _Claims,
    groups: NDArray[np.integer],
) -> _Sums:
    ratios: dict[tuple[int, ...], LikelihoodRatios] = {}
    found: _Sums = {}
    for file, rows in segments(groups):
        if file not in claims:
            continue
        claimed = claims[file]
        if claimed not in ratios:  # most recordings are claimed by the same speakers
            ratios = {claimed: LikelihoodRatios(models.universal, models.means[list(claimed)])}
        part = {file: (rows.stop - rows.start, ratios[claimed].total(block[rows]))}
        found = _merge([found, part])
    return found


def _merge(parts: Iterable[_Sums]) -> _Sums:
    merged: _Sums = {}
    for part in parts:
        for file, (count, total) in part.items():
            before, sums = merged.get(file, (0, 0.0))
            merged[file] = (before + count, sums + total)
    return merged


def _scores(sums: Any, of: Mapping[int, Sequence[int]], n_trials: int) -> NDArray[np.float64]:
    found: _Sums = unwrap(sums)
    scores = np.full(n_trials, np.nan)
    for file, places in of.items():
        count, total = found[file]
        scores[list(places)] = total / count
    return scores
