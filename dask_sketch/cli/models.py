"""Commands that decode a model from a sketch, polish and score it on samples, and diagnose it."""

from __future__ import annotations

import time
from typing import Any

import click

from dask_sketch.cli.options import (
    CovarianceOption,
    NumberOrAuto,
    Run,
    cluster_options,
    device_option,
    examples,
    for_url,
    group_option,
    input_options,
    nan_option,
    numbers,
    output_options,
    refuse_existing,
    run_options,
    seed_option,
    storage_option,
    with_columns_of,
)
from dask_sketch.decoders.names import METHODS, MODELS, REFINEMENTS
from dask_sketch.display.text import describe
from dask_sketch.validation.warn import warn_user


@click.command(
    epilog=examples(
        "decode sketch.zarr -k 10 --refine efficient -o model.zarr",
        "decode sketch.zarr -k auto -o model.zarr",
        "decode sketch.zarr -k 64 --method splitting --variance-floor 0.3 -o model.zarr",
        "decode sketch.zarr -k 10 --model dirac -o centroids.zarr",
        "decode sketch.zarr -k 10 --covariance-type full -o model.zarr",
        "decode directions.zarr -k 10 --model von-mises-fisher -o model.zarr",
        "decode grown.zarr --start model.zarr -o new.zarr",
        "decode speakers.zarr --group ann -k 8 -o ann.zarr",
    )
)
@click.argument("sketch")
@output_options
@click.option("-k", "--n-components", type=NumberOrAuto(), metavar="K",
              help="Number of components, or auto for the number that explains the sketch best; by "
              "default as many as --start has, or found from the sketch by cl-omp.")  # fmt: skip
@click.option("--method", type=click.Choice(METHODS), help="Method; see above.")
@click.option("--model", type=click.Choice(MODELS), help="Type of the components; see above.")
@click.option("--covariance-type", type=CovarianceOption(), metavar="TYPE",
              help="Covariances of a mixture: variances of features (diag), one variance "
              "(spherical), one matrix (tied), a matrix for each component (full), or factors for "
              "each, such as three (low-rank:3).")  # fmt: skip
@click.option("--shared-alpha", is_flag=True,
              help="One alpha for all components of --model alpha-stable.")  # fmt: skip
@click.option("--refine", type=click.Choice(REFINEMENTS),
              help="Estimates near maximum likelihood, and standard errors.")  # fmt: skip
@click.option("--start", metavar="MODEL",
              help="Earlier model to start at, in place of a method.")  # fmt: skip
@click.option("--merge", is_flag=True, help="Merge components that coincide.")
@click.option("--bounds", type=click.Choice(["data"]),
              help="Keep the means within the range of the data.")  # fmt: skip
@click.option("--covariance", metavar="V,V,...", callback=numbers,
              help="Variance of each feature, for --model known.")  # fmt: skip
@click.option("--replicates", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Number of independent fits; the best is kept.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="Number of threads; by default one for each core, at most 16.")  # fmt: skip
@click.option("--variance-floor", type=float, metavar="F",
              help="Smallest variance of a component in a fit to the sketch, as a fraction of the "
              "variance that the feature map expects; 0.1 by default, 0.3 for data without "
              "clusters. Maximum likelihood is not bounded by it.")  # fmt: skip
@device_option
@group_option
@seed_option
@storage_option
@run_options
def decode(
    run: Run,
    sketch: str,
    output: str,
    overwrite: bool,
    group: str | None,
    n_components: int | str | None,
    start: str | None,
    variance_floor: float | None,
    storage_options: dict[str, Any] | None,
    **choices: Any,
) -> None:
    """Decode a mixture, or centroids, from SKETCH.

    Reads no data, and takes as long for a thousand samples as for a billion.

    \b
    Methods
      likelihood    maximum likelihood on the rows of the sketch, or the fit to the sketch if it
                    is as likely; the default with -k for a sketch with rows, and for mixtures
                    if `design` made its feature map, whose pilot takes the place of rows
      cl-ompr       the most reliable search; the default with -k for other mixtures
      cl-omp        without replacement; the default without -k, finds the number of components,
                    and makes no use of rows
      splitting     for many components and smooth densities
      iht           a baseline
      density       for centroids, the most precise without rows; with --model gaussian
                    for data that no mixture of K components fits, such as speech
      sketch-shift  for centroids, as published

    \b
    Models
      gaussian   a mean, and a variance for each feature; the default
      isotropic  a mean, and one variance
      known      a mean; all components have the variances of --covariance
      dirac      a point, for centroids; the default of their methods
      von-mises-fisher  a direction and a concentration, from a sketch of directions
      alpha-stable      a location, a scale for each feature and an index of stability: heavy tails
    """  # noqa: D301  (the backslash tells click to keep the line breaks)
    from dask_sketch.cli.open import open_one
    from dask_sketch.decoders.decode import decode as find_model
    from dask_sketch.models.open import open_model

    refuse_existing(output, overwrite, storage_options, sketch)
    source = open_one(sketch, group, storage_options=storage_options)
    if start is not None:
        choices["start"] = open_model(start, storage_options=for_url(start, storage_options))
    if variance_floor is not None:
        choices["variance_floor"] = variance_floor
    model: Any
    more: dict[str, Any] = {}
    if isinstance(n_components, str):
        from dask_sketch.diagnostics.model_selection import select_model

        types = (choices.pop("covariance_type", None) or "diag",)
        selection = select_model(source, covariance_types=types, **choices)
        model, more = selection.model, {"selection": selection.as_dict()}
    else:
        model = find_model(source, n_components, progress=run.progress, **choices)
    model.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, storage_options))
    values = model.as_dict()
    shown = describe(values)
    if more:
        tried = sorted(each["n_components"] for each in more["selection"]["candidates"])
        shown["selected"] = (
            f"{model.n_components} components of {', '.join(map(str, tried))} by "
            f"{more['selection']['criterion']}"
        )
    run.answer(values | more | {"output": output}, shown | {"written to": output})


@click.command(
    epilog=examples(
        "polish model.zarr frames.zarr -o better.zarr",
        "polish model.zarr frames.zarr --until-converged --tolerance 1e-5 -o best.zarr",
    )
)
@click.argument("model")
@click.argument("data")
@output_options
@click.option("--passes", type=click.IntRange(min=1), metavar="N",
              help="Number of passes over DATA; 2 by default.")  # fmt: skip
@click.option("--until-converged", is_flag=True,
              help="Pass until the gain is below --tolerance, at most 100 times.")  # fmt: skip
@click.option("--tolerance", type=float, default=1e-4, show_default=True, metavar="T",
              help="Gain of the last pass, in nats per row; for centroids, as a fraction of the "
              "error.")  # fmt: skip
@click.option("--variance-floor", type=float, default=1e-6, show_default=True, metavar="F",
              help="Smallest variance of a component, as a fraction of their mean.")  # fmt: skip
@nan_option
@input_options
@cluster_options
@run_options
def polish(
    run: Run,
    model: str,
    data: str,
    output: str,
    overwrite: bool,
    passes: int | None,
    until_converged: bool,
    input_arguments: dict[str, Any],
    **choices: Any,
) -> None:
    """Improve MODEL with further passes over the rows of DATA.

    Each pass is a step of expectation-maximisation for a mixture, or of Lloyd's algorithm for
    centroids. The result never fits the rows worse than MODEL, and has the same bits for every
    number of workers.
    """
    from dask_sketch.graph.polish import CONVERGED
    from dask_sketch.graph.polish import polish as improve
    from dask_sketch.models.open import open_model

    if passes is not None and until_converged:
        raise click.UsageError("give --passes or --until-converged, not both.")
    options = input_arguments["storage_options"]
    refuse_existing(output, overwrite, options)
    start: Any = open_model(model, storage_options=for_url(model, options))
    input_arguments = with_columns_of(start, input_arguments, data)
    with run.cluster():
        polished = improve(
            start,
            run.path(data),
            CONVERGED if until_converged else passes or 2,
            progress=run.progress,
            **choices,
            **input_arguments,
        )
    polished.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, options))
    values = polished.as_dict()
    run.answer(values | {"output": output}, describe(values) | {"written to": output})


@click.command(epilog=examples("score heldout.zarr model.zarr"))
@click.argument("data")
@click.argument("model")
@input_options
@cluster_options
@run_options
def score(run: Run, data: str, model: str, input_arguments: dict[str, Any]) -> None:
    """Score the fit of MODEL on the rows of DATA.

    For a mixture, the mean log-likelihood of a row, in nats; higher is better. For centroids, the
    mean squared distance of a row to the nearest one; lower is better.

    Rows with missing values count by the density of their other values, and are warned of, since
    they are not to be compared with complete rows.

    Compare models on the same rows only, and best on rows that they were not fitted to.
    """
    from dask_sketch.graph.apply import apply, count_missing
    from dask_sketch.graph.compute import compute_together
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.open import open_model

    options = input_arguments["storage_options"]
    fitted = open_model(model, storage_options=for_url(model, options))
    input_arguments = with_columns_of(fitted, input_arguments, data)
    if isinstance(fitted, Centroids):
        method, name, unit = "inertia", "mean squared distance", "squared units of the data"
    else:
        method, name, unit = "score", "mean log-likelihood", "nats per row"
    with run.cluster() as client:
        path = run.path(data)
        both = [
            apply(fitted, method, path, **input_arguments),
            count_missing(fitted, path, **input_arguments),
        ]
        start = time.perf_counter()
        total, (n_rows, incomplete, empty) = compute_together(both, client, run.progress, method)
        seconds = time.perf_counter() - start
    if incomplete:
        warn_user(
            f"{incomplete:,} of {n_rows:,} rows have missing values, {empty:,} of them no value at "
            "all: they count by the density of their other values, which is larger. Compare with "
            "scores of complete rows only where you leave such rows out."
        )
    result = float(total)
    key = "score" if method == "score" else "mean_squared_distance"
    counts = {"n_samples": n_rows, "incomplete": incomplete}
    run.answer(
        {key: result, "unit": unit, "seconds": seconds} | counts,
        {name: f"{result:.6g} {unit}", "samples": f"{n_rows:,}", "seconds": f"{seconds:.1f}"},
    )


@click.command(
    epilog=examples(
        "diagnose model.zarr sketch.zarr",
        "diagnose model.zarr sketch.zarr --heldout other.zarr",
    )
)
@click.argument("model")
@click.argument("sketch")
@click.option("--heldout", metavar="SKETCH",
              help="Sketch, with the same feature map, of samples that the model was not decoded "
              "from.")  # fmt: skip
@click.option("--theory", is_flag=True,
              help="Add what the theorems say: sizes, separation, isometry, bounds.")  # fmt: skip
@group_option
@storage_option
@run_options
def diagnose(
    run: Run,
    model: str,
    sketch: str,
    group: str | None,
    heldout: str | None,
    theory: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Diagnose the fit of MODEL from the SKETCH that it was decoded from.

    Ends with exit code 0 even if the fit is poor.
    """
    from dask_sketch.cli.open import open_one
    from dask_sketch.diagnostics.fit import diagnose as examine
    from dask_sketch.models.open import open_model
    from dask_sketch.sketching.open import open_sketch

    fitted: Any = open_model(model, storage_options=for_url(model, storage_options))
    seen = open_one(sketch, group, storage_options=storage_options)
    unseen = None
    if heldout is not None:
        unseen = open_sketch(heldout, storage_options=for_url(heldout, storage_options))
    diagnostics = examine(fitted, seen, unseen, theory=theory)
    run.answer(diagnostics.as_dict(), repr(diagnostics))
