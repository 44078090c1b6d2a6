"""Recordings dealt out at random: some to enrol each speaker with, the others to test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.speech.trials import Trial

__all__ = ["Split", "split_recordings"]


@dataclass(frozen=True)
class Split:
    """Which recordings enrol, and which are tested against whom.

    Attributes
    ----------
    enrolment
        Recordings of each speaker's model, by the speaker's name.
    trials
        Every other recording, claimed by every speaker.
    """

    enrolment: dict[str, list[str]]
    trials: list[Trial]

    @property
    def enrolled(self) -> list[str]:
        """All recordings that enrol somebody."""
        return [name for names in self.enrolment.values() for name in names]


def split_recordings(
    recordings: Sequence[str], speakers: Sequence[str], share: float = 0.5, seed: int = 0
) -> Split:
    """Deal out the recordings of each speaker.

    Parameters
    ----------
    recordings
        Names.
    speakers
        Who speaks, of each.
    share
        Part of each speaker's recordings that enrols, in (0, 1); at least one does, and at least
        one is left.
    seed
        Seed of the draw, ``>= 0``.

    Returns
    -------
    split
        Disjoint, and the same for any order of the recordings.

    Raises
    ------
    InputError
        If lengths differ, the share is no such number, there are fewer than two speakers, or one
        has fewer than two recordings.

    Examples
    --------
    >>> split = split_recordings(["a1", "a2", "b1", "b2"], ["a", "a", "b", "b"])
    >>> {name: len(chosen) for name, chosen in split.enrolment.items()}, len(split.trials)
    ({'a': 1, 'b': 1}, 4)
    """
    if len(recordings) != len(speakers):
        raise InputError(f"{len(recordings)} recordings, {len(speakers)} speakers: give one each.")
    if not 0 < share < 1:
        raise InputError(f"share={share!r}: give a number between 0 and 1.")
    of: dict[str, list[str]] = {}
    for name, speaker in sorted(zip(recordings, speakers, strict=True)):
        of.setdefault(speaker, []).append(name)
    if len(of) < 2:
        raise InputError(f"speakers names {len(of)}: at least two are needed, to tell them apart.")
    rng = np.random.default_rng(seed)
    enrolment: dict[str, list[str]] = {}
    tested: list[tuple[str, str]] = []
    for speaker, names in sorted(of.items()):
        if len(names) < 2:
            raise InputError(
                f"{speaker!r} has {len(names)} recording: two at least, to enrol with and to test."
            )
        n_enrolled = min(max(round(share * len(names)), 1), len(names) - 1)
        order = rng.permutation(len(names))
        enrolment[speaker] = sorted(names[i] for i in order[:n_enrolled])
        tested += [(names[i], speaker) for i in sorted(order[n_enrolled:])]
    trials = [
        Trial(model, name, model == speaker) for name, speaker in sorted(tested) for model in of
    ]
    return Split(enrolment, sorted(trials, key=lambda trial: (trial.model, trial.test)))
