"""Speakers and words from one sketch a recording, beside means and deviations.

``python -m tests.benchmarks.spoken DATA``, part of ``make distributions`` with a folder of speech.
Recordings are files named ``word_speaker_take.wav``, as in the Free Spoken Digit Dataset. Whole
words, speakers or takes are left out of the fit; feature maps are of the recordings of the fit.
Frames that are normalised by speaker have the mean and deviations of all recordings of a speaker
taken off, those of the speaker who is left out included, without their labels. So have sums of
recordings in the last row. In the last two rows, maps do not depend on data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dask_sketch import FeatureMap, design, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import DistributionClassifier, DistributionFeatures, mean_embedding

Array = NDArray[np.float64]
_FOLDS, _LANDMARKS, _FREQUENCIES = 6, 1000, 500
_LEAST = 4  # frames of a recording
_LEAST_DEVIATION = 1e-9
_PLACE = 3.0  # length of a recording in the feature of its frames' places
_SLOPE, _COSINES = 4, 4  # frames on either side of a slope, and cosines of the place
_PARTS = 3  # of a recording, with moments of each
# for words of new speakers: scales of frames and slopes, and of places as shares of a recording
_FRAME_SCALE, _PLACE_SCALE, _PLACED_FREQUENCIES = 5.0, 0.5, 800
# for speakers: scales of frames alone, and of frames and slopes, each of half of the frequencies
_NARROW, _WIDE, _ABSENT, _VOICE_FREQUENCIES = 1.5, 4.0, 1e4, 4000
_VOICE_BANDWIDTH, _VOICE_RIDGE = 3.0, 1e-3


@dataclass(frozen=True)
class Recordings:
    """Frames of recordings, in units of their deviations, and what was said by whom.

    Attributes
    ----------
    frames
        Frames of each recording, shape (n_frames, n_features).
    words, speakers, takes
        Labels of each recording, shape (n_recordings,).
    """

    frames: list[Array]
    words: NDArray[np.str_]
    speakers: NDArray[np.str_]
    takes: NDArray[np.intp]

    def placed(self) -> list[Array]:
        """Frames with their place in the recording as one more feature."""
        return [np.c_[x, _PLACE * np.linspace(0.0, 1.0, len(x))] for x in self.frames]

    def sloped(self) -> list[Array]:
        """Frames with slopes as features, in units of their deviations."""
        found = [slopes(x) for x in self.frames]
        unit = np.concatenate(found).std(axis=0)
        return [np.c_[x, slope / unit] for x, slope in zip(self.frames, found, strict=True)]

    def normalised(self) -> list[Array]:
        """Frames normalised by speaker, with slopes and cosines of their places as features."""
        out: list[Array] = [np.empty(0)] * len(self.frames)
        for speaker in np.unique(self.speakers):
            ours = np.flatnonzero(self.speakers == speaker)
            rows = np.concatenate([self.frames[k] for k in ours])
            for k in ours:
                x = (self.frames[k] - rows.mean(axis=0)) / rows.std(axis=0)
                waves = np.outer(np.linspace(0.0, np.pi, len(x)), np.arange(1, _COSINES + 1))
                out[k] = np.hstack([x, slopes(x), np.cos(waves)])
        return out


def read(folder: Path, takes: range) -> Recordings:
    """Cepstra of some takes of each word and speaker."""
    from dask_sketch.speech import FrontEnd, mfcc_of_file

    files = [path for path in sorted(folder.glob("*.wav")) if int(_parts(path)[2]) in takes]
    found = {path: mfcc_of_file(path, FrontEnd(sample_rate=8000)) for path in files}
    found = {path: x.astype(float) for path, x in found.items() if len(x) >= _LEAST}
    unit = np.concatenate(list(found.values())).std(axis=0)
    word, speaker, take = (np.array(one) for one in zip(*map(_parts, found), strict=True))
    return Recordings([x / unit for x in found.values()], word, speaker, take.astype(np.intp))


def _parts(path: Path) -> list[str]:
    return path.stem.split("_")


def slopes(x: Array, width: int = _SLOPE) -> Array:
    """Slope of each feature by least squares over neighbouring frames, of the shape of frames."""
    padded = np.pad(x, ((width, width), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + 1, axis=0)
    steps = np.arange(-width, width + 1.0)
    return np.asarray(windows @ steps / (steps @ steps))


def moments_of(frames: list[Array], n_parts: int) -> Array:
    """Means and deviations of consecutive parts of recordings, side by side."""
    parts = [np.array_split(x, n_parts) for x in frames]
    return np.array(
        [np.ravel([[part.mean(axis=0), part.std(axis=0)] for part in one]) for one in parts]
    )


def placed_sketches(data: Recordings) -> Array:
    """Mean embeddings of recordings: of frames, slopes and places, normalised by speaker."""
    frames = [x[:, :-_COSINES] for x in data.normalised()]
    unit = _FRAME_SCALE * np.concatenate(frames).std(axis=0)
    placed = [np.c_[x / unit, np.linspace(0.0, 1.0, len(x)) / _PLACE_SCALE] for x in frames]
    scales = np.ones(placed[0].shape[1])
    return embeddings(placed, [scales], _PLACED_FREQUENCIES)


def voice_sketches(data: Recordings) -> Array:
    """Mean embeddings of recordings: of frames, with some frequencies also of slopes."""
    frames = data.sloped()
    half = np.full(frames[0].shape[1] // 2, _NARROW)
    scales = [np.r_[half, half + _ABSENT], np.full(2 * len(half), _WIDE)]
    return embeddings(frames, scales, _VOICE_FREQUENCIES)


def embeddings(frames: list[Array], scales: list[Array], n_frequencies: int) -> Array:
    """Mean embeddings by a map of known scales of each feature, shape (n_frames, n)."""
    feature_map = FeatureMap(
        frames[0].shape[1], n_frequencies, covariances=np.square(scales), distribution="gaussian"
    )
    number = np.repeat(np.arange(len(frames)), list(map(len, frames)))
    return mean_embedding(
        partial_sketch(np.concatenate(frames), feature_map, groups=number)
    ).to_numpy()


def by_speaker(points: Array, speakers: NDArray[np.str_], deviations: bool) -> Array:
    """Points less the mean of their speaker, and in units of the deviations of the speaker."""
    out = points.copy()
    for speaker in np.unique(speakers):
        ours = speakers == speaker
        out[ours] -= points[ours].mean(axis=0)
        if deviations:
            out[ours] /= np.maximum(points[ours].std(axis=0), _LEAST_DEVIATION)
    return out


def errors(
    frames: list[Array], y: NDArray[np.str_], left_out: NDArray[np.generic], landmarks: int
) -> list[float]:
    """Shares of wrong labels by grouped folds: by moments, moments of thirds, and sketches.

    Parameters
    ----------
    frames
        Frames of each recording.
    y
        Label to predict for each of them.
    left_out
        Group of each of them; those of one fold are predicted by a fit to the others.
    landmarks
        Number of landmarks.
    """
    moments = [moments_of(frames, 1), moments_of(frames, _PARTS)]
    rows, number = np.concatenate(frames), np.repeat(np.arange(len(y)), list(map(len, frames)))
    wrong = np.empty((3, len(y)), dtype=bool)
    for old, new in GroupKFold(min(_FOLDS, len(set(left_out)))).split(y, y, left_out):
        for k, given in enumerate(moments):
            wrong[k, new] = _by_moments(given, y, old, new) != y[new]
        feature_map = design(
            rows[np.isin(number, old)], task="comparison", n_frequencies=_FREQUENCIES, seed=0
        )
        group = partial_sketch(rows, feature_map, groups=number)
        model = DistributionClassifier(landmarks)
        model.fit(group.select(np.isin(group.labels, old)), y[old])
        wrong[2, new] = model.predict(group.select(np.isin(group.labels, new))) != y[new]
    return wrong.mean(axis=1).tolist()


def errors_of_new_voices(data: Recordings, landmarks: int) -> list[float]:
    """Shares of wrong speakers of new words, as :func:`errors`; moments are of slopes too.

    Parameters
    ----------
    data
        Recordings.
    landmarks
        Number of landmarks.
    """
    moments = [moments_of(data.sloped(), n) for n in (1, _PARTS)]
    points, y = voice_sketches(data), data.speakers
    layer = DistributionFeatures(landmarks, bandwidth=_VOICE_BANDWIDTH)
    model = make_pipeline(layer, RidgeClassifier(_VOICE_RIDGE))

    def predicted(old: NDArray[np.intp], new: NDArray[np.intp]) -> NDArray[np.str_]:
        return np.asarray(model.fit(points[old], y[old]).predict(points[new]))

    return _errors(moments, predicted, y, data.words)


def errors_of_new_speakers(data: Recordings, landmarks: int) -> list[float]:
    """Shares of wrong words of new speakers, as :func:`errors`, all normalised by speaker.

    Parameters
    ----------
    data
        Recordings.
    landmarks
        Number of landmarks.
    """
    moments = [moments_of(data.normalised(), n) for n in (1, _PARTS)]
    moments = [by_speaker(one, data.speakers, True) for one in moments]
    points = by_speaker(placed_sketches(data), data.speakers, False)
    model, y, speakers = DistributionClassifier(landmarks), data.words, data.speakers

    def predicted(old: NDArray[np.intp], new: NDArray[np.intp]) -> NDArray[np.str_]:
        # bandwidth and ridge are by speakers left out of the fit
        return np.asarray(model.fit(points[old], y[old], groups=speakers[old]).predict(points[new]))

    return _errors(moments, predicted, y, speakers)


def _errors(
    moments: list[Array],
    predicted: Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.str_]],
    y: NDArray[np.str_],
    left_out: NDArray[np.str_],
) -> list[float]:
    """Shares of wrong labels by moments, and as they are predicted by sketches, by folds."""
    wrong = np.empty((3, len(y)), dtype=bool)
    for old, new in GroupKFold(min(_FOLDS, len(set(left_out)))).split(y, y, left_out):
        for k, given in enumerate(moments):
            wrong[k, new] = _by_moments(given, y, old, new) != y[new]
        wrong[2, new] = predicted(old, new) != y[new]
    return wrong.mean(axis=1).tolist()


def _by_moments(
    given: Array, y: NDArray[np.str_], old: NDArray[np.intp], new: NDArray[np.intp]
) -> NDArray[np.str_]:
    """Predictions of a logistic regression on moments."""
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
    return np.asarray(plain.fit(given[old], y[old]).predict(given[new]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of recordings")
    parser.add_argument("--takes", type=int, default=20, help="number of each word and speaker")
    parser.add_argument("--first", type=int, default=0, help="first of these takes")
    parser.add_argument("--landmarks", type=int, default=_LANDMARKS)
    parser.add_argument("--only-new", action="store_true", help="the last rows alone")
    chosen = parser.parse_args()
    data = read(chosen.data, range(chosen.first, chosen.first + chosen.takes))
    takes = data.takes % _FOLDS
    cases = {
        "speaker, other words": (data.frames, data.speakers, data.words),
        "word, other takes": (data.frames, data.words, takes),
        "word, other takes, with places": (data.placed(), data.words, takes),
        "word, other speakers": (data.frames, data.words, data.speakers),
        "word, other speakers, with places": (data.placed(), data.words, data.speakers),
        "word, other speakers, normalised": (data.normalised(), data.words, data.speakers),
    }
    jobs = {name: partial(errors, *case) for name, case in cases.items()}
    last = {
        "speaker, other words, with slopes": partial(errors_of_new_voices, data),
        "word, other speakers, all normalised": partial(errors_of_new_speakers, data),
    }
    rows = []
    for name, job in (last if chosen.only_new else jobs | last).items():
        rows.append((name, *(f"{error:.1%}" for error in job(landmarks=chosen.landmarks))))
        click.echo(", ".join(rows[-1]), err=True)
    click.echo(f"{len(data.frames):,} recordings: wrong labels")
    header = ("label", "moments", "moments of thirds", "sketches")
    click.echo(text_table(rows, header=header))


if __name__ == "__main__":
    main()
