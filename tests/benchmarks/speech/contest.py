"""Universal models from sketches and from all frames, by the errors that speakers' models make."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.diagnostics.comparison import fit_reference
from dask_sketch.diagnostics.detection import ErrorRates, error_rates, interval_of
from dask_sketch.display.text import text_table
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.speech.enrolment import enrol
from dask_sketch.speech.frames import Frames
from dask_sketch.speech.scoring import score_trials
from dask_sketch.speech.trials import Split, split_recordings
from dask_sketch.speech.ubm import expectation_maximization, universal_model

__all__ = ["Contest", "Entry", "compare_universal_models"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One way to make a universal model.

    Attributes
    ----------
    name
        Name of the system.
    rates
        Error rates in each split.
    seconds
        Processor time of the fit, all threads together, in each split.
    n_bytes
        Bytes that the fit needs once the frames are read.
    """

    name: str
    rates: tuple[ErrorRates, ...]
    seconds: tuple[float, ...]
    n_bytes: int

    @property
    def draws(self) -> NDArray[np.float64]:
        """Mean equal error rates over all splits, of the bootstrap's draws of speakers."""
        each = [rates.draws for rates in self.rates if rates.draws is not None]
        return np.asarray(np.mean(each, axis=0))

    @property
    def equal_error_rate(self) -> float:
        """Mean over all splits."""
        return float(np.mean([rates.equal_error_rate for rates in self.rates]))


@dataclass(frozen=True, eq=False)
class Contest:
    """Result of :func:`compare_universal_models`; prints as a table.

    Attributes
    ----------
    entries
        The last one is scikit-learn's.
    n_speakers, n_trials, n_frames
        Speakers; trials of one split; frames that enrol, in one split.
    """

    entries: tuple[Entry, ...]
    n_speakers: int
    n_trials: int
    n_frames: int

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "speakers": self.n_speakers,
            "trials": self.n_trials,
            "frames": self.n_frames,
            "entries": [
                {
                    "name": entry.name,
                    "equal_error_rates": [rates.equal_error_rate for rates in entry.rates],
                    "interval": interval_of(entry.draws),
                    "above_the_last": entry.equal_error_rate - self.entries[-1].equal_error_rate,
                    "interval_above_the_last": interval_of(entry.draws - self.entries[-1].draws),
                    "seconds": entry.seconds,
                    "bytes": entry.n_bytes,
                }
                for entry in self.entries
            ],
        }

    def __str__(self) -> str:
        last = self.entries[-1]
        rows = []
        for entry in self.entries:
            low, high = interval_of(100 * entry.draws)
            more, most = interval_of(100 * (entry.draws - last.draws))
            above = 100 * (entry.equal_error_rate - last.equal_error_rate)
            rows.append(
                (
                    entry.name,
                    f"{100 * entry.equal_error_rate:.2f}",
                    f"{low:.2f} to {high:.2f}",
                    "" if entry is last else f"{above:+.2f}",
                    "" if entry is last else f"{more:+.2f} to {most:+.2f}",
                    f"{np.median(entry.seconds):.1f}",
                    f"{entry.n_bytes:,}",
                )
            )
        header = ("universal model", "EER %", "95 %", "above EM", "95 %", "CPU s", "bytes")
        return "\n".join(
            [
                f"{self.n_speakers} speakers, {len(last.rates)} splits of {self.n_trials:,} trials,"
                f" universal models of {self.n_frames:,} frames",
                "",
                text_table(rows, header),
            ]
        )

    def plot(self, path: str | Path, title: str) -> None:
        """Write a picture of the DET curves of the first split (extra ``plot``)."""
        import matplotlib as mpl

        with mpl.rc_context({"figure.dpi": 120}):
            from matplotlib.figure import Figure

            figure = Figure(figsize=(5.5, 5.5), layout="constrained")
            axes = figure.add_subplot()
            for entry in self.entries:
                entry.rates[0].plot.det(axes, label=entry.name)
            axes.set_title(title)
            axes.legend()
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)


def compare_universal_models(
    frames: Frames,
    speakers: Sequence[str],
    n_components: int = 64,
    sizes: Sequence[int] = (1000, 10_000),
    n_splits: int = 5,
    *,
    seed: int = 0,
    say: Callable[[str], object] = lambda text: None,
) -> Contest:
    """Verify speakers with universal models from sketches, and from scikit-learn on all frames.

    In each split a random half of each speaker's recordings enrols the speaker. The universal model
    is fitted to these frames of all speakers; the other half is tested against everybody. Only the
    universal model differs between the entries: from the sketch alone, from it and one more pass
    over the frames, or from all of them in memory.

    Parameters
    ----------
    frames
        From :func:`open_frames`.
    speakers
        Who speaks in each of ``frames.recordings``.
    n_components
        Number of components of all universal models.
    sizes
        Numbers of frequencies.
    n_splits
        Random splits.
    seed
        Seed of splits, frequencies, decoders and scikit-learn.
    say
        Called with each line of the story.

    Returns
    -------
    contest

    Raises
    ------
    InputError
        If a speaker has fewer than two recordings, or there are fewer than two speakers.
    """
    results: dict[str, list[tuple[ErrorRates, float, int]]] = {}
    n_trials = n_frames = 0
    for number in range(n_splits):
        split = split_recordings(frames.recordings, speakers, seed=seed + number)
        rows = frames.of(split.enrolled).compute()  # for scikit-learn, which needs them in memory
        n_trials, n_frames = len(split.trials), len(rows)

        def judge(
            name: str,
            mixture: GaussianMixture,
            seconds: float,
            n_bytes: int,
            split: Split = split,
            number: int = number,
        ) -> None:
            models = enrol(frames, split.enrolment, mixture).compute()
            scores = score_trials(frames, models, split.trials).compute()
            rates = error_rates(
                scores,
                [bool(trial.target) for trial in split.trials],
                [trial.model for trial in split.trials],
                seed=seed,
            )
            results.setdefault(name, []).append((rates, seconds, n_bytes))
            say(f"split {number}, {name}: EER {100 * rates.equal_error_rate:.2f} %")

        for size in sizes:
            begun = time.process_time()
            with warnings.catch_warnings():
                # that so few frequencies may do badly is what is to be seen
                warnings.filterwarnings("ignore", "n_frequencies=", UserWarning)
                universal = universal_model(
                    frames, split.enrolled, n_components, size, seed=seed + number
                )
            n_bytes = universal.sketch.moment_quanta.nbytes
            mixture, name = universal.mixture, f"sketch, m={size:,}"
            seconds = time.process_time() - begun
            judge(name, mixture, seconds, n_bytes)
            begun = time.process_time()
            mixture = expectation_maximization(frames.of(split.enrolled), mixture, 1)
            seconds += time.process_time() - begun
            judge(f"{name}, and one step of EM", mixture, seconds, n_bytes)
        begun = time.process_time()
        mixture, _, _ = fit_reference(rows, n_components, seed + number)
        judge("scikit-learn EM", mixture, time.process_time() - begun, rows.nbytes)
    entries = []
    for name, found in results.items():
        each, spent, sizes_of = zip(*found, strict=True)
        entries.append(Entry(name, each, spent, sizes_of[0]))
    return Contest(tuple(entries), len(set(speakers)), n_trials, n_frames)
