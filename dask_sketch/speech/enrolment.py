"""One model for each speaker: the universal mixture, its means moved to what the speaker said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_sketch.errors import InputError
from dask_sketch.graph.lazy import LazyResult
from dask_sketch.graph.reduction import Reduction
from dask_sketch.models.gaussian_mixture import GaussianMixture, RowDensity
from dask_sketch.models.model import row_blocks
from dask_sketch.speech.frames import Frames, segments

# Maximum-a-posteriori adaptation of a mixture's means to a few samples.
#
# The statistics of the samples are sums, and so merge as sketches do.

RELEVANCE = 16.0


@dataclass(frozen=True, eq=False)
class AdaptationStatistics:
    """Sums over samples that adapt a mixture.

    Attributes
    ----------
    counts
        ``sum_i p(k | x_i)``, shape (n_components,).
    sums
        ``sum_i p(k | x_i) x_i``, shape (n_components, n_features).
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]

    def __add__(self, other: AdaptationStatistics) -> AdaptationStatistics:
        return AdaptationStatistics(self.counts + other.counts, self.sums + other.sums)


def adaptation_statistics(x: ArrayLike, mixture: GaussianMixture) -> AdaptationStatistics:
    """Statistics of samples in memory.

    Parameters
    ----------
    x
        Shape (n_samples, n_features).
    mixture
        What is to be adapted.

    Raises
    ------
    InputError
        If the number of features is another, or a value is not finite.
    """
    counts, sums = np.zeros(mixture.n_components), np.zeros(mixture.means.shape)
    density = RowDensity(mixture.weights, mixture.means, mixture.covariances)
    for block in row_blocks(x, mixture.n_features, mixture.n_components):
        share = density.posterior(block)
        counts += share.sum(axis=0)
        sums += share.T @ block
    return AdaptationStatistics(counts, sums)


def adapt_means(
    mixture: GaussianMixture, statistics: AdaptationStatistics, relevance: float = RELEVANCE
) -> GaussianMixture:
    """One step towards the samples, where there are enough of them.

    Component ``k`` moves to ``a_k E_k[x] + (1 - a_k) mu_k`` with ``a_k = n_k / (n_k + relevance)``;
    weights and covariances stay (Reynolds, Quatieri and Dunn, 2000, eqs. 12 and 14).

    Parameters
    ----------
    mixture
        The universal model.
    statistics
        From :func:`adaptation_statistics`, of one speaker.
    relevance
        Samples of a component that count as much as the universal model, ``> 0``.

    Returns
    -------
    mixture
        Of the speaker.

    Raises
    ------
    InputError
        If the statistics are of another mixture, or the relevance is not positive.

    Examples
    --------
    >>> universal = GaussianMixture([0.5, 0.5], [[-9.0], [9.0]], [[1.0], [1.0]])
    >>> heard = adaptation_statistics(np.full((16, 1), 10.0), universal)
    >>> adapt_means(universal, heard, relevance=16.0).means.round(6).ravel()
    array([-9. ,  9.5])
    """
    if statistics.sums.shape != mixture.means.shape:
        raise InputError(
            f"statistics are of shape {statistics.sums.shape}, the means of the mixture "
            f"{mixture.means.shape}: make them with the same mixture."
        )
    if not 0 < relevance < np.inf:
        raise InputError(f"relevance={relevance!r}: give a positive number of samples.")
    # a n / (n + r) of the mean of the samples is their sum over n + r: nothing is divided by zero
    total = statistics.counts[:, None] + relevance
    means = (statistics.sums + relevance * mixture.means) / total
    return GaussianMixture(mixture.weights, means, mixture.covariances)


__all__ = ["SpeakerModels", "enrol"]
_Sums = dict[int, AdaptationStatistics]  # by the number of the model


@dataclass(frozen=True, eq=False)
class SpeakerModels:
    """What :func:`enrol` computes to.

    Attributes
    ----------
    universal
        The mixture that all were adapted from.
    names
        Of the speakers.
    means
        Shape (n_models, n_components, n_features); weights and covariances are the universal ones.
    counts
        Frames of each speaker in each component, shape (n_models, n_components).
    """

    universal: GaussianMixture
    names: tuple[str, ...]
    means: NDArray[np.float64]
    counts: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> GaussianMixture:
        """The mixture of one speaker."""
        if name not in self.names:
            raise InputError(f"there is no model {name!r}; there are {', '.join(self.names[:9])}.")
        means = self.means[self.names.index(name)]
        return GaussianMixture(self.universal.weights, means, self.universal.covariances)

    def __repr__(self) -> str:
        return f"<SpeakerModels: {len(self)} adapted from {self.universal.n_components} components>"


def enrol(
    frames: Frames,
    enrolment: Mapping[str, Sequence[str]],
    universal: GaussianMixture,
    relevance: float = RELEVANCE,
) -> LazyResult:
    """Adapt a universal mixture to each speaker, in one lazy pass over all frames.

    Each task adds up, for the speakers in its chunk, the frames that fall to each component (one
    expectation step). These sums merge as sketches do, speaker by speaker, in a tree; from the
    whole of them the means move once (Reynolds, Quatieri and Dunn, 2000, eqs. 11 to 14).

    Parameters
    ----------
    frames
        From :func:`open_frames`.
    enrolment
        Names of the recordings of each speaker, such as :func:`read_enrolment` gives.
    universal
        The universal mixture.
    relevance
        Frames of a component that count as much as the universal mean, ``> 0``. The default of 16
        is the customary one.

    Returns
    -------
    models
        Lazy: ``.compute()`` gives :class:`SpeakerModels`, in the order of ``enrolment``.

    Raises
    ------
    InputError
        If a recording is not there or listed twice, a speaker has none, or the mixture has other
        features.

    Notes
    -----
    Two runs over the same chunks give the same bits, however many workers there are. Other chunks
    add the same numbers in another order: the means then agree to 12 digits or so.

    Examples
    --------
    >>> from dask_sketch.speech import open_frames
    >>> frames = open_frames(np.full((16, 1), 10.0), ["anna_1"] * 16)
    >>> universal = GaussianMixture([0.5, 0.5], [[-9.0], [9.0]], [[1.0], [1.0]])
    >>> models = enrol(frames, {"anna": ["anna_1"]}, universal).compute()
    >>> models["anna"].means.round(6).ravel()
    array([-9. ,  9.5])
    """
    if not 0 < relevance < np.inf:
        raise InputError(f"relevance={relevance!r}: give a positive number of frames.")
    if not enrolment:
        raise InputError("enrolment is empty: give the recordings of at least one speaker.")
    frames.samples.require_features(universal.n_features, "the universal mixture")
    claims: dict[int, list[int]] = {}
    for number, (name, recordings) in enumerate(enrolment.items()):
        if not recordings or len(set(recordings)) != len(recordings):
            raise InputError(
                f"speaker {name!r} has {len(recordings)} recordings, {len(set(recordings))} of "
                "them different: give at least one, and each once."
            )
        for recording in frames.numbers(recordings):
            claims.setdefault(recording, []).append(number)
    reduction = Reduction(
        "enrol",
        partial(_statistics_of_chunk, universal=universal, claims=claims),
        merge_statistics,
        partial(_adapted, universal=universal, names=tuple(enrolment), relevance=relevance),
        uses_groups=True,
    )
    return LazyResult(frames.samples, reduction)


def _statistics_of_chunk(
    rows: Any,
    weights: None,
    label: str,
    universal: GaussianMixture,
    claims: Mapping[int, Sequence[int]],
    groups: NDArray[np.integer],
) -> _Sums:
    found: _Sums = {}
    for file, chosen in segments(groups):
        if file in claims:
            part = adaptation_statistics(rows[chosen], universal)
            for model in claims[file]:
                found[model] = found[model] + part if model in found else part
    return found


def merge_statistics(parts: Iterable[_Sums]) -> _Sums:
    """The sums of several chunks: of all speakers that are in one of them."""
    merged: _Sums = {}
    for part in parts:
        for model, sums in part.items():
            merged[model] = merged[model] + sums if model in merged else sums
    return merged


def _adapted(
    found: _Sums, universal: GaussianMixture, names: tuple[str, ...], relevance: float
) -> SpeakerModels:
    each = [found[number] for number in range(len(names))]
    means = [adapt_means(universal, statistics, relevance).means for statistics in each]
    return SpeakerModels(
        universal, names, np.stack(means), np.stack([statistics.counts for statistics in each])
    )
