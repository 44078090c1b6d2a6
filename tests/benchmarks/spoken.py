"""Speakers and words from one sketch a recording, beside means and deviations.

``python -m tests.benchmarks.spoken DATA``, part of ``make distributions`` with a folder of speech.
Recordings are files named ``word_speaker_take.wav``, as in the Free Spoken Digit Dataset. Whole
words, speakers or takes are left out of the fit; feature maps are of the recordings of the fit.
Frames that are normalised by speaker have the mean and deviations of all recordings of a speaker
taken off, those of the speaker who is left out included, without their labels.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dask_sketch import design, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import DistributionClassifier, DistributionFeatures, mean_embedding

Array = NDArray[np.float64]
_FOLDS, _LANDMARKS, _FREQUENCIES = 6, 1000, 500
_LEAST = 4  # frames of a recording
_PLACE = 3.0  # length of a recording in the feature of its frames' places
_SLOPE, _COSINES = 4, 4  # frames on either side of a slope, and cosines of the place
_PARTS = 3  # of a recording, with moments of each
_RIDGE = 0.03  # of sketches with moments of thirds


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


def errors(
    frames: list[Array], y: NDArray[np.str_], left_out: NDArray[np.generic], landmarks: int
) -> tuple[float, float, float, float]:
    """Shares of wrong labels by grouped folds.

    They are those by moments, moments of thirds, sketches, and sketches with moments of thirds.

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
    wrong = np.empty((4, len(y)), dtype=bool)
    for old, new in GroupKFold(min(_FOLDS, len(set(left_out)))).split(y, y, left_out):
        for k, given in enumerate(moments):
            plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
            wrong[k, new] = plain.fit(given[old], y[old]).predict(given[new]) != y[new]
        feature_map = design(
            rows[np.isin(number, old)], task="comparison", n_frequencies=_FREQUENCIES, seed=0
        )
        group = partial_sketch(rows, feature_map, groups=number)
        model = DistributionClassifier(landmarks)
        model.fit(group.select(np.isin(group.labels, old)), y[old])
        wrong[2, new] = model.predict(group.select(np.isin(group.labels, new))) != y[new]
        # shrinkage is for independent samples, and frames depend on each other
        of_thirds = StandardScaler().fit(moments[1][old]).transform(moments[1])
        points = (mean_embedding(group).to_numpy(), of_thirds)
        layers = [DistributionFeatures(landmarks, shrink=False).fit(one[old]) for one in points]
        # features side by side, whose kernels add up
        both = np.hstack([one.transform(x) for one, x in zip(layers, points, strict=True)])
        model = DistributionClassifier(kernel="linear", alphas=(_RIDGE,))
        wrong[3, new] = model.fit(both[old], y[old]).predict(both[new]) != y[new]
    one, three, sketches, joined = wrong.mean(axis=1).tolist()
    return one, three, sketches, joined


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of recordings")
    parser.add_argument("--takes", type=int, default=20, help="number of each word and speaker")
    parser.add_argument("--first", type=int, default=0, help="first of these takes")
    parser.add_argument("--landmarks", type=int, default=_LANDMARKS)
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
    rows = []
    for name, case in cases.items():
        rows.append((name, *(f"{error:.1%}" for error in errors(*case, chosen.landmarks))))
        click.echo(", ".join(rows[-1]), err=True)
    click.echo(f"{len(data.frames):,} recordings: wrong labels")
    header = ("label", "moments", "moments of thirds", "sketches", "sketches, moments of thirds")
    click.echo(text_table(rows, header=header))


if __name__ == "__main__":
    main()
