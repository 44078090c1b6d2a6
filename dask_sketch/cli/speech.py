"""Command that verifies speakers from lists of recordings.

``python -m dask_sketch.cli.speech STORE ENROLMENT TRIALS -o SCORES``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dask_sketch.cli.options import (
    Run,
    output_options,
    refuse_existing_file,
    run_options,
    seed_option,
)
from dask_sketch.diagnostics.detection import error_rates
from dask_sketch.errors import InputError
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.open import open_model
from dask_sketch.speech.enrolment import RELEVANCE, enrol
from dask_sketch.speech.frames import open_frames
from dask_sketch.speech.scoring import score_trials
from dask_sketch.speech.trials import read_enrolment, read_trials, write_trials
from dask_sketch.speech.ubm import universal_model


@click.command()
@click.argument("store")
@click.argument("enrolment")
@click.argument("trials")
@click.option("--universal", metavar="ZARR",
              help="Stored universal mixture; by default decoded from the enrolment.")  # fmt: skip
@click.option("-k", "--n-components", type=click.IntRange(min=1), default=64, metavar="K",
              show_default=True, help="Number of components of the universal mixture.")  # fmt: skip
@click.option("-m", "--n-frequencies", type=click.IntRange(min=1), metavar="M",
              help="Number of frequencies; 5(2d+1)K by default.")  # fmt: skip
@click.option("--relevance", type=float, default=RELEVANCE, show_default=True, metavar="N",
              help="Number of frames that weigh as much as the universal mean.")  # fmt: skip
@seed_option
@output_options
@run_options
def main(
    run: Run,
    store: str,
    enrolment: str,
    trials: str,
    universal: str | None,
    n_components: int,
    n_frequencies: int | None,
    relevance: float,
    seed: int,
    output: str,
    overwrite: bool,
) -> None:
    """Score the TRIALS of speakers in the list ENROLMENT, over the frames in STORE.

    Lists are CSV files (model,recording and model,test,target) or lines of words. Scores are a CSV
    file, in nats per frame. If TRIALS marks the target trials, the equal error rate is shown.
    """
    refuse_existing_file(output, overwrite, None, store, enrolment, trials)
    enrolled, listed = read_enrolment(enrolment), read_trials(trials)
    frames = open_frames(store)
    mixture = _mixture(universal)
    if mixture is None:
        names = sorted({name for part in enrolled.values() for name in part})
        mixture = universal_model(
            frames, names, n_components, n_frequencies, seed=seed, progress=run.progress
        ).mixture
    models = enrol(frames, enrolled, mixture, relevance).compute()
    scores = score_trials(frames, models, listed).compute()
    write_trials(Path(output), listed, scores)
    result: dict[str, Any] = {
        "models": len(models), "trials": len(listed), "components": mixture.n_components,
        "scores": output,
    }  # fmt: skip
    kinds = [trial.target for trial in listed if trial.target is not None]
    if len(kinds) == len(listed) and len(set(kinds)) == 2:
        rates = error_rates(scores, kinds, [trial.model for trial in listed])
        result |= {"equal_error_rate": rates.equal_error_rate, "interval": rates.interval}
    run.answer(result, {name.replace("_", " "): value for name, value in result.items()})


def _mixture(path: str | None) -> GaussianMixture | None:
    if path is None:
        return None
    mixture = open_model(path)
    if not isinstance(mixture, GaussianMixture):
        raise InputError(f"universal={path!r}: give the path of a mixture of Gaussians.")
    return mixture


if __name__ == "__main__":
    main(prog_name="python -m dask_sketch.cli.speech")
