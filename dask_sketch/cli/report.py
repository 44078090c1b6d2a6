"""Command that writes the report of a run, a sketch or a model as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_sketch.cli.jobs import with_codes
from dask_sketch.cli.options import Run, examples, refuse_existing_page, run_options, storage_option
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from dask_sketch.diagnostics.report import Section
    from dask_sketch.sketching.group import SketchGroup

DEFAULT = "report.html"
MAX_GROUPS = 50  # groups in the table of groups, at most
_RESULTS = ("sketch", "model")  # names of what commands leave in a folder beside data


@click.command(
    epilog=examples(
        "report job.toml",
        "report sketch.zarr --model model.zarr -o report.html",
        "report results/",
    )
)
@click.argument("run_", metavar="RUN")
@click.option("-o", "--output", metavar="HTML", type=click.Path(dir_okay=False),
              help="Path of the page; by default as in the job file.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an earlier page.")
@click.option("--model", metavar="PATH", help="Model that was decoded from the sketch RUN.")
@click.option("--heldout", metavar="PATH",
              help="Sketch, with the same feature map, of samples that the model was not decoded "
              "from.")  # fmt: skip
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
    """Write one HTML page on RUN: the data, the quality of the sketch and of the model, drift.

    RUN is a job file, for the last run of its ledger; a sketch or a model; or a folder that holds
    them. No data is read, and the page needs no network.
    """
    job = run_.lower().endswith(".toml")
    if output is not None or not job:  # each run replaces the report of its job
        refuse_existing_page(output or DEFAULT, overwrite)
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
    """Write the report of a run. No data is read.

    Parameters
    ----------
    run
        Path of a job file (``.toml``), for the last run of its ledger; of a stored sketch or
        model; or of a folder that holds a sketch, models or both, such as the folder of
        ``dask-sketch demo --directory``.
    output
        Path of the page: by default the path in the job file, else ``report.html``.
    model
        Path of the model of a sketch.
    heldout
        Path of a sketch, with the same feature map, of samples that the model was not decoded
        from.
    names
        Names of the features.
    storage_options
        Options of the file systems of URLs.
    command
        Command line that makes the page again.

    Returns
    -------
    path
        Path of the page.

    Raises
    ------
    InputError
        If ``run`` holds neither a sketch nor a model, or sketch and model do not fit.
    """
    if run.lower().endswith(".toml"):
        for name, value in (("model", model), ("heldout", heldout), ("names", names)):
            if value is not None:
                raise InputError(f"{name}={value!r}: leave it out, the ledger of the job knows it.")
        from dask_sketch.jobs.report import report_last_run

        return report_last_run(run, output)
    from dask_sketch.cli.open import open_any
    from dask_sketch.diagnostics.report import write_report
    from dask_sketch.models.centroids import Centroids
    from dask_sketch.models.gaussian_mixture import GaussianMixture
    from dask_sketch.sketching.group import SketchGroup
    from dask_sketch.sketching.sketch import Sketch

    paths = _paths(run)
    if model is not None:
        paths.append(model)
    artifacts = [open_any(path, storage_options=storage_options) for path in paths]
    sketch = _one("sketch", artifacts, paths, (Sketch, SketchGroup))
    fitted = _one("model", artifacts, paths, (GaussianMixture, Centroids))
    sections = []
    if isinstance(sketch, SketchGroup):
        sections, sketch = [_groups(sketch)], sketch.merged()
    if sketch is None and fitted is None:
        raise InputError(
            f"{run} holds neither a sketch nor a model: make them with `dask-sketch sketch` and "
            "`dask-sketch decode`. For a ledger, give the job file."
        )
    other = None if heldout is None else open_any(heldout, storage_options=storage_options)
    if other is not None and not isinstance(other, Sketch):
        raise InputError(f"heldout={heldout!r}: give the path of a sketch.")
    if other is not None and (sketch is None or fitted is None):
        raise InputError(f"heldout={heldout!r}: give a model and its sketch too, or leave it out.")
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
    """The path of a store, or the paths of the stores in a folder."""
    folder = Path(run)
    if "://" in run or not folder.is_dir() or (folder / "zarr.json").exists():
        return [run]
    paths = sorted(str(path) for path in folder.iterdir() if (path / "zarr.json").exists())
    return [path for path in paths if Path(path).name.partition(".")[0] in _RESULTS] or paths


def _groups(group: SketchGroup) -> Section:
    """Table of the largest groups, with the noise of their sketches."""
    import numpy as np

    from dask_sketch.diagnostics.report import Section

    largest = np.argsort(-group.count, kind="stable")[:MAX_GROUPS]
    rows = [
        (str(group.labels[i]), f"{group.count[i]:,}", f"{max(group.count[i], 1) ** -0.5:.2g}")
        for i in largest
    ]
    text = (
        f"There is one sketch for each of {len(group):,} groups; the rest of this page is about "
        f"all samples together. {'The largest groups:' if len(group) > MAX_GROUPS else ''}"
    )
    return Section("Groups", text, (group.dim, "samples", "noise of |z|"), rows)


def _one(kind: str, artifacts: list[Any], paths: list[str], types: tuple[type, ...]) -> Any:
    of_kind = [
        (path, artifact)
        for path, artifact in zip(paths, artifacts, strict=True)
        if isinstance(artifact, types)
    ]
    if len(of_kind) > 1:
        named = ", ".join(path for path, _ in of_kind)
        raise InputError(f"there are several of type {kind} ({named}): give the path of one.")
    return of_kind[0][1] if of_kind else None
