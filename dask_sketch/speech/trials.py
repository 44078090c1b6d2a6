"""Read, write and generate lists of verification trials."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dask_sketch.errors import InputError
from dask_sketch.storage.local_files import replacing, write_errors

HEADER = ("model", "test", "target")
# values of the third column in common lists; numbers come first in some
_KINDS = {"1": True, "0": False, "target": True, "nontarget": False, "impostor": False,
          "true": True, "false": False}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """Trial of a verifier: a claimed speaker and a recording.

    Attributes
    ----------
    model
        Name of the claimed speaker.
    test
        Name of the recording.
    target
        Whether the claim is true; ``None`` if unknown.
    """

    model: str
    test: str
    target: bool | None = None


def read_trials(path: str | os.PathLike[str]) -> list[Trial]:
    r"""Read a list of trials.

    Three formats are accepted: CSV with the header ``model,test,target``, whose last column may be
    missing; lines ``model test target`` with ``target`` or ``nontarget`` in the last place; and
    lines ``1 model test`` with 1 or 0 in the first.

    Parameters
    ----------
    path
        Path of a text file in UTF-8.

    Returns
    -------
    trials
        Trials in the order of the file.

    Raises
    ------
    InputError
        If the file cannot be read, a line has another format, or a trial is listed twice; the
        message gives the number of the line.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "trials.txt"
    >>> _ = place.write_text("anna 7_anna_3.wav target\nanna 7_bert_1.wav nontarget\n")
    >>> read_trials(place)[1]
    Trial(model='anna', test='7_bert_1.wav', target=False)
    """
    name = os.fspath(path)
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"trials {name!r} cannot be read: {error}") from error
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"trials {name!r} is empty: give one trial on each line.")
    plain = "," not in rows[0][1]
    if not plain:
        head = tuple(cell.strip().lower() for cell in next(csv.reader([rows[0][1]])))
        if head not in (HEADER, HEADER[:2]):
            raise InputError(
                f"{name}:{rows[0][0]}: header {','.join(head)!r}; give {','.join(HEADER)!r}, or "
                "lines of three words."
            )
        rows = rows[1:]
    trials: dict[tuple[str, str], Trial] = {}
    for number, line in rows:
        cells = line.split() if plain else [cell.strip() for cell in next(csv.reader([line]))]
        trial = _trial(cells, plain)
        if trial is None:
            raise InputError(
                f"{name}:{number}: {line.strip()!r} is not a trial; give model, test and one of "
                f"{', '.join(_KINDS)}."
            )
        if (trial.model, trial.test) in trials:
            raise InputError(
                f"{name}:{number}: {trial.model}, {trial.test} is listed twice: give it once."
            )
        trials[trial.model, trial.test] = trial
    return list(trials.values())


def _trial(cells: Sequence[str], plain: bool) -> Trial | None:
    if not plain and len(cells) == 2 and all(cells):
        return Trial(cells[0], cells[1])
    if len(cells) != 3 or not all(cells):
        return None
    if plain and cells[0] in ("0", "1"):
        return Trial(cells[1], cells[2], cells[0] == "1")
    kind = _KINDS.get(cells[2].lower())
    return None if kind is None else Trial(cells[0], cells[1], kind)


def write_trials(
    path: str | os.PathLike[str], trials: Iterable[Trial], scores: Iterable[float] | None = None
) -> None:
    """Write trials as CSV, with a column ``score`` if scores are given.

    Parameters
    ----------
    path
        Path of the file; an existing file is replaced when the new one is complete.
    trials
        Trials to write.
    scores
        Score of each trial, in nats, written with full precision.
    """
    listed = list(trials)
    answers = [None] * len(listed) if scores is None else [float(score) for score in scores]
    if len(answers) != len(listed):
        raise InputError(
            f"scores has length {len(answers)}, trials {len(listed)}: give one for each."
        )
    labelled = any(trial.target is not None for trial in listed)
    with (
        write_errors(path),
        replacing(Path(path)) as new,
        new.open("w", newline="", encoding="utf-8") as file,
    ):
        out = csv.writer(file)
        out.writerow((*HEADER[: 3 if labelled else 2], *(() if scores is None else ("score",))))
        for trial, score in zip(listed, answers, strict=True):
            kind = {True: "1", False: "0", None: ""}[trial.target]
            out.writerow(
                (trial.model, trial.test, *((kind,) if labelled else ()),
                 *(() if score is None else (repr(score),)))
            )  # fmt: skip


def read_enrolment(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Read the recordings to enrol each model with: lines ``model recording``, or such a CSV.

    Parameters
    ----------
    path
        Path of a text file in UTF-8; a CSV has the header ``model,recording``.

    Returns
    -------
    recordings
        Names of the recordings of each model, in the order of the file.

    Raises
    ------
    InputError
        If the file cannot be read, or a line has another format.
    """
    name = os.fspath(path)
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"enrolment {name!r} cannot be read: {error}") from error
    recordings: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in next(csv.reader([line]))] if "," in line else line.split()
        if not cells or (
            number == 1 and [cell.lower() for cell in cells] == ["model", "recording"]
        ):
            continue
        if len(cells) != 2 or not all(cells):
            raise InputError(f"{name}:{number}: {line.strip()!r}; give a model and a recording.")
        recordings.setdefault(cells[0], []).append(cells[1])
    if not recordings:
        raise InputError(f"enrolment {name!r} is empty: give a model and a recording on each line.")
    return recordings


@dataclass(frozen=True)
class Split:
    """Recordings for enrolment and trials for testing.

    Attributes
    ----------
    enrolment
        Names of the recordings to enrol each speaker with, by the speaker's name.
    trials
        Trials of all other recordings against all speakers.
    """

    enrolment: dict[str, list[str]]
    trials: list[Trial]

    @property
    def enrolled(self) -> list[str]:
        """Names of all recordings used for enrolment."""
        return [name for names in self.enrolment.values() for name in names]


def split_recordings(
    recordings: Sequence[str], speakers: Sequence[str], fraction: float = 0.5, seed: int = 0
) -> Split:
    """Split the recordings of each speaker at random into enrolment and test.

    Parameters
    ----------
    recordings
        Names of the recordings.
    speakers
        Speaker of each recording.
    fraction
        Fraction of each speaker's recordings used for enrolment, in (0, 1); at least one recording
        is used for enrolment and at least one for testing.
    seed
        Seed of the split, ``>= 0``.

    Returns
    -------
    split
        Disjoint sets, independent of the order of the recordings.

    Raises
    ------
    InputError
        If lengths differ, ``fraction`` is out of range, there are fewer than two speakers, or a
        speaker has fewer than two recordings.

    Examples
    --------
    >>> split = split_recordings(["a1", "a2", "b1", "b2"], ["a", "a", "b", "b"])
    >>> {name: len(chosen) for name, chosen in split.enrolment.items()}, len(split.trials)
    ({'a': 1, 'b': 1}, 4)
    """
    if len(recordings) != len(speakers):
        raise InputError(f"{len(recordings)} recordings, {len(speakers)} speakers: give one each.")
    if not 0 < fraction < 1:
        raise InputError(f"fraction={fraction!r}: give a number between 0 and 1.")
    of: dict[str, list[str]] = {}
    for name, speaker in sorted(zip(recordings, speakers, strict=True)):
        of.setdefault(speaker, []).append(name)
    if len(of) < 2:
        raise InputError(f"speakers has {len(of)} different names: give at least two.")
    rng = np.random.default_rng(seed)
    enrolment: dict[str, list[str]] = {}
    tested: list[tuple[str, str]] = []
    for speaker, names in sorted(of.items()):
        if len(names) < 2:
            raise InputError(
                f"speaker {speaker!r} has {len(names)} recording: give at least two, for enrolment "
                "and for testing."
            )
        n_enrolled = min(max(round(fraction * len(names)), 1), len(names) - 1)
        order = rng.permutation(len(names))
        enrolment[speaker] = sorted(names[i] for i in order[:n_enrolled])
        tested += [(names[i], speaker) for i in sorted(order[n_enrolled:])]
    trials = [
        Trial(model, name, model == speaker) for name, speaker in sorted(tested) for model in of
    ]
    return Split(enrolment, sorted(trials, key=lambda trial: (trial.model, trial.test)))
