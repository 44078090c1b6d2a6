"""Command line ``dask-sketch``, also ``dask sketch`` through the entry point of Dask.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed,
2 wrong usage, 3 refused by the plan; for 4 to 9, of jobs, see :mod:`dask_sketch.cli.jobs`.

The modules of this package import the library inside the commands, so that ``--help`` is fast.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import click

from dask_sketch.cli import compare, components, jobs, learn, models, release, report
from dask_sketch.cli.options import (
    Run,
    by_option,
    cluster_options,
    device_option,
    examples,
    for_url,
    input_options,
    map_option,
    missing_option,
    output_options,
    refuse_existing,
    refuse_existing_file,
    run_options,
    seed_option,
    size_options,
    storage_option,
    with_columns_of,
)
from dask_sketch.display.text import describe
from dask_sketch.errors import InputError
from dask_sketch.validation.choices import DISTRIBUTIONS, PCA, Task

TASK: Task = "mixture"  # the default


@click.group(
    "sketch",  # the name in the command line of Dask
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "design frames.zarr -k 64 -o map.json",
        "plan frames.zarr --map map.json",
        "sketch frames.zarr --map map.json -o sketch.zarr",
        "decode sketch.zarr -k 64 -o model.zarr",
        "polish model.zarr frames.zarr -o better.zarr",
        "score heldout.zarr model.zarr",
        "diagnose model.zarr sketch.zarr",
        "pca frames.zarr -k 10 -o components.zarr",
        "compare monday.zarr tuesday.zarr",
        "learn speakers.zarr --labels ages.csv -o ages.zarr",
        "run job.toml",
        "report job.toml",
    ),
)
@click.version_option(package_name="dask-sketch", prog_name="dask-sketch")
def cli() -> None:
    """Fit a mixture of Gaussians or centroids to data of any size in one pass.

    The data (a Zarr store, Parquet or CSV files) is read once and reduced to a sketch: sums of a
    few hundred kilobytes, and 20,000 random rows unless --sample 0. Models are decoded from the
    sketch, without the data. Sketches of parts of the data add up.

    `dask-sketch demo` shows all steps on simulated data. `dask-sketch run` repeats them every night
    on data that grows.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by the plan; `run --help` lists the codes
    of jobs.
    """


for command in (
    models.decode,
    models.polish,
    models.score,
    models.diagnose,
    components.pca,
    learn.learn,
    learn.predict,
    release.privatise,
    release.certificates,
    jobs.run,
    jobs.verify,
    jobs.history,
    jobs.forget,
    compare.compare,
    compare.compare_all,
    compare.compare_columns,
    compare.drift,
    report.report,
):
    cli.add_command(command)


def main() -> None:
    """Entry point of ``dask-sketch``."""
    cli(prog_name="dask-sketch")


@cli.command(
    epilog=examples(
        "plan frames.zarr -k 64", "plan frames.zarr --map map.json --calibrate --workers 2"
    )
)
@click.argument("data")
@map_option(moments=True)
@size_options
@input_options
@by_option
@missing_option
@click.option(
    "--memory-per-thread",
    metavar="SIZE",
    help="Memory to plan for, such as 2GiB; by default the memory that is available.",
)
@click.option("--calibrate", is_flag=True,
              help="Estimate the time too: reads a few chunks, computes for seconds.")  # fmt: skip
@cluster_options
@run_options
def plan(
    run: Run,
    data: str,
    map_path: str | None,
    n_components: int | None,
    n_frequencies: int | None,
    covariance_type: str | None,
    task: Task | None,
    nan_policy: str,
    memory_per_thread: str | None,
    calibrate: bool,
    input_arguments: dict[str, Any],
) -> None:
    """Estimate the cost of sketching DATA: tasks, bytes, memory. Reads no data.

    With --calibrate also the time, here or on the cluster, and whether the kernel, reading or the
    scheduler limits it.

    Ends with exit code 3 if a chunk does not fit in the memory of a thread.
    """
    import numpy as np

    from dask_sketch.cli.open import open_map
    from dask_sketch.features.design import default_n_frequencies
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.graph.design import columns_of_grid
    from dask_sketch.graph.plan import plan as make_plan
    from dask_sketch.sketching.moment_grid import MomentGrid
    from dask_sketch.sources.open import open_samples

    _require_size(map_path, n_components, n_frequencies, covariance_type, task)
    with run.cluster():
        if map_path is not None:
            feature_map = open_map(map_path, input_arguments["storage_options"])
            input_arguments = with_columns_of(feature_map, input_arguments, data)
        samples = open_samples(run.path(data), **input_arguments)
        if map_path is None:
            # the cost does not depend on the scale, so none is estimated
            d = samples.n_features
            assert d is not None  # known for every path
            if task == PCA:
                columns = columns_of_grid(d, None, n_components)
                pairwise = nan_policy == "available"
                feature_map = MomentGrid(np.zeros(d), np.ones(d), columns, pairwise=pairwise)
            else:
                m = n_frequencies or default_n_frequencies(
                    d, n_components or 1, task or TASK, covariance_type
                )
                feature_map = FeatureMap(d, m, scale=1.0)
        estimate = make_plan(
            samples, feature_map, nan_policy=nan_policy, memory_per_thread=memory_per_thread,
            calibrate=calibrate,
        )  # fmt: skip
    run.answer(estimate.as_dict(), str(estimate))


@cli.command(
    epilog=examples(
        "design frames.zarr -k 64 -o map.json", "design spectra.zarr --task pca -o grid.zarr"
    )
)
@click.argument("data")
@output_options
@size_options
@click.option("--scale", type=float, metavar="S",
              help="Standard deviation of a component; estimated by default.")  # fmt: skip
@click.option("--distribution", type=click.Choice(DISTRIBUTIONS),
              help="Distribution of the frequencies; by default as the task needs.")  # fmt: skip
@click.option("--whitening", type=click.Choice(["diagonal", "full"]),
              help="For features of different scales; `full` if they also correlate.")  # fmt: skip
@click.option("--normalize", is_flag=True,
              help="Divide each row by its length, for spherical k-means.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32",
              show_default=True, help="Precision of the pass; sums are float64.")  # fmt: skip
@seed_option
@input_options
@by_option
@partial(missing_option, default="omit")
@cluster_options
@run_options
def design(
    run: Run,
    data: str,
    output: str,
    overwrite: bool,
    n_components: int | None,
    n_frequencies: int | None,
    covariance_type: str | None,
    task: Task | None,
    input_arguments: dict[str, Any],
    **choices: Any,
) -> None:
    """Design a feature map for DATA from a few of its chunks, and write it as JSON.

    Sketches can only be merged if they have the same feature map. With --task pca, writes second
    moments of no rows, to which the moments of DATA can be added.
    """
    from dask_sketch.features.artifact import write_feature_map
    from dask_sketch.graph.design import design as make_map
    from dask_sketch.sketching.moment_grid import MomentGrid
    from dask_sketch.sketching.second_moments import SecondMoments

    _require_size(None, n_components, n_frequencies, covariance_type, task)
    options = input_arguments["storage_options"]
    if task == PCA:
        refuse_existing(output, overwrite, options)
    else:
        refuse_existing_file(output, overwrite, options, data,
                             kind="a feature map", marks=("dask-sketch/feature-map",))  # fmt: skip
    with run.cluster():
        feature_map: Any = make_map(
            run.path(data),
            n_frequencies=n_frequencies,
            n_components=n_components,
            covariance_type=covariance_type,
            task=task or TASK,
            progress=run.progress,
            **choices,
            **input_arguments,
        )
    if isinstance(feature_map, MomentGrid):
        empty = SecondMoments.empty(feature_map)
        empty.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, options))
    else:
        write_feature_map(output, feature_map, options)
    shown = describe(feature_map.as_dict()) | {"written to": output}
    run.answer(feature_map.as_dict() | {"output": output}, shown)


@cli.command(
    epilog=examples(
        "sketch frames.zarr -k 64 -o sketch.zarr",
        "sketch 'part-*.parquet' --map map.json -o sketch.zarr --workers 8",
        "sketch frames.zarr -k 8 --by speaker -o speakers.zarr",
        "sketch spectra.zarr --map grid.zarr -o moments.zarr",
    )
)
@click.argument("data")
@output_options
@map_option(moments=True)
@size_options
@input_options
@by_option
@missing_option
@click.option("--split-every", type=click.IntRange(min=2), metavar="N",
              help="Fan-in of a merge; 16 by default, 4 with --by.")  # fmt: skip
@click.option("--sample", type=click.IntRange(min=0), metavar="N",
              help="Random rows that the sketch carries; 20,000 by default. 0 keeps no row: the "
              "sketch then holds sums only.")  # fmt: skip
@click.option("--position", type=click.IntRange(min=0), default=0, metavar="N",
              help="Number of rows before DATA in all of the data. Sketches of parts that will be "
              "added then choose their random rows independently.")  # fmt: skip
@device_option
@seed_option
@cluster_options
@run_options
def sketch(
    run: Run,
    data: str,
    output: str,
    overwrite: bool,
    map_path: str | None,
    n_components: int | None,
    n_frequencies: int | None,
    covariance_type: str | None,
    task: Task | None,
    nan_policy: str,
    split_every: int | None,
    sample: int | None,
    position: int,
    device: str | None,
    seed: int,
    input_arguments: dict[str, Any],
) -> None:
    """Read DATA once and write its sketch.

    Uses the feature map of --map, which `design` wrote, or designs one for -k components first.
    With --by, makes one sketch for each label, in the same pass. With --task pca, or second moments
    as --map, writes second moments, from which `pca` finds the components.
    """
    from dask_sketch.cli.open import open_map
    from dask_sketch.graph.design import design as make_map
    from dask_sketch.graph.sketch import sketch as make_sketch
    from dask_sketch.sketching.moment_grid import MomentGrid

    _require_size(map_path, n_components, n_frequencies, covariance_type, task)
    options = input_arguments["storage_options"]
    refuse_existing(output, overwrite, options)
    with run.cluster():
        if map_path is not None:
            feature_map = open_map(map_path, options)
            input_arguments = with_columns_of(feature_map, input_arguments, data)
        else:
            feature_map = make_map(
                run.path(data),
                n_frequencies=n_frequencies,
                n_components=n_components,
                covariance_type=covariance_type,
                task=task or TASK,
                seed=seed,
                nan_policy="available" if nan_policy == "available" else "omit",
                **input_arguments,
            )
        if isinstance(feature_map, MomentGrid) and input_arguments["groups"] is not None:
            raise InputError(
                f"by={input_arguments['groups']!r}: second moments of groups are not stored "
                "together. Leave it out, or use a job with [groups].",
                parameter="groups",
            )
        lazy = make_sketch(
            run.path(data), feature_map, nan_policy=nan_policy, split_every=split_every,
            device=device, sample=sample, position=position, **input_arguments,
        )  # fmt: skip
        start = time.perf_counter()
        result = lazy.compute(progress=run.progress)
        seconds = time.perf_counter() - start
    result.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, options))
    shown = describe(result.as_dict() | {"feature_map": None})
    shown |= {"seconds": f"{seconds:.1f}", "written to": output}
    run.answer(result.as_dict() | {"seconds": seconds, "output": output}, shown)


@cli.command(epilog=examples("merge monday.zarr tuesday.zarr -o both.zarr"))
@click.argument("sketches", nargs=-1, required=True)
@output_options
@storage_option
@run_options
def merge(
    run: Run,
    sketches: tuple[str, ...],
    output: str,
    overwrite: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Add SKETCHES of parts of the data, exactly, to the sketch of all data.

    Sketches of groups are added label by label.
    """
    from dask_sketch.cli.open import open_any
    from dask_sketch.sketching.merge import merge as add
    from dask_sketch.storage.overwrite import local_path

    refuse_existing(output, overwrite, storage_options)
    local = [(path, local_path(path)) for path in sketches]
    resolved = [
        path.rstrip("/") if artifacts is None else str(artifacts.resolve())
        for path, artifacts in local
    ]
    for path, place in zip(sketches, resolved, strict=True):
        if resolved.count(place) > 1:
            raise InputError(f"{path} is given more than once, and its rows would count as often: "
                             "give each sketch once.", parameter="sketches")  # fmt: skip
    artifacts = [open_any(path, storage_options=storage_options) for path in sketches]
    result = add(artifacts)
    result.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, storage_options))
    shown = {"sketches": str(len(sketches))} | describe(result.as_dict() | {"feature_map": None})
    shown |= {"written to": output}
    run.answer({"sketches": len(sketches)} | result.as_dict() | {"output": output}, shown)


@cli.command(epilog=examples("info sketch.zarr"))
@click.argument("path")
@input_options
@run_options
def info(run: Run, path: str, input_arguments: dict[str, Any]) -> None:
    """Describe the sketch, model, feature map or data at PATH."""
    from dask_sketch.cli.open import open_any

    artifact = open_any(path, **input_arguments)
    values = artifact.as_dict()
    run.answer(values, describe(values))


@cli.command(epilog=examples("demo"))
@click.option("--directory", metavar="DIR", type=click.Path(file_okay=False),
              help="Folder to keep data, sketch and model in; none by default.")  # fmt: skip
@click.option("--report", metavar="HTML", type=click.Path(dir_okay=False),
              default=".demo/report.html", show_default=True,
              help="Path of the report.")  # fmt: skip
@click.option("--n-frames", type=click.IntRange(min=1000), default=2_000_000, show_default=True,
              metavar="N", help="Number of frames.")  # fmt: skip
@click.option("--n-components", type=click.IntRange(min=1), default=64, hidden=True)
@click.option("--n-frequencies", type=click.IntRange(min=1), default=None, hidden=True)
@seed_option
@run_options
def demo(run: Run, **choices: Any) -> None:
    """Run all steps on simulated data: speech-like frames to a mixture, and a report.

    Takes a few minutes. Writes a store of 2 million frames, sketches it on a local cluster, decodes
    64 Gaussians and compares them with the true ones and with scikit-learn's.
    """
    from dask_sketch.cli.demo import run_demo

    result = run_demo(progress=run.progress, log=partial(click.echo, err=run.as_json), **choices)
    run.answer(result.as_dict(), str(result))


def _require_size(
    map_path: str | None,
    n_components: int | None,
    n_frequencies: int | None,
    covariance_type: str | None,
    task: str | None,
) -> None:
    """Raise an error for options that leave the size of the sketch open, or give it twice."""
    sized = (map_path, n_components, n_frequencies) != (None, None, None)
    if not sized and task not in ("comparison", PCA):
        raise click.UsageError(
            "give the number of components (-k) or the number of frequencies (-m)."
        )
    given = (n_components, n_frequencies, covariance_type, task)
    if map_path is not None and given != (None,) * len(given):
        raise click.UsageError(
            "--map contains size and task: leave -k, -m, --covariance-type and --task out."
        )


if __name__ == "__main__":
    main()
