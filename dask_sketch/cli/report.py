"""The command that writes the report of a run: one page, complete in itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from dask_sketch.cli.describe import open_any
from dask_sketch.cli.jobs import with_codes
from dask_sketch.cli.options import Run, examples, refuse_existing_file, run_options, storage_option
from dask_sketch.diagnostics.report import Section, write_report
from dask_sketch.errors import InputError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.group import SketchGroup
from dask_sketch.sketching.sketch import Sketch


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
    # import of this module itself

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


# The report of whatever a run has left: a job with its ledger, a sketch, a model, a folder.

DEFAULT = "report.html"
_MOST = 50  # groups that are listed
_KEPT = ("sketch", "model")  # what commands leave in a folder, beside data


def report_run(
    run: str,
    output: str | Path | None = None,
    *,
    model: str | None = None,
    heldout: str | None = None,
    names: Sequence[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    command: str = "",
) -> Path:
    """Write the report of a run, once more or for the first time. No data is read.

    Parameters
    ----------
    run
        A job file (``.toml``), for the last run of its ledger; a stored sketch or model; or a
        folder that holds a sketch, models or both, as ``dask-sketch demo --directory`` leaves.
    output
        Where to write: by default what the job file says, else ``report.html``.
    model
        Path of the model of a sketch.
    heldout
        Path of a sketch, by the same map, of samples that the model has not seen.
    names
        Names of the features.
    storage_options
        Of the file systems of URLs.
    command
        Command line that makes the page again.

    Returns
    -------
    path
        Of the report.

    Raises
    ------
    InputError
        If there is nothing to report on, or the parts do not fit.
    """
    if run.lower().endswith(".toml"):
        if (model, heldout, names) != (None, None, None):
            raise InputError("of a job, the ledger knows model and names: leave them out.")
        from dask_sketch.jobs.report import report_last_run

        return report_last_run(run, output)
    paths = _paths(run)
    if model is not None:
        paths.append(model)
    found = [open_any(path, storage_options=storage_options) for path in paths]
    sketch, fitted = (
        _one(found, paths, kinds) for kinds in ((Sketch, SketchGroup), (GaussianMixture, Centroids))
    )
    sections = []
    if isinstance(sketch, SketchGroup):
        sections, sketch = [_groups(sketch)], sketch.merged()
    if sketch is None and fitted is None:
        raise InputError(
            f"{run} holds neither a sketch nor a model. Make them with `dask-sketch sketch` and "
            "`dask-sketch decode`; of a ledger, give the job file."
        )
    other = None if heldout is None else open_any(heldout, storage_options=storage_options)
    if other is not None and not isinstance(other, Sketch):
        raise InputError(f"heldout: {heldout} is no sketch.")
    if other is not None and (sketch is None or fitted is None):
        raise InputError(f"heldout: {heldout} says something of a model beside its sketch only.")
    return write_report(
        output or DEFAULT,
        sketch,
        fitted,
        title=f"{Path(run).name or run}: a report",
        source={Path(path).name or path: path for path in paths},
        heldout=other,
        names=names,
        sections=sections,
        command=command,
    )


def _paths(run: str) -> list[str]:
    """The store itself, or the stores of a folder."""
    folder = Path(run)
    if "://" in run or not folder.is_dir() or (folder / "zarr.json").exists():
        return [run]
    paths = sorted(str(place) for place in folder.iterdir() if (place / "zarr.json").exists())
    return [path for path in paths if Path(path).name.partition(".")[0] in _KEPT] or paths


def _groups(group: SketchGroup) -> Section:
    """The largest groups of a sketch, and how well each is known."""
    largest = np.argsort(-group.count, kind="stable")[:_MOST]
    rows = [
        (str(group.labels[i]), f"{group.count[i]:,}", f"{max(group.count[i], 1) ** -0.5:.2g}")
        for i in largest
    ]
    text = (
        f"{len(group):,} groups have a sketch each; all else on this page is of all samples "
        f"together. {'The largest:' if len(group) > _MOST else ''}"
    )
    return Section("Groups", text, (group.dim, "samples", "noise of |z|"), rows)


def _one(found: list[Any], paths: list[str], kind: Any) -> Any:
    those = [(path, one) for path, one in zip(paths, found, strict=True) if isinstance(one, kind)]
    if len(those) > 1:
        named = ", ".join(path for path, _ in those)
        raise InputError(f"there are several of a kind ({named}): give one of them by its path.")
    return those[0][1] if those else None
