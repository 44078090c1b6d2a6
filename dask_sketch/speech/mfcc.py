"""Compute the MFCC frames of one audio file: voice activity, then mel-cepstra.

The features of the speaker-verification experiment of Keriven et al. 2018 (sections 6.1 and 6.2):
frames of 23 ms with 50 % overlap, frames without speech removed, twelve mel-frequency cepstral
coefficients per frame, the zeroth (the loudness) dropped. librosa does the signal processing; this
module aligns the voice activity with the cepstra, frame by frame, and bounds the memory.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm import TqdmWarning

from dask_sketch.errors import ChunkError, InputError, install_command

with warnings.catch_warnings():
    # librosa imports it, and it warns in a notebook without widgets
    warnings.simplefilter("ignore", TqdmWarning)
    import tqdm.auto  # noqa: F401
try:
    import librosa
    import soundfile
except ImportError as error:
    raise ImportError(
        f"the speech front end needs librosa and soundfile: {install_command('speech')}"
    ) from error
__all__ = ["FrontEnd", "active_frames", "mfcc", "mfcc_of_file", "n_frames_of", "read_audio"]
# Quantum of 16-bit audio. A file whose loudest frame is below it holds no sound at all; without
# this floor the threshold, which is relative to the loudest frame, would keep all of its frames.
_SILENCE = 2.0**-15
MAX_SAMPLES = 2**30  # samples of one file, all channels: 4 GiB
# Frames whose spectra are in memory at once. Blocks start at multiples of it from the start of the
# file, so that the bits of a frame do not depend on the frames requested.
_BLOCK = 8192


@dataclass(frozen=True)
class FrontEnd:
    """Parameters of the MFCC computation.

    Parameters
    ----------
    sample_rate
        Sampling rate of the cepstra in Hz. Files with a higher rate are resampled, files with a
        lower rate are refused.
    frame_seconds
        Length of a frame in seconds; frames overlap by 50 %.
    n_coefficients
        Number of coefficients per frame; the zeroth is dropped.
    top_db
        Threshold in dB: a frame is speech if its root mean square is less than this far below
        that of the loudest frame of its file. The default of 30 dB is the customary threshold for
        speech recorded at close range: it is above the background noise of such recordings
        (35 to 60 dB below the loudest frame) and keeps the unvoiced consonants (20 to 30 dB
        below).

    Raises
    ------
    InputError
        If a setting is out of range, or the frame is too short for the mel filters.

    Notes
    -----
    The number of mel filters is ``floor(3 ln(sample_rate))``, 26 at 8 kHz, and the window is
    Hamming's, as by default in the toolbox named by the paper. Filters act on the power
    spectrum, and the logarithm is in dB, so the features are in dB as well.

    Examples
    --------
    >>> front_end = FrontEnd()
    >>> front_end.frame_length, front_end.hop_length, front_end.n_filters
    (184, 92, 26)
    """

    sample_rate: int = 8000
    frame_seconds: float = 0.023
    n_coefficients: int = 12
    top_db: float = 30.0

    def __post_init__(self) -> None:
        if self.sample_rate < 1:
            raise InputError(f"sample_rate={self.sample_rate}: give a positive rate in Hz.")
        if not 0 < self.top_db < math.inf:
            raise InputError(f"top_db={self.top_db}: give a positive number of dB.")
        if not 0 < self.frame_seconds < math.inf:
            raise InputError(f"frame_seconds={self.frame_seconds}: give a positive duration.")
        if not 1 <= self.n_coefficients < self.n_filters:
            raise InputError(
                f"n_coefficients={self.n_coefficients}: give 1 to {self.n_filters - 1} at "
                f"sample_rate={self.sample_rate}."
            )
        if self.frame_length < 2 or not self._every_filter_has_a_bin():
            raise InputError(
                f"frame_seconds={self.frame_seconds} is too short for {self.n_filters} mel "
                f"filters at sample_rate={self.sample_rate}: take longer frames, such as 0.023"
            )

    @property
    def frame_length(self) -> int:
        """Number of audio samples per frame."""
        return round(self.frame_seconds * self.sample_rate)

    @property
    def hop_length(self) -> int:
        """Number of audio samples between the starts of consecutive frames."""
        return self.frame_length // 2

    @property
    def n_filters(self) -> int:
        """Number of filters of the mel filter bank."""
        return math.floor(3 * math.log(self.sample_rate))

    def _every_filter_has_a_bin(self) -> bool:
        edges = librosa.mel_frequencies(n_mels=self.n_filters + 2, fmax=self.sample_rate / 2)
        bins = librosa.fft_frequencies(sr=self.sample_rate, n_fft=self.frame_length)
        below = np.searchsorted(bins, edges[:-2], side="right")
        return bool(np.all(np.searchsorted(bins, edges[2:], side="left") > below))


def read_audio(path: str | os.PathLike[str], sample_rate: int) -> NDArray[np.float32]:
    """Read an audio file as one channel at a given rate, without its mean.

    Channels are averaged. A constant offset, which recorders add, is removed, because it would
    count as loudness.

    Parameters
    ----------
    path
        Path of a file in a format that soundfile reads (WAV, FLAC, OGG, MP3, AIFF, AU, NIST
        SPHERE...).
    sample_rate
        Rate of the result in Hz.

    Returns
    -------
    (n,) float32
        The signal, where full scale is 1.

    Raises
    ------
    ChunkError
        If the file cannot be read, has no samples, has NaN or infinite ones, or was recorded at
        a lower rate than asked for. The message names the file.
    """
    name = os.fspath(path)
    try:
        stated = soundfile.info(name)
        if stated.frames * stated.channels > MAX_SAMPLES:
            raise ChunkError(
                f"audio file {name!r} states {stated.frames:,} samples of {stated.channels} "
                f"channels, over {MAX_SAMPLES:,}: cut it into parts, or leave it out"
            )
        audio, rate = soundfile.read(name, dtype="float32")
    # soundfile raises TypeError for headerless audio, whose rate is unknown
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise ChunkError(f"audio file {name!r} cannot be read: {error}") from error
    if audio.shape[0] == 0:
        raise ChunkError(f"audio file {name!r} is empty: leave it out.")
    if rate < sample_rate:
        raise ChunkError(
            f"audio file {name!r} is recorded at {rate} Hz, below sample_rate={sample_rate}: its "
            f"upper bands would be empty; take sample_rate={rate} or leave the file out"
        )
    if not np.isfinite(audio).all():
        raise ChunkError(
            f"audio file {name!r} holds NaN or infinite samples: repair it, or leave it out."
        )
    signal: NDArray[np.float32] = librosa.to_mono(audio.T)
    if rate > sample_rate:
        signal = librosa.resample(signal, orig_sr=rate, target_sr=sample_rate)
    signal -= signal.mean(dtype=np.float64)
    return signal


def n_frames_of(signal: NDArray[np.float32], front_end: FrontEnd) -> int:
    """Count the whole frames of a signal, speech or not.

    Examples
    --------
    >>> n_frames_of(np.zeros(184 + 92, np.float32), FrontEnd())
    2
    """
    return max(0, 1 + (signal.size - front_end.frame_length) // front_end.hop_length)


def active_frames(signal: NDArray[np.float32], front_end: FrontEnd) -> NDArray[np.int64]:
    """Find the frames that hold speech, by their energy.

    Parameters
    ----------
    signal : (n,) float32
        Audio at ``front_end.sample_rate``.
    front_end
        Frame length and threshold.

    Returns
    -------
    (n_active,) int64
        Numbers of the frames kept, ascending. Frame ``i`` starts at audio sample
        ``i * hop_length`` and lies wholly inside of the signal.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal(920).astype(np.float32)
    >>> signal = np.concatenate([np.zeros(920, np.float32), noise])
    >>> active_frames(signal, FrontEnd())
    array([ 9, 10, 11, 12, 13, 14, 15, 16, 17, 18])
    """
    # librosa.effects.split centres its frames and returns intervals of samples. One decision per
    # frame of the cepstra needs the energy of exactly those frames.
    rms = np.empty(n_frames_of(signal, front_end), np.float32)
    for first, last, audio in _blocks(signal, front_end):
        rms[first:last] = librosa.feature.rms(
            y=audio,
            frame_length=front_end.frame_length,
            hop_length=front_end.hop_length,
            center=False,
        )[0]
    if rms.max(initial=0) < _SILENCE:
        return np.empty(0, np.int64)
    level = librosa.amplitude_to_db(rms, ref=np.max, top_db=None)
    return np.flatnonzero(level > -front_end.top_db)


def mfcc(
    signal: NDArray[np.float32], frames: NDArray[np.int64], front_end: FrontEnd
) -> NDArray[np.float32]:
    """Compute the mel-cepstra of chosen frames of a signal.

    Parameters
    ----------
    signal : (n,) float32
        Audio at ``front_end.sample_rate``.
    frames : (n_kept,) int64
        Frame numbers, ascending, such as :func:`active_frames` gives.
    front_end
        Frame length and number of coefficients.

    Returns
    -------
    (n_kept, n_coefficients) float32
        Coefficients 1 to ``n_coefficients`` in dB. They depend on the samples of their frame only.

    Examples
    --------
    >>> noise = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    >>> mfcc(noise, np.arange(5), FrontEnd()).shape
    (5, 12)
    """
    coefficients = np.empty((frames.size, front_end.n_coefficients), np.float32)
    for first, last, audio in _blocks(signal, front_end):
        low, high = np.searchsorted(frames, (first, last))
        if low == high:
            continue
        power = librosa.feature.melspectrogram(
            y=audio,
            sr=front_end.sample_rate,
            n_fft=front_end.frame_length,
            hop_length=front_end.hop_length,
            window="hamming",
            center=False,
            n_mels=front_end.n_filters,
        )
        # No top_db here: it would clip each frame at a level that depends on the other frames.
        cepstra = librosa.feature.mfcc(
            S=librosa.power_to_db(power, top_db=None), n_mfcc=front_end.n_coefficients + 1
        )
        coefficients[low:high] = cepstra[1:, frames[low:high] - first].T
    return coefficients


def _blocks(
    signal: NDArray[np.float32], front_end: FrontEnd
) -> Iterator[tuple[int, int, NDArray[np.float32]]]:
    n_frames = n_frames_of(signal, front_end)
    for first in range(0, n_frames, _BLOCK):
        last = min(first + _BLOCK, n_frames)
        end = (last - 1) * front_end.hop_length + front_end.frame_length
        yield first, last, signal[first * front_end.hop_length : end]


def mfcc_of_file(
    path: str | os.PathLike[str], front_end: FrontEnd | None = None
) -> NDArray[np.float32]:
    """Compute the features of one audio file: its speech frames, in order of time.

    The audio is held in memory, 115 MB per hour at 8 kHz; the spectra only in blocks of frames.

    Parameters
    ----------
    path
        Path of a file in a format that soundfile reads.
    front_end
        Parameters of the computation; ``FrontEnd()`` by default.

    Returns
    -------
    (n_frames, n_coefficients) float32
        Mel-frequency cepstral coefficients 1 to ``n_coefficients``, in dB.

    Raises
    ------
    ChunkError
        If the file cannot be read or has no speech frame. The message names the file.

    Examples
    --------
    >>> import tempfile
    >>> noise = 0.1 * np.random.default_rng(0).standard_normal(8000)
    >>> with tempfile.NamedTemporaryFile(suffix=".wav") as file:
    ...     soundfile.write(file.name, noise, 8000)
    ...     mfcc_of_file(file.name).shape
    (85, 12)
    """
    front_end = FrontEnd() if front_end is None else front_end
    signal = read_audio(path, front_end.sample_rate)
    frames = active_frames(signal, front_end)
    if frames.size == 0:
        raise no_speech(path, signal, front_end)
    return mfcc(signal, frames, front_end)


def no_speech(
    path: str | os.PathLike[str], signal: NDArray[np.float32], front_end: FrontEnd
) -> ChunkError:
    """Build the error for a file without a single speech frame."""
    if n_frames_of(signal, front_end) == 0:
        why = f"lasts {signal.size / front_end.sample_rate:.3g} s, less than one frame"
    else:
        why = "is silent from start to end"
    return ChunkError(f"audio file {os.fspath(path)!r} {why}: it has no features")
