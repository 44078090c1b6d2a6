"""Commands that compare distributions: ``compare``, ``compare-all`` and others, and ``drift``."""

from __future__ import annotations

import shlex
import warnings
from typing import TYPE_CHECKING, Any

import click

from dask_sketch.cli.jobs import ALARM, with_codes
from dask_sketch.cli.learn import read_column
from dask_sketch.cli.options import (
    Command,
    Run,
    by_option,
    cluster_options,
    examples,
    for_url,
    input_options,
    is_same_place,
    map_option,
    nan_option,
    refuse_existing_page,
    run_options,
    seed_option,
    storage_option,
    with_columns_of,
)
from dask_sketch.errors import InputError

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import FeatureMap
    from dask_sketch.sketching.group import SketchGroup


def table_options(function: Command) -> Command:
    """Add ``--labels``, ``--key`` and ``--strata``."""
    function = click.option(
        "--strata",
        metavar="NAME",
        help="Column of the CSV file, such as weekday, within whose values units are permuted.",
    )(function)
    function = click.option(
        "--key", metavar="NAME", help="Column with the labels of the units; by default the first."
    )(function)
    return click.option(
        "--labels", metavar="CSV", help="File with a header, and one row for each unit."
    )(function)


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
        help="Probability of finding a difference where there is none; 0.05 by default.",
    )(function)


@click.command(
    epilog=examples(
        "compare monday.zarr tuesday.zarr",
        "compare a.zarr b.zarr --report page.html",
        "compare a.zarr b.zarr --labels days.csv --strata weekday",
    )
)
@click.argument("first")
@click.argument("second")
@click.option("--report", metavar="HTML", type=click.Path(dir_okay=False),
              help="Write the result as one page, with pictures.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an earlier page.")
@table_options
@click.option("--serial", is_flag=True,
              help="Neighbouring units depend on each other; the units of SECOND precede the "
              "units of FIRST.")  # fmt: skip
@click.option("--method", type=click.Choice(["permutation", "cross"]),
              help="Method of the test: permutations by default, or cross for three groups a side "
              "or more, whose permutations are too few.")  # fmt: skip
@click.option("--fold", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="SHARE",
              help="Share of the groups that choose the statistic; the other groups are tested "
              "with it.")  # fmt: skip
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
    labels: str | None,
    key: str | None,
    strata: str | None,
    serial: bool,
    method: str | None,
    fold: float | None,
    level: float | None,
    tolerance: float | None,
    seed: int,
    storage_options: dict[str, Any] | None,
) -> None:
    """Test whether FIRST and SECOND have the same distribution.

    Both are sketches of groups, as `sketch --by` writes them. Whole groups, such as days or
    speakers, are permuted between the two sides, so that rows of one group may depend on each
    other.
    """
    import dask_sketch as ds
    from dask_sketch.distributions import compare as compare_groups

    if is_same_place(first, second):
        raise InputError(f"{first} and {second} are one sketch: give two.", parameter="second")
    if report is not None:
        refuse_existing_page(report, overwrite)
    sides: list[Any] = [
        ds.open(path, storage_options=for_url(path, storage_options)) for path in (first, second)
    ]
    order: dict[str, Any] = {"strata": None, "serial": serial}
    if labels is not None or strata is not None or key is not None:
        order["strata"] = [
            one for side in sides for one in _strata(labels, side, key, strata, storage_options)
        ]
    given = _given(method=method, fold=fold, level=level, tolerance=tolerance)
    with warnings.catch_warnings(record=True) as caught:
        test = compare_groups(sides[0], sides[1], **given, **order, seed=seed)
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    page = {}
    if report is not None:
        from dask_sketch.distributions import write_comparison

        options = {"--labels": labels, "--key": key, "--strata": strata, "--method": method,
                   "--fold": fold, "--level": level, "--tolerance": tolerance,
                   "--seed": seed or None}  # fmt: skip
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        words += ["--serial"] if serial else []
        path = write_comparison(
            report,
            sides[0],
            sides[1],
            test,
            names=_names(first, second),
            **order,
            seed=seed,
            source={"first": first, "second": second},
            warnings=[str(one.message) for one in caught],
            command=shlex.join(
                ["dask-sketch", "compare", first, second, *words, "--report", report]
            ),
        )
        page = {"report": str(path)}
    text = repr(test) + (f"\n\nreport  {report}" if page else "")
    run.answer(test.as_dict() | page, text)


def _strata(
    labels: str | None,
    units: SketchGroup,
    key: str | None,
    strata: str | None,
    storage_options: dict[str, Any] | None,
) -> list[str]:
    """Read the stratum of each unit."""
    if labels is None:
        raise click.UsageError("give --labels: the CSV file with the column of the strata.")
    options = for_url(labels, storage_options)
    by_label = read_column(labels, units.labels, key, strata, options, name="strata")
    missing = next((label for label in units if label not in by_label), None)
    if missing is not None:
        raise InputError(
            f"labels={labels!r} has no row for the {units.dim} {missing!s}: add it, or leave the "
            "unit out of the sketches.",
            parameter="labels",
        )
    return [by_label[label] for label in units]


@click.command(
    "compare-all",
    epilog=examples(
        "compare-all files.zarr --labels files.csv --by machine",
        "compare-all days.zarr --labels days.csv --by machine --strata weekday --json",
    ),
)
@click.argument("units")
@table_options
@click.option("--by", metavar="NAME",
              help="Column with the group of each unit; by default the other one of two "
              "columns.")  # fmt: skip
@click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="P",
              help="Probability of finding a difference where there is none; 0.05 by default.",
              )  # fmt: skip
@seed_option
@storage_option
@run_options
def compare_all(
    run: Run,
    units: str,
    labels: str | None,
    key: str | None,
    by: str | None,
    strata: str | None,
    level: float | None,
    seed: int,
    storage_options: dict[str, Any] | None,
) -> None:
    """Test whether many groups of UNITS, which `sketch --by` wrote, have the same distribution.

    Units are files or days, whose rows may depend on each other; --labels tells the group of each,
    such as its machine. Units without a row are left out.
    """
    from dask_sketch.distributions import compare_all as compare_groups
    from dask_sketch.sketching.open import open_group

    if labels is None:
        raise click.UsageError("give --labels: the CSV file with the group of each unit.")
    sketches = open_group(units, storage_options=for_url(units, storage_options))
    options = for_url(labels, storage_options)
    groups = read_column(labels, sketches.labels, key, by, options, name="by")
    sketches = sketches.select([label in groups for label in sketches])
    same = None if strata is None else _strata(labels, sketches, key, strata, storage_options)
    test = compare_groups(
        sketches,
        [groups[label] for label in sketches],
        strata=same,
        **_given(level=level),
        seed=seed,
    )
    run.answer(test.as_dict(), repr(test))


def _names(first: str, second: str) -> tuple[str, str]:
    """Last parts of two paths, from the first one that differs."""
    parts = [path.rstrip("/").removesuffix(".zarr").split("/") for path in (first, second)]
    for n in range(1, max(map(len, parts))):
        names = ["/".join(part[-n:]) for part in parts]
        if names[0] != names[1]:
            return names[0], names[1]
    return first, second


@click.command(
    "compare-columns",
    epilog=examples(
        "compare-columns frames.parquet --first pitch,energy --by day",
        "compare-columns frames.zarr --first 0,1 --by speaker --map map.json",
    ),
)
@click.argument("data")
@click.option("--first", metavar="A,B,...", required=True,
              help="Names or numbers of the columns of the first set; the other features are the "
              "second.")  # fmt: skip
@map_option(moments=False)
@click.option("-m", "--n-frequencies", type=click.IntRange(min=1), metavar="M",
              help="Number of frequencies of a designed feature map; 512 by default.")  # fmt: skip
@input_options
@by_option
@nan_option
@click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="P",
              help="Probability of finding a dependence where there is none; 0.05 by default.",
              )  # fmt: skip
@seed_option
@cluster_options
@run_options
def compare_columns(
    run: Run,
    data: str,
    first: str,
    map_path: str | None,
    n_frequencies: int | None,
    nan_policy: str,
    level: float | None,
    seed: int,
    input_arguments: dict[str, Any],
) -> None:
    """Test whether two sets of columns of DATA are independent, in one pass.

    Each label of --by is a unit, such as a day or a speaker, whose rows may depend on each other.
    """
    from dask_sketch.distributions import compare_columns as compare_sketches
    from dask_sketch.distributions import split_columns
    from dask_sketch.graph.compute import active_client, compute_together
    from dask_sketch.graph.design import design
    from dask_sketch.graph.sketch import sketch
    from dask_sketch.sources.open import open_samples

    if input_arguments["groups"] is None:
        raise click.UsageError("give --by: the column or array with the unit of each row.")
    if map_path is not None and n_frequencies is not None:
        raise click.UsageError("--map contains the number of frequencies: leave -m out.")
    with run.cluster():
        if map_path is not None:
            feature_map = _map_of_sketches(map_path, input_arguments["storage_options"])
            input_arguments = with_columns_of(feature_map, input_arguments, data)
        samples = open_samples(run.path(data), **input_arguments)
        if map_path is None:
            feature_map = design(
                samples, n_frequencies=n_frequencies, task="comparison", nan_policy="omit",
                seed=seed,
            )  # fmt: skip
        try:
            split = split_columns(samples, _columns(first, feature_map), feature_map)
        except InputError as error:
            if error.parameter == "columns":  # the argument of split_columns, not --columns
                raise InputError(str(error), parameter="first") from error
            raise
        lazy = [sketch(source, feature_map, nan_policy=nan_policy) for source in (samples, *split)]
        groups = compute_together(lazy, active_client(), run.progress, "sketch")
    test = compare_sketches(*groups, **_given(level=level), seed=seed)
    run.answer(test.as_dict(), repr(test))


def _map_of_sketches(path: str, storage_options: dict[str, Any] | None) -> FeatureMap:
    """Open a feature map, or the feature map of a sketch."""
    from dask_sketch.cli.open import open_map
    from dask_sketch.features.feature_map import FeatureMap

    feature_map = open_map(path, storage_options)
    if not isinstance(feature_map, FeatureMap):
        raise InputError(
            f"map={path!r} holds second moments, which are correlations alone: give a feature map "
            "or a sketch.",
            parameter="map_path",
        )
    return feature_map


def _columns(text: str, feature_map: FeatureMap) -> list[str | int]:
    """Names of features, or their numbers where no feature has such a name."""
    known = feature_map.feature_names or ()
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [int(name) if name.isdigit() and name not in known else name for name in names]


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
    help="Earlier data to compare with; by default all other partitions.",
)
@click.option(
    "--unit", type=click.Choice(["partition", "run"]), help="Unit that is permuted as a whole."
)
@click.option(
    "--strata",
    type=click.Choice(["weekday"]),
    help="Compare partitions with partitions of the same day of the week.",
)
@click.option(
    "--serial",
    is_flag=True,
    default=None,
    help="Successive runs depend on each other; needs --unit run.",
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
    """Test whether the newest data in the ledger of JOB differs from the data before.

    JOB is a job file, whose table `[drift]` has the defaults, or the path or URL of a ledger. Ends
    with exit code 5 if there is a difference, and names the run of the last change.
    """
    from dask_sketch.jobs.past_drift import find_last_change
    from dask_sketch.jobs.verify import drift_settings, open_job_ledger

    given = _given(
        window=_window(window),
        reference=_window(reference),
        unit=unit,
        strata=strata,
        serial=serial,
        level=level,
        tolerance=tolerance,
    )
    with open_job_ledger(job, storage_options) as ledger:
        settings = drift_settings(job) | given
        test = ledger.drift(**settings, seed=seed)
        since = None
        if test.is_different:
            unit, same = settings.get("unit", "partition"), settings.get("strata")
            dependent = settings.get("serial", False)
            since = find_last_change(ledger, unit, same, seed, serial=dependent)
    values = {"since": None if since is None else since.as_dict()}
    run.answer(test.as_dict() | values, repr(test) + ("" if since is None else f"\n\n{since}"))
    if test.is_different:
        raise click.exceptions.Exit(ALARM)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _window(text: str | None) -> int | str | None:
    """Convert digits to a number of runs."""
    return int(text) if text is not None and text.isdigit() else text
