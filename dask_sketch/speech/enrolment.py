"""Enrol speakers by adapting the means of a universal mixture to their frames."""

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
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import row_blocks
from dask_sketch.speech.frames import Frames, segments

RELEVANCE = 16.0  # default relevance factor, in frames


@dataclass(frozen=True, eq=False)
class AdaptationStatistics:
    """Mergeable sums over samples for maximum-a-posteriori adaptation of a mixture.

    Attributes
    ----------
    counts
        Sums ``sum_i p(k | x_i)``, shape (n_components,).
    sums
        Sums ``sum_i p(k | x_i) x_i``, shape (n_components, n_features).
    """

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]

    def __add__(self, other: AdaptationStatistics) -> AdaptationStatistics:
        return AdaptationStatistics(self.counts + other.counts, self.sums + other.sums)


def adaptation_statistics(x: ArrayLike, mixture: GaussianMixture) -> AdaptationStatistics:
    """Compute the statistics of samples in memory.

    Parameters
    ----------
    x
        Samples, shape (n_samples, n_features).
    mixture
        Mixture to be adapted.

    Raises
    ------
    InputError
        If the number of features differs, or a value is not finite.
    """
    counts, sums = np.zeros(mixture.n_components), np.zeros(mixture.means.shape)
    density = mixture.density()
    for block in row_blocks(x, mixture.n_features, mixture.n_components, mixture.feature_names):
        responsibilities = density.posterior(block)
        counts += responsibilities.sum(axis=0)
        sums += responsibilities.T @ block
    return AdaptationStatistics(counts, sums)


def adapt_means(
    mixture: GaussianMixture, statistics: AdaptationStatistics, relevance: float = RELEVANCE
) -> GaussianMixture:
    """Adapt the means of a mixture to the samples of a speaker.

    The mean of component ``k`` becomes ``a_k E_k[x] + (1 - a_k) mu_k`` with ``a_k = n_k / (n_k +
    relevance)``; weights and covariances do not change (Reynolds, Quatieri and Dunn, 2000, eqs. 12
    and 14).

    Parameters
    ----------
    mixture
        Universal mixture.
    statistics
        Statistics of one speaker, from :func:`adaptation_statistics`.
    relevance
        Number of samples of a component with the same influence as the universal mean, ``> 0``.

    Returns
    -------
    mixture
        Mixture of the speaker.

    Raises
    ------
    InputError
        If the statistics belong to another mixture, or ``relevance`` is not positive.

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
            f"{mixture.means.shape}: compute them with the same mixture."
        )
    if not 0 < relevance < np.inf:
        raise InputError(f"relevance={relevance!r}: give a positive number of samples.")
    # n / (n + r) times the mean of the samples is their sum over n + r, without division by zero
    total = statistics.counts[:, None] + relevance
    means = (statistics.sums + relevance * mixture.means) / total
    kind = mixture.covariance_type
    return GaussianMixture(
        mixture.weights, means, mixture.covariances, covariance_type=kind,
        feature_names=mixture.feature_names,
    )  # fmt: skip


__all__ = ["SpeakerModels", "enrol"]
_Sums = dict[int, AdaptationStatistics]  # statistics by the number of the model


@dataclass(frozen=True, eq=False)
class SpeakerModels:
    """Adapted mixtures of speakers, from :func:`enrol`.

    Attributes
    ----------
    universal
        Universal mixture.
    names
        Names of the speakers.
    means
        Adapted means, shape (n_models, n_components, n_features); weights and covariances are
        those of the universal mixture.
    counts
        Number of frames of each speaker in each component, shape (n_models, n_components).
    """

    universal: GaussianMixture
    names: tuple[str, ...]
    means: NDArray[np.float64]
    counts: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> GaussianMixture:
        """Mixture of one speaker."""
        if name not in self.names:
            raise InputError(
                f"name={name!r} is not an enrolled speaker; choose from "
                f"{', '.join(self.names[:9])}."
            )
        means = self.means[self.names.index(name)]
        of_all = self.universal
        kind = of_all.covariance_type
        return GaussianMixture(
            of_all.weights, means, of_all.covariances, covariance_type=kind,
            feature_names=of_all.feature_names,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<SpeakerModels: {len(self)} adapted from {self.universal.n_components} components>"


def enrol(
    frames: Frames,
    enrolment: Mapping[str, Sequence[str]],
    universal: GaussianMixture,
    relevance: float = RELEVANCE,
) -> LazyResult:
    """Adapt a universal mixture to each speaker, in one lazy pass over all frames.

    Each task computes the statistics of the speakers in its chunk (one expectation step). The
    statistics are merged in a tree, and the means are adapted once (Reynolds, Quatieri and Dunn,
    2000, eqs. 11 to 14).

    Parameters
    ----------
    frames
        Frames from :func:`open_frames`.
    enrolment
        Names of the recordings of each speaker, as from :func:`read_enrolment`.
    universal
        Universal mixture.
    relevance
        Number of frames of a component with the same influence as the universal mean, ``> 0``; 16
        is customary.

    Returns
    -------
    models
        Lazy result; ``.compute()`` returns :class:`SpeakerModels` in the order of ``enrolment``.

    Raises
    ------
    InputError
        If a recording does not exist or is listed twice, a speaker has none, or the mixture has
        other features.

    Notes
    -----
    The bits of the result do not depend on the number of workers. For other chunks the sums have
    another order, and the means agree to about 12 digits.

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
        raise InputError("enrolment={}: give the recordings of at least one speaker.")
    frames.samples.require_features(
        universal.n_features, "the universal mixture", universal.feature_names
    )
    claims: dict[int, list[int]] = {}
    for number, (name, recordings) in enumerate(enrolment.items()):
        if not recordings or len(set(recordings)) != len(recordings):
            raise InputError(
                f"enrolment[{name!r}] has {len(recordings)} recordings, {len(set(recordings))} of "
                "them different: give at least one, and each only once."
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
    sums: _Sums = {}
    for file, chosen in segments(groups):
        if file in claims:
            part = adaptation_statistics(rows[chosen], universal)
            for model in claims[file]:
                sums[model] = sums[model] + part if model in sums else part
    return sums


def merge_statistics(parts: Iterable[_Sums]) -> _Sums:
    """Merge the statistics of several chunks, speaker by speaker."""
    merged: _Sums = {}
    for part in parts:
        for model, sums in part.items():
            merged[model] = merged[model] + sums if model in merged else sums
    return merged


def _adapted(
    sums: _Sums, universal: GaussianMixture, names: tuple[str, ...], relevance: float
) -> SpeakerModels:
    each = [sums[number] for number in range(len(names))]
    means = [adapt_means(universal, statistics, relevance).means for statistics in each]
    return SpeakerModels(
        universal, names, np.stack(means), np.stack([statistics.counts for statistics in each])
    )
