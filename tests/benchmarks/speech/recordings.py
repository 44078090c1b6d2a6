"""Recordings to a mixture, and how well it describes recordings it has not heard.

``python -m tests.benchmarks.speech.recordings DATA`` runs it on a folder of audio files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr

from dask_sketch.cli.demo import Pipeline, bytes_of, working_folder
from dask_sketch.cli.options import Run, run_options, seed_option
from dask_sketch.diagnostics.comparison import (
    Comparison,
    Contender,
    fit_reference,
    require_extras,
)
from dask_sketch.diagnostics.report import write_report
from dask_sketch.errors import InputError
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.speech.audio_files import list_recordings
from dask_sketch.speech.write import write_features

HOLD_OUT = 5  # every fifth recording
N_SHOWN = 20_000


def run_recordings(
    data: str | Path,
    *,
    directory: str | Path | None = None,
    report: str | Path = ".demo/speech.html",
    n_components: int = 64,
    n_frequencies: int | None = None,
    seed: int = 0,
    progress: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Audio to features, sketch, mixture, comparison and report.

    Parameters
    ----------
    data
        Folder with audio files.
    directory
        Keep features, sketch and model here; deleted by default in the end.
    report
        Path of the report.
    n_components, n_frequencies
        Sizes; ``5 (2 d + 1) K`` frequencies by default.
    seed
        Seed of frequencies and decoder.
    progress
        Show progress on the standard error stream.
    say
        Called with each line of the story.

    Returns
    -------
    comparison
        Scores of ours, scikit-learn's and a single Gaussian on every fifth recording; the others
        are fitted to.

    Raises
    ------
    InputError
        If there are fewer than five recordings, or scikit-learn or matplotlib is missing.
    ChunkError
        If a recording cannot be used; the message names it.
    """
    require_extras()
    parts = _split(data)
    n_recordings = sum(map(len, parts.values()))
    with working_folder(directory, *parts) as folder:
        pipeline = Pipeline(folder, seed, progress, say)
        with pipeline.step("features", f"features of {n_recordings:,} recordings"):
            # speakers play no part here, so files may have any name
            summaries = {
                name: write_features(files, folder / name, speaker=None)
                for name, files in parts.items()
            }
        store = folder / "train.zarr"
        train = _rows(store)
        heldout = _rows(folder / "heldout.zarr")
        d = train.shape[1]
        size = n_frequencies or default_n_frequencies(d, n_components)
        fitted = pipeline.fit(store, n_components, size)
        with pipeline.step("scikit-learn", "fitting scikit-learn's to the same frames"):
            reference, seconds, n_iter = fit_reference(train, n_components, seed)
        moments = fitted.sketch.mean, fitted.sketch.variance
        single = GaussianMixture(np.ones(1), *(each[None] for each in moments))
        with pipeline.step("score", f"scoring on {len(heldout):,} frames of other recordings"):
            contenders = (
                Contender(
                    "ours",
                    fitted.model.score(heldout),
                    pipeline.fit_seconds,
                    f"one pass over {fitted.sketch.count:,} frames, then the sketch alone",
                ),
                Contender(
                    "scikit-learn",
                    reference.score(heldout),
                    seconds,
                    f"{n_iter} passes over the same frames in memory",
                ),
                Contender("one Gaussian", single.score(heldout), None, "from the same sketch"),
            )
        comparison = Comparison(
            contenders=contenders,
            n_heldout=len(heldout),
            store_bytes=bytes_of(store),
            sketch_bytes=bytes_of(folder / "sketch.zarr"),
            seconds=pipeline.seconds,
            report=str(report),
        )
        audio = sum(summary.seconds for summary in summaries.values())
        with pipeline.step("report", "writing the report"):
            write_report(
                report,
                fitted.sketch,
                fitted.model,
                title=f"{n_recordings:,} recordings to {n_components} Gaussians",
                source={
                    "source": str(data),
                    "recordings": f"{n_recordings:,}, every {HOLD_OUT}th held out",
                    "audio": f"{audio / 60:.1f} minutes",
                    "features": f"{d} mel-frequency cepstral coefficients, frames of 23 ms",
                },
                feature_map=fitted.feature_map,
                plan=fitted.plan,
                observed=fitted.observed,
                comparison=comparison,
                heldout=partial_sketch(heldout, fitted.feature_map),
                sample=heldout[:N_SHOWN],
                names=[f"c{k}" for k in range(1, d + 1)],
                command=f"python -m tests.benchmarks.speech.recordings {data} --seed {seed}",
            )
        say("")
    return comparison


def _split(data: str | Path) -> dict[str, list[str]]:
    """Paths of the recordings to fit to and of those held out, by the name of their store."""
    paths = [recording.path for recording in list_recordings(data)]
    if len(paths) < HOLD_OUT:
        raise InputError(
            f"data={str(data)!r} holds {len(paths)} recordings: give at least {HOLD_OUT}, of which "
            f"every {HOLD_OUT}th is held out."
        )
    held = set(range(HOLD_OUT - 1, len(paths), HOLD_OUT))
    return {
        "train.zarr": [path for i, path in enumerate(paths) if i not in held],
        "heldout.zarr": [path for i, path in enumerate(paths) if i in held],
    }


def _rows(store: Path) -> Any:
    """All features of a store, for the reference, which needs them in memory."""
    array: Any = zarr.open_group(store, mode="r")["features"]
    return array[:]


@click.command()
@click.argument("data")
@click.option("--directory", metavar="DIR", type=click.Path(file_okay=False),
              help="Keep features, sketch and model here; deleted by default.")  # fmt: skip
@click.option("--report", metavar="HTML", type=click.Path(dir_okay=False),
              default=".demo/speech.html", show_default=True,
              help="Where to write the report.")  # fmt: skip
@click.option("-k", "--n-components", type=click.IntRange(min=1), default=64, show_default=True,
              metavar="K", help="Number of components.")  # fmt: skip
@click.option("-m", "--n-frequencies", type=click.IntRange(min=1), metavar="M",
              help="Size of the sketch; 5(2d+1)K by default.")  # fmt: skip
@seed_option
@run_options
def main(run: Run, **choices: Any) -> None:
    """Fit a mixture to the recordings in the folder DATA and compare it on every fifth of them."""
    result = run_recordings(
        progress=run.progress, say=partial(click.echo, err=run.as_json), **choices
    )
    run.answer(result.as_dict(), str(result))


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks.speech.recordings")
