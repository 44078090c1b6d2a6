"""Lists of trials: who is claimed to speak in which recording, and what was answered."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dask_sketch.errors import InputError

HEADER = ("model", "test", "target")
# of the third column of lists in use; numbers stand first in some
_KINDS = {"1": True, "0": False, "target": True, "nontarget": False, "impostor": False,
          "true": True, "false": False}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One question to a verifier.

    Attributes
    ----------
    model
        Who is claimed to speak.
    test
        The recording.
    target
        Whether that is so; ``None`` if the list does not tell.
    """

    model: str
    test: str
    target: bool | None = None


def read_trials(path: str | os.PathLike[str]) -> list[Trial]:
    r"""Read a list of trials.

    Three forms are understood: CSV with the header ``model,test,target``, whose last column may be
    missing; lines ``model test target`` with ``target`` or ``nontarget`` in the last place; and
    lines ``1 model test`` with 1 or 0 in the first.

    Parameters
    ----------
    path
        Of a text file in UTF-8.

    Returns
    -------
    trials
        In the order of the file.

    Raises
    ------
    InputError
        If there is no such file, a line is not understood, or a trial is listed twice; the message
        names the line.

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
                f"{name}:{number}: {line.strip()!r} is no trial; give model, test and one of "
                f"{', '.join(_KINDS)}."
            )
        if (trial.model, trial.test) in trials:
            raise InputError(f"{name}:{number}: {trial.model}, {trial.test} is listed twice.")
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
    """Write trials as CSV, with a column ``score`` if there are scores.

    Parameters
    ----------
    path
        Where to; an existing file is replaced.
    trials
        The trials.
    scores
        One for each trial, in nats; written so that they are read as the same numbers.
    """
    listed = list(trials)
    answers = [None] * len(listed) if scores is None else [float(score) for score in scores]
    if len(answers) != len(listed):
        raise InputError(
            f"scores has length {len(answers)}, trials {len(listed)}: give one for each."
        )
    told = any(trial.target is not None for trial in listed)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow((*HEADER[: 3 if told else 2], *(() if scores is None else ("score",))))
        for trial, score in zip(listed, answers, strict=True):
            kind = {True: "1", False: "0", None: ""}[trial.target]
            out.writerow(
                (trial.model, trial.test, *((kind,) if told else ()),
                 *(() if score is None else (repr(score),)))
            )  # fmt: skip


def read_enrolment(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Read which recordings each model is made from: lines ``model recording``, or such a CSV.

    Parameters
    ----------
    path
        Of a text file in UTF-8; a CSV has the header ``model,recording``.

    Returns
    -------
    recordings
        Of each model, in the order of the file.

    Raises
    ------
    InputError
        If there is no such file, or a line is not understood.
    """
    name = os.fspath(path)
    try:
        lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"enrolment {name!r} cannot be read: {error}") from error
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in next(csv.reader([line]))] if "," in line else line.split()
        if not cells or (
            number == 1 and [cell.lower() for cell in cells] == ["model", "recording"]
        ):
            continue
        if len(cells) != 2 or not all(cells):
            raise InputError(f"{name}:{number}: {line.strip()!r}; give a model and a recording.")
        found.setdefault(cells[0], []).append(cells[1])
    if not found:
        raise InputError(f"enrolment {name!r} is empty: give a model and a recording on each line.")
    return found
