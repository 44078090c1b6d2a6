"""Voices made by the speech synthesiser espeak-ng, where recordings of many people are wanted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dask_sketch.errors import ArtifactError, InputError

try:
    import soundfile
except ImportError as error:
    raise ImportError(
        "generated voices need soundfile: pip install 'dask-sketch[speech]'"
    ) from error
__all__ = ["Voice", "draw_voices", "generate_voices", "synthesiser"]
# throats of the synthesiser that every version of it has, and accents with sounds of their own
_THROATS = (*(f"m{n}" for n in range(1, 8)), *(f"f{n}" for n in range(1, 6)))
_ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-029", "en-gb-x-rp", "en-gb-x-gbclan")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PITCH, _SPEED = (20, 80), (130, 190)  # of voices: of the synthesiser's 0 to 99, words per minute
_JITTER = (6, 12)  # of one recording's pitch and speed from its voice's, at most
_NOISE = (25.0, 40.0)  # dB of the speech above the noise of a recording
_MARK = "voices.json"
_SECONDS = 60.0  # for one word


@dataclass(frozen=True)
class Voice:
    """Settings of the synthesiser.

    Attributes
    ----------
    name
        As it stands in the names of files.
    throat, accent
        The synthesiser's variant and language.
    pitch
        0 to 99.
    speed
        Words per minute.
    """

    name: str
    throat: str
    accent: str
    pitch: int
    speed: int


def synthesiser() -> str | None:
    """Path of espeak-ng, or none where it is not installed."""
    return shutil.which("espeak-ng")


def draw_voices(n_voices: int = 64, seed: int = 0) -> list[Voice]:
    """Draw voices: throat and accent are different pairs, pitch and speed are anything.

    Parameters
    ----------
    n_voices
        From 2 to 72.
    seed
        Seed of the draw.

    Returns
    -------
    voices

    Raises
    ------
    InputError
        If there are not as many.

    Examples
    --------
    >>> len({(voice.throat, voice.accent) for voice in draw_voices(60)})
    60
    """
    pairs = [(throat, accent) for throat in _THROATS for accent in _ACCENTS]
    if not 2 <= n_voices <= len(pairs):
        raise InputError(f"n_voices={n_voices!r}: give a number from 2 to {len(pairs)}.")
    rng = np.random.default_rng(seed)
    return [
        Voice(f"v{number:02}", *pairs[place], *(int(rng.integers(*r)) for r in (_PITCH, _SPEED)))
        for number, place in enumerate(rng.permutation(len(pairs))[:n_voices])
    ]


def generate_voices(
    folder: str | os.PathLike[str], n_voices: int = 64, n_repeats: int = 5, seed: int = 0
) -> Path:
    """Let voices say the ten digits, as the people of the Free Spoken Digit Dataset do.

    Each recording has a pitch and a speed of its own, near those of its voice, and a noise of its
    own. Files are named ``{digit}_{voice}_{index}.wav``.

    Parameters
    ----------
    folder
        Folder to write to. Recordings that the same call made there before are kept.
    n_voices
        Number of voices, from 2 to 72.
    n_repeats
        Recordings of each digit by each voice, ``>= 1``.
    seed
        Seed of voices, pitches, speeds and noise. The same seed gives the same recordings, on one
        version of the synthesiser.

    Returns
    -------
    folder

    Raises
    ------
    InputError
        If espeak-ng is not installed or fails, or a number is out of range.
    ArtifactError
        If the folder holds something else.
    """
    if n_repeats < 1:
        raise InputError(f"n_repeats={n_repeats!r}: give a whole number of at least 1.")
    voices = draw_voices(n_voices, seed)
    program = synthesiser()
    if program is None:
        raise InputError("espeak-ng is not installed: install the package espeak-ng.")
    place = Path(folder)
    told = {
        "schema": "dask-sketch/voices/1", "seed": seed, "n_repeats": n_repeats,
        "voices": [asdict(voice) for voice in voices],
        "recording": {"jitter": _JITTER, "noise": _NOISE},
    }  # fmt: skip
    mark = json.dumps(told, indent=1)
    if (place / _MARK).is_file() and (place / _MARK).read_text(encoding="utf-8") == mark:
        return place
    if place.exists() and any(place.iterdir()):
        raise ArtifactError(
            f"{os.fspath(folder)!r} holds other files, or voices of other settings: give an empty "
            "folder."
        )
    place.mkdir(parents=True, exist_ok=True)
    jobs = [
        (voice, digit, index)
        for voice in voices
        for digit in range(len(_DIGITS))
        for index in range(n_repeats)
    ]
    with (
        tempfile.TemporaryDirectory() as spoken,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for _ in pool.map(lambda job: _record(program, Path(spoken), place, seed, *job), jobs):
            pass
    # last: a folder without it is not complete
    (place / _MARK).write_text(mark, encoding="utf-8")
    return place


def _record(
    program: str, spoken: Path, folder: Path, seed: int, voice: Voice, digit: int, index: int
) -> None:
    name = f"{digit}_{voice.name}_{index}.wav"
    # of the name, so that it does not depend on which other recordings are made
    words = np.frombuffer(hashlib.sha256(f"{seed}/{name}".encode()).digest(), dtype=np.uint32)
    rng = np.random.default_rng(words)
    pitch, speed = (
        value + int(rng.integers(-most, most + 1))
        for value, most in zip((voice.pitch, voice.speed), _JITTER, strict=True)
    )
    raw = spoken / name
    command = [
        program, "-v", f"{voice.accent}+{voice.throat}", "-p", str(pitch), "-s", str(speed),
        "-w", str(raw), _DIGITS[digit],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode or not raw.is_file():
        raise InputError(f"espeak-ng failed to say {name}: {done.stderr.strip()[:200]}")
    signal, rate = soundfile.read(raw)
    raw.unlink()
    soundfile.write(folder / name, _with_noise(signal, rng), rate)


def _with_noise(signal: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """White noise some way below the speech, whatever its loudness."""
    loudness = np.sqrt(np.mean(signal**2))
    below = 10.0 ** (-rng.uniform(*_NOISE) / 20.0)
    return np.clip(signal + rng.normal(0.0, loudness * below, len(signal)), -1.0, 1.0)
