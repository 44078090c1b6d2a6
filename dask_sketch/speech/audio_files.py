"""List audio files, with their names and speakers."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from dask_sketch.errors import InputError

__all__ = ["SPEAKER_IN_NAME", "Recording", "list_recordings", "speakers_of"]
SPEAKER_IN_NAME = r"_([^_]+)_"
"""Pattern of a speaker's name between the first two underscores: ``7_jackson_32.wav``."""
# Suffixes searched for in a folder; a glob or a list may name any file that soundfile reads.
_SUFFIXES = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au", ".sph"}


@dataclass(frozen=True)
class Recording:
    """Absolute path of an audio file, and its name relative to the common parent folder."""

    path: str
    name: str


def list_recordings(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> list[Recording]:
    """List audio files from a folder, a glob pattern or a sequence of paths.

    Parameters
    ----------
    files
        Folder, searched recursively; glob pattern, where ``**`` matches any number of folders; or
        sequence of paths. Files of folders and patterns are sorted by path; a sequence keeps its
        order.

    Returns
    -------
    list of Recording
        Recordings, at least one.

    Raises
    ------
    InputError
        If there is no file, or a path is listed twice.

    Examples
    --------
    >>> [recording.name for recording in list_recordings(["a/0_theo_1.wav", "b/1_lucas_1.wav"])]
    ['a/0_theo_1.wav', 'b/1_lucas_1.wav']
    """
    if isinstance(files, str | os.PathLike):
        paths = _search(Path(files))
        if not paths:
            raise InputError(
                f"files={os.fspath(files)!r} holds no audio file: give a folder with audio files "
                f"({', '.join(sorted(_SUFFIXES))}), a glob pattern or a list of paths."
            )
    else:
        paths = [Path(path).absolute() for path in files]
        if not paths:
            raise InputError("files is an empty list: give at least one audio file.")
    seen: set[Path] = set()
    for path in paths:
        if path in seen:
            raise InputError(f"files lists {str(path)!r} twice: give each file once.")
        seen.add(path)
    # Relative names make the store independent of the location of the files.
    above = os.path.commonpath([path.parent for path in paths])
    return [Recording(str(path), path.relative_to(above).as_posix()) for path in paths]


def _search(where: Path) -> list[Path]:
    if where.is_dir():
        paths = [path for path in where.rglob("*") if path.suffix.lower() in _SUFFIXES]
    elif where.exists():
        paths = [where]
    else:
        paths = [Path(path) for path in glob.iglob(str(where), recursive=True)]  # noqa: PTH207
    return sorted(path.absolute() for path in paths if path.is_file())


def speakers_of(recordings: list[Recording], speaker: str | Callable[[Path], str]) -> list[str]:
    """Name the speaker of each recording.

    Parameters
    ----------
    recordings
        Recordings.
    speaker
        Regular expression with one group, searched for in the file's name without its folders; or
        callable from the file's path to the speaker's name.

    Returns
    -------
    list of str
        Name of the speaker of each recording.

    Raises
    ------
    InputError
        If the expression has no group or is not found in a name, or the callable returns
        something other than a non-empty string.

    Examples
    --------
    >>> speakers_of([Recording("/audio/7_jackson_32.wav", "7_jackson_32.wav")], r"_([^_]+)_")
    ['jackson']
    """
    name_of = speaker if callable(speaker) else _search_name(speaker)
    names = []
    for recording in recordings:
        name = name_of(Path(recording.path))
        if not isinstance(name, str) or not name:
            raise InputError(
                f"speaker gives {name!r} for {recording.path!r} where a name is needed: give an "
                "expression whose group matches every file name, a callable, or speaker=None."
            )
        names.append(name)
    return names


def _search_name(expression: str) -> Callable[[Path], str]:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise InputError(f"speaker={expression!r}: give a regular expression ({error}).") from error
    if pattern.groups != 1:
        raise InputError(
            f"speaker={expression!r} has {pattern.groups} groups: put the part that names the "
            "speaker into one pair of parentheses."
        )

    def name_of(path: Path) -> str:
        match = pattern.search(path.name)
        return match.group(1) if match else ""

    return name_of
