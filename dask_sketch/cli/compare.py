"""Commands that compare distributions: ``compare`` and ``drift``."""

from __future__ import annotations

import shlex
import warnings
from typing import Any

import click

from dask_sketch.cli.jobs import ALARM, with_codes
from dask_sketch.cli.options import (
    Command,
    Run,
    examples,
    for_url,
    refuse_existing_file,
    run_options,
    seed_option,
    storage_option,
)


def level_options(function: Command) -> Command:
    """Add ``--level`` and ``--tolerance``."""
    function = click.option(
        "--tolerance",
        type=click.FloatRange(0, 2),
        metavar="D",
        help="Largest discrepancy, from 0 to 2, that does not matter.",
    )(function)
    return click.option(
        "--level",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        metavar="P",
        help="Chance to find a difference where there is none; 0.05 by default.",
    )(function)


@click.command(
    epilog=examples(
        "compare monday.zarr tuesday.zarr",
        "compare a.zarr b.zarr --report page.html",
        "compare a.zarr b.zarr --json",
    )
)
@click.argument("first")
@click.argument("second")
@click.option("--report", metavar="HTML", type=click.Path(dir_okay=False),
              help="Write the result as one page, with pictures.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what exists at the path of the page.")
@level_options
@seed_option
@storage_option
@run_options
def compare(
    run: Run,
    first: str,
    second: str,
    report: str | None,
    overwrite: bool,
    level: float | None,
    tolerance: float | None,
    seed: int,
    storage_options: dict[str, Any] | None,
) -> None:
    """Test whether FIRST and SECOND are of one distribution.

    Both are sketches of groups, as `sketch --by` writes them. Whole groups, such as days or
    speakers, are permuted between the two sides, so that rows of one group may depend on each
    other.
    """
    import dask_sketch as ds
    from dask_sketch.distributions import compare as compare_groups

    if report is not None:
        refuse_existing_file(report, overwrite, None)
    sides: list[Any] = [
        ds.open(path, storage_options=for_url(path, storage_options)) for path in (first, second)
    ]
    given = _given(level=level, tolerance=tolerance)
    with warnings.catch_warnings(record=True) as caught:
        found = compare_groups(*sides, **given, seed=seed)
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    page = {}
    if report is not None:
        from dask_sketch.distributions import write_comparison

        options = {"--level": level, "--tolerance": tolerance, "--seed": seed or None}
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        path = write_comparison(
            report,
            sides[0],
            sides[1],
            found,
            names=_names(first, second),
            seed=seed,
            source={"first": first, "second": second},
            warnings=[str(one.message) for one in caught],
            command=shlex.join(
                ["dask-sketch", "compare", first, second, *words, "--report", report]
            ),
        )
        page = {"report": str(path)}
    text = repr(found) + (f"\n\nreport  {report}" if page else "")
    run.answer(found.as_dict() | page, text)


def _names(first: str, second: str) -> tuple[str, str]:
    """Last parts of two paths, as many as they differ by."""
    parts = [path.rstrip("/").removesuffix(".zarr").split("/") for path in (first, second)]
    for n in range(1, max(map(len, parts))):
        names = ["/".join(part[-n:]) for part in parts]
        if names[0] != names[1]:
            return names[0], names[1]
    return first, second


@click.command(
    epilog=examples(
        "drift job.toml",
        'drift job.toml --window "7 days" --strata weekday',
        "drift nightly.ledger",
    )
)
@click.argument("job")
@click.option(
    "--window",
    metavar="N|TIME",
    help='Newest data: a number of runs, or a span of time such as "7 days".',
)
@click.option(
    "--reference",
    metavar="N|TIME",
    help="Data before that to compare with; by default all other partitions.",
)
@click.option(
    "--unit", type=click.Choice(["partition", "run"]), help="What is permuted as a whole."
)
@click.option(
    "--strata",
    type=click.Choice(["weekday"]),
    help="Compare partitions with those of the same day of the week.",
)
@click.option(
    "--serial", is_flag=True, default=None, help="Successive runs depend on each other; with runs."
)
@level_options
@seed_option
@storage_option
@run_options
@with_codes
def drift(
    run: Run,
    job: str,
    window: str | None,
    reference: str | None,
    unit: str | None,
    strata: str | None,
    serial: bool | None,
    level: float | None,
    tolerance: float | None,
    seed: int,
    storage_options: dict[str, Any] | None,
) -> None:
    """Test whether the newest data in the ledger of JOB differs from that before.

    JOB is a job file, whose table `[drift]` has the defaults, or the path or URL of a ledger. Ends
    with exit code 5 if there is a difference, and names the run of the last change.
    """
    from dask_sketch.jobs.since import since_when
    from dask_sketch.jobs.verify import drift_settings, open_named

    given = _given(
        window=_window(window),
        reference=_window(reference),
        unit=unit,
        strata=strata,
        serial=serial,
        level=level,
        tolerance=tolerance,
    )
    with open_named(job, storage_options) as ledger:
        settings = drift_settings(job) | given
        found = ledger.drift(**settings, seed=seed)
        since = None
        if found.is_different:
            unit, same = settings.get("unit", "partition"), settings.get("strata")
            dependent = settings.get("serial", False)
            since = since_when(ledger, unit, same, seed, serial=dependent)
    values = {"since": None if since is None else since.as_dict()}
    run.answer(found.as_dict() | values, repr(found) + ("" if since is None else f"\n\n{since}"))
    if found.is_different:
        raise click.exceptions.Exit(ALARM)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _window(text: str | None) -> int | str | None:
    """Convert digits to a number of runs."""
    return int(text) if text is not None and text.isdigit() else text
