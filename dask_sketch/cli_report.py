"""The command that writes the report of a run: one page, complete in itself."""

from __future__ import annotations

import shlex
from typing import Any

import click

from dask_sketch.cli_jobs import with_codes
from dask_sketch.cli_options import Run, examples, refuse_existing_file, run_options, storage_option


@click.command(
    epilog=examples(
        "report job.toml",
        "report sketch.zarr --model model.zarr -o report.html",
        "report results/",
    )
)
@click.argument("run_", metavar="RUN")
@click.option("-o", "--output", metavar="HTML", type=click.Path(dir_okay=False),
              help="Where to write; by default as the job file says, or report.html.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what stands there.")
@click.option("--model", metavar="PATH", help="Model that was decoded from the sketch RUN.")
@click.option("--heldout", metavar="PATH",
              help="Sketch by the same map of samples that the model has not seen.")  # fmt: skip
@click.option("--names", metavar="A,B,...", help="Names of the features.")
@storage_option
@run_options
@with_codes
def report(
    run: Run,
    run_: str,
    output: str | None,
    overwrite: bool,
    model: str | None,
    heldout: str | None,
    names: str | None,
    storage_options: dict[str, Any] | None,
) -> None:
    """Write one HTML page on RUN: what was read, how good the sketch and the model are, drift.

    RUN is a job file, for the last run of its ledger; a sketch or a model; or a folder that holds
    them. No data is read, and the page needs no network.
    """
    from dask_sketch.reports import DEFAULT, report_run

    job = run_.lower().endswith(".toml")
    if output is not None or not job:  # that of a job is replaced by each run
        refuse_existing_file(output or DEFAULT, overwrite, None)
    options = {"--model": model, "--heldout": heldout, "--names": names, "-o": output}
    words = [word for name, value in options.items() if value for word in (name, value)]
    path = report_run(
        run_,
        output,
        model=model,
        heldout=heldout,
        names=None if names is None else [name.strip() for name in names.split(",")],
        storage_options=storage_options,
        command=shlex.join(["dask-sketch", "report", run_, *words]),
    )
    run.answer({"report": str(path)}, {"report": str(path)})
