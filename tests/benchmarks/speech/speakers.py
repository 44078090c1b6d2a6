"""Speaker verification of real recordings and of generated voices, by sketches and by EM.

``python -m tests.benchmarks.speech.speakers DATA`` runs it on a folder of audio files, and prints a
table for these and one for voices made by espeak-ng.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from dask_sketch.cli.options import Run, run_options, seed_option
from dask_sketch.diagnostics.comparison import require_extras
from dask_sketch.speech.audio_files import SPEAKER_IN_NAME, Recording, speakers_of
from dask_sketch.speech.frames import open_frames
from dask_sketch.speech.write import write_features
from tests.benchmarks.speech.contest import Contest, compare_universal_models
from tests.benchmarks.speech.voices import generate_voices, synthesiser

N_VOICES = 64


def run_speakers(
    data: str | Path | None,
    *,
    voices: str | Path | None = None,
    n_voices: int = N_VOICES,
    n_repeats: int = 5,
    pictures: str | Path = ".demo",
    n_components: int = 64,
    sizes: tuple[int, ...] = (1000, 10_000),
    n_splits: int = 5,
    seed: int = 0,
    say: Callable[[str], object] = lambda text: None,
) -> dict[str, Contest]:
    """Verify the speakers of a folder, and generated ones.

    Parameters
    ----------
    data
        Folder with audio files, whose names hold the speaker between the first two underscores;
        none to leave it out.
    voices
        Folder that keeps the generated recordings; deleted by default.
    n_voices, n_repeats
        As of :func:`generate_voices`; no voices for 0.
    pictures
        Folder for pictures of the DET curves.
    n_components, sizes, n_splits, seed, say
        As of :func:`compare_universal_models`.

    Returns
    -------
    contests
        By the name of the set; without the generated one where espeak-ng is missing.

    Raises
    ------
    InputError
        If there are too few recordings, or scikit-learn or matplotlib is missing.
    ChunkError
        If a recording cannot be used; the message names it.
    """
    require_extras()
    contests: dict[str, Contest] = {}
    with tempfile.TemporaryDirectory(prefix="dask-sketch-") as fresh:
        sets: dict[str, str | Path] = {} if data is None else {"recordings": data}
        if n_voices and synthesiser() is None:
            say("generated voices are skipped: espeak-ng is not installed")
        elif n_voices:
            say(f"{n_voices} voices saying the digits {n_repeats} times ...")
            folder = Path(fresh) / "voices" if voices is None else voices
            sets["generated voices"] = generate_voices(folder, n_voices, n_repeats, seed)
        for name, folder in sets.items():
            say(f"features of the {name} in {folder} ...")
            store = Path(fresh) / f"{len(contests)}.zarr"
            write_features(folder, store, on_error="raise")
            frames = open_frames(store)
            named = [Recording(file, file) for file in frames.recordings]
            contest = compare_universal_models(
                frames,
                speakers_of(named, SPEAKER_IN_NAME),
                n_components,
                sizes,
                n_splits,
                seed=seed,
                say=say,
            )
            contest.plot(Path(pictures) / f"det-{name.replace(' ', '-')}.png", name)
            say(f"\n{name}: {contest}\n")
            contests[name] = contest
    return contests


@click.command()
@click.argument("data", required=False)
@click.option("--voices", metavar="DIR", type=click.Path(file_okay=False),
              help="Keep the generated recordings here; deleted by default.")  # fmt: skip
@click.option("--n-voices", type=click.IntRange(min=0), default=N_VOICES, show_default=True,
              metavar="N", help="Generated voices; 0 for none.")  # fmt: skip
@click.option("--pictures", metavar="DIR", type=click.Path(file_okay=False), default=".demo",
              show_default=True, help="Where to write the DET curves.")  # fmt: skip
@click.option("-k", "--n-components", type=click.IntRange(min=1), default=64, show_default=True,
              metavar="K", help="Number of components.")  # fmt: skip
@click.option("-m", "--n-frequencies", "sizes", type=click.IntRange(min=1), multiple=True,
              default=(1000, 10_000), show_default=True, metavar="M",
              help="Size of the sketch; may be repeated.")  # fmt: skip
@click.option("--splits", "n_splits", type=click.IntRange(min=1), default=5, show_default=True,
              metavar="N", help="Random splits into enrolment and test.")  # fmt: skip
@seed_option
@run_options
def main(run: Run, **choices: Any) -> None:
    """Verify the speakers in the folder DATA and generated ones: errors, time and bytes."""
    contests = run_speakers(say=partial(click.echo, err=run.as_json), **choices)
    if run.as_json:
        click.echo(json.dumps({name: found.as_dict() for name, found in contests.items()}))


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks.speech.speakers")
