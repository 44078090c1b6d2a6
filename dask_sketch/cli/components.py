"""Command that finds principal components: ``pca``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_sketch.cli.options import (
    Run,
    cluster_options,
    examples,
    for_url,
    input_options,
    missing_option,
    output_options,
    refuse_existing,
    run_options,
    seed_option,
    with_columns_of,
)
from dask_sketch.display.text import describe
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from dask_sketch.sketching.moment_grid import MomentGrid
    from dask_sketch.sketching.second_moments import SecondMoments


@click.command(
    epilog=examples(
        "pca spectra.zarr -k 20 -o components.zarr",
        "pca monday.zarr -k 20 -o components.zarr --moments monday-moments.zarr",
        "pca tuesday.zarr -k 20 -o components.zarr --like monday-moments.zarr --moments t.zarr",
        "merge monday-moments.zarr t.zarr -o both.zarr",
        "pca both.zarr -k 20 -o components.zarr",
    )
)
@click.argument("data")
@output_options
@click.option("-k", "--n-components", type=click.IntRange(min=1), metavar="K",
              help="Number of components; all by default.")  # fmt: skip
@click.option("--n-columns", type=click.IntRange(min=1), metavar="N",
              help="Columns of the random test matrix; by default all second moments of up to "
              "5,000 features, and 8 K columns for more.")  # fmt: skip
@click.option("--moments", metavar="PATH", help="Write the second moments too.")
@click.option("--like", metavar="PATH",
              help="Second moments to which --moments will be added.")  # fmt: skip
@missing_option
@input_options
@seed_option
@cluster_options
@run_options
def pca(
    run: Run,
    data: str,
    output: str,
    overwrite: bool,
    n_components: int | None,
    n_columns: int | None,
    moments: str | None,
    like: str | None,
    nan_policy: str,
    seed: int,
    input_arguments: dict[str, Any],
) -> None:
    """Find the principal components of DATA in one pass, and write them.

    DATA are rows, whose second moments are summed exactly; or second moments from --moments or
    `merge`, and then no rows are read. `predict` writes the coordinates of rows along the
    components.
    """
    from dask_sketch.cli.open import open_any
    from dask_sketch.decoders.leading_components import principal_components
    from dask_sketch.graph.design import design
    from dask_sketch.sketching.second_moments import SecondMoments

    options = input_arguments["storage_options"]
    if moments is not None and Path(moments).absolute() == Path(output).absolute():
        raise InputError(
            f"moments={moments!r}: is the path of the components too; give another one.",
            parameter="moments",
        )
    for path in filter(None, (output, moments)):
        refuse_existing(path, overwrite, options)
    grid = None if like is None else _grid_of(like, options)
    with run.cluster():
        if grid is not None:
            input_arguments = with_columns_of(grid, input_arguments, data)
        source = open_any(run.path(data), **input_arguments)
        summed: SecondMoments
        if isinstance(source, SecondMoments):
            for name, value in (("n_columns", n_columns), ("like", like), ("moments", moments)):
                if value is not None:
                    raise InputError(
                        f"{name}={value!r}: {data} holds second moments already; leave it out.",
                        parameter=name,
                    )
            summed = source
        else:
            if grid is None:
                grid = design(
                    source, task="pca", n_components=n_components, n_columns=n_columns, seed=seed,
                    nan_policy="available" if nan_policy == "available" else "omit",
                    progress=run.progress,
                )  # fmt: skip
            if grid.n_columns is not None and n_components is None:
                raise InputError(
                    f"n_components=None: {grid.n_columns} columns of the second moments are held; "
                    "give a number of components.",
                    parameter="n_components",
                )
            summed = _summed(run, source, grid, n_columns, nan_policy)
    model = principal_components(summed, n_components)
    model.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, options))
    written = {"output": output}
    if moments is not None:
        summed.to_zarr(moments, overwrite=overwrite, storage_options=for_url(moments, options))
        written["moments"] = moments
    values = model.as_dict()
    shown = describe(values) | {"omitted rows": f"{summed.omitted:,}", "written to": output}
    run.answer(values | {"omitted": summed.omitted} | written, shown)


def _grid_of(path: str, options: dict[str, Any] | None) -> MomentGrid:
    """Grid of stored second moments."""
    from dask_sketch.cli.open import open_any
    from dask_sketch.sketching.second_moments import SecondMoments

    artifact = open_any(path, storage_options=options)
    if not isinstance(artifact, SecondMoments):
        raise InputError(
            f"like={path!r} is of type {type(artifact).__name__}: give second moments, which "
            "`pca --moments` wrote.",
            parameter="like",
        )
    return artifact.grid


def _summed(
    run: Run, source: Any, grid: MomentGrid, n_columns: int | None, nan_policy: str
) -> SecondMoments:
    """Second moments of opened samples, in one pass."""
    from dask_sketch.graph.moments import second_moments

    lazy: Any = second_moments(source, like=grid, n_columns=n_columns, nan_policy=nan_policy)
    result: SecondMoments = lazy.compute(progress=run.progress)
    return result
