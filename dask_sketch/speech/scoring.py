"""Score verification trials by log-likelihood ratios of adapted mixtures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import row_blocks
from dask_sketch.speech.enrolment import SpeakerModels
from dask_sketch.speech.frames import Frames, segments
from dask_sketch.speech.trials import Trial
from dask_sketch.validation.choices import uses_matrices
from dask_sketch.validation.tables import first_few

Array = NDArray[np.float64]


class LikelihoodRatios:
    """Likelihood ratios of adapted mixtures relative to their universal mixture.

    The mixtures share weights and covariances with the universal mixture. The ratio of a sample is
    the mean of the ratios of the components over the posterior of the universal mixture. These are
    log-linear in the sample, so that one matrix product serves all mixtures, with half the work of
    their densities.

    Parameters
    ----------
    universal
        Universal mixture.
    means
        Means of the adapted mixtures, shape (n_models, n_components, n_features).

    Raises
    ------
    InputError
        If the shape of the means does not match the mixture.

    Examples
    --------
    >>> universal = GaussianMixture([0.5, 0.5], [[-3.0], [3.0]], [[1.0], [1.0]])
    >>> ratios = LikelihoodRatios(universal, [[[-3.0], [4.0]]])
    >>> ratios.total([[4.0]]).round(3)  # of two unit normals, at their mean and one beside it
    array([0.5])
    """

    def __init__(self, universal: GaussianMixture, means: ArrayLike) -> None:
        adapted = np.asarray(means, dtype=np.float64)
        if adapted.ndim != 3 or adapted.shape[1:] != universal.means.shape:
            raise InputError(
                f"means has shape {adapted.shape}; give (n_models, *{universal.means.shape}), of "
                "mixtures adapted from the universal one."
            )
        self._universal = universal
        self._density = universal.density()
        self._shape = adapted.shape[:2]
        self._center = universal.mean
        if uses_matrices(universal.covariance_type):
            inverse = np.linalg.inv(universal.covariance_matrices)
            steps = np.einsum("skd,kde->ske", adapted - universal.means, inverse)
        else:
            steps = (adapted - universal.means) / universal.variances
        middles = 0.5 * (adapted + universal.means) - self._center
        self._linear = steps.reshape(-1, universal.n_features).T.copy()
        self._constants = -(steps * middles).sum(axis=2)

    def total(self, x: ArrayLike) -> Array:
        """Sum the logarithms of the likelihood ratios over samples.

        Parameters
        ----------
        x
            Samples, shape (n_samples, n_features).

        Returns
        -------
        total
            Sum for each adapted mixture, shape (n_models,), in nats.

        Raises
        ------
        InputError
            If the number of features differs, or a value is not finite.
        """
        total = np.zeros(self._shape[0])
        universal, n_values = self._universal, self._shape[0] * self._shape[1]
        for block in row_blocks(x, universal.n_features, n_values, universal.feature_names):
            total += self._of_block(block).sum(axis=0)
        return total

    def _of_block(self, block: Array) -> Array:
        joint = self._density.log_joint(block)
        ratios = ((block - self._center) @ self._linear).reshape(len(block), *self._shape)
        ratios += self._constants
        ratios += joint[:, None, :]
        return _log_sum(ratios) - _log_sum(joint)[:, None]


def _log_sum(values: Array) -> Array:
    """Logarithm of the sum of exponentials along the last axis; overwrites the values."""
    largest = values.max(axis=-1)
    values -= largest[..., None]
    np.exp(values, out=values)
    return np.asarray(np.log(values.sum(axis=-1)) + largest)


__all__ = ["score_trials"]
_Claims = dict[int, tuple[int, ...]]  # numbers of the models, by the number of the recording
_Sums = dict[int, tuple[int, NDArray[np.float64]]]  # number of frames, and sums of those models


def score_trials(frames: Frames, models: SpeakerModels, trials: Sequence[Trial]) -> LazyResult:
    """Score trials, in one lazy pass over all frames.

    The score of a trial is the log-likelihood ratio of its frames between the speaker's and the
    universal mixture, eq. (25), divided by the number of frames, so that recordings of any length
    share one threshold. Each task sums the ratios of the recordings in its chunk; the sums are
    merged in a tree.

    Parameters
    ----------
    frames
        Frames from :func:`open_frames`.
    models
        Computed result of :func:`enrol`.
    trials
        Trials, as from :func:`read_trials`.

    Returns
    -------
    scores
        Lazy result; ``.compute()`` returns the scores in nats per frame, shape (n_trials,).

    Raises
    ------
    InputError
        If there is no trial, or a model or a recording does not exist.

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
        raise InputError("trials=[]: give at least one.")
    universal = models.universal
    frames.samples.require_features(
        universal.n_features, "the universal mixture", universal.feature_names
    )
    numbers = {name: number for number, name in enumerate(models.names)}
    unknown = sorted({trial.model for trial in listed} - numbers.keys())
    if unknown:
        raise InputError(
            f"trials names {len(unknown)} models that are not enrolled, first {unknown[0]!r}; "
            f"choose from {first_few(models.names, 9)}."
        )
    claimed = [numbers[trial.model] for trial in listed]
    tested = frames.numbers(trial.test for trial in listed)
    of: dict[int, list[int]] = {}
    for number, file in enumerate(tested):
        of.setdefault(file, []).append(number)
    claims = {file: tuple(claimed[i] for i in positions) for file, positions in of.items()}
    reduction = Reduction(
        "score-trials",
        partial(_scores_of_chunk, models=models, claims=claims),
        _merge,
        partial(_scores, of=of, n_trials=len(listed)),
        uses_groups=True,
    )
    return LazyResult(frames.samples, reduction)


def _scores_of_chunk(
    rows: Any,
    weights: None,
    label: str,
    models: SpeakerModels,
    claims: _Claims,
    groups: NDArray[np.integer],
) -> _Sums:
    ratios: dict[tuple[int, ...], LikelihoodRatios] = {}
    scores: _Sums = {}
    for file, chosen in segments(groups):
        if file not in claims:
            continue
        claimed = claims[file]
        if claimed not in ratios:  # most recordings are claimed by the same speakers
            ratios = {claimed: LikelihoodRatios(models.universal, models.means[list(claimed)])}
        part = {file: (chosen.stop - chosen.start, ratios[claimed].total(rows[chosen]))}
        scores = _merge([scores, part])
    return scores


def _merge(parts: Iterable[_Sums]) -> _Sums:
    merged: _Sums = {}
    for part in parts:
        for file, (count, total) in part.items():
            before, sums = merged.get(file, (0, 0.0))
            merged[file] = (before + count, sums + total)
    return merged


def _scores(sums: _Sums, of: Mapping[int, Sequence[int]], n_trials: int) -> NDArray[np.float64]:
    scores = np.full(n_trials, np.nan)
    for file, positions in of.items():
        count, total = sums[file]
        scores[list(positions)] = total / count
    return scores
