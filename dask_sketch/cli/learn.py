"""Commands that learn from groups of samples, and that predict: ``learn`` and ``predict``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click

from dask_sketch.cli.options import (
    PositiveNumbers,
    Run,
    by_option,
    cluster_options,
    examples,
    for_url,
    input_options,
    is_same_place,
    new_text_file,
    output_options,
    refuse_existing,
    refuse_existing_file,
    refuse_existing_page,
    run_options,
    seed_option,
    storage_option,
    with_columns_of,
)
from dask_sketch.display.text import describe
from dask_sketch.errors import InputError

# The header of a file of predictions has one of these columns.
_HEADERS = ("prediction", "component 0")
LEARNING = ("regression", "classification")


@click.command(
    epilog=examples(
        "learn groups.zarr --labels y.csv -o model.zarr",
        "learn speakers.zarr --labels people.csv --key name --target age -o age.zarr",
        "learn recordings.zarr --labels y.csv --target age --leave-out speaker -o model.zarr",
        "learn groups.zarr --labels y.csv -o model.zarr --report page.html",
    )
)
@click.argument("groups")
@output_options
@click.option("--labels", metavar="CSV", required=True,
              help="File with a header, and one row for each group.")  # fmt: skip
@click.option("--key", metavar="NAME",
              help="Column with the labels of the groups; the first one by default.")  # fmt: skip
@click.option("--target", metavar="NAME",
              help="Column to learn; by default the other one of two columns.")  # fmt: skip
@click.option("--leave-out", metavar="NAME",
              help="Column with the unit of each group, such as the speaker of a recording: its "
              "groups are left out together, for the errors of new units.")  # fmt: skip
@click.option("--task", type=click.Choice(LEARNING),
              help="By default regression for numbers, else classification.")  # fmt: skip
@click.option("--size", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N",
              help="Number of landmarks, or random frequencies, of the second layer.")  # fmt: skip
@click.option("--kernel", type=click.Choice(["matern", "rbf", "linear"]), default="matern",
              show_default=True, help="Kernel of the discrepancy of two groups.")  # fmt: skip
@click.option("--layer", type=click.Choice(["landmarks", "random"]), default="landmarks",
              show_default=True, help="Kind of the second layer.")  # fmt: skip
@click.option("--bandwidths", type=PositiveNumbers(), metavar="A,B,..",
              help="Bandwidths to choose from, in medians of the discrepancy of two groups; "
              "0.5,1,2 by default.")  # fmt: skip
@click.option("--alphas", type=PositiveNumbers(), metavar="A,B,..",
              help="Ridges to choose from; 0.001 to 100 by default.")  # fmt: skip
@click.option("--report", metavar="HTML", type=click.Path(dir_okay=False),
              help="Write how well it predicts as one page, with pictures; classes are predicted "
              "in cross-validation for it, which fits five times more.")  # fmt: skip
@seed_option
@storage_option
@run_options
def learn(
    run: Run,
    groups: str,
    output: str,
    overwrite: bool,
    labels: str,
    key: str | None,
    target: str | None,
    leave_out: str | None,
    task: str | None,
    report: str | None,
    seed: int,
    storage_options: dict[str, Any] | None,
    **settings: Any,
) -> None:
    """Learn a number or a class of each group from GROUPS, which `sketch --by` wrote.

    Each group of samples is one observation, known by its sketch. Bandwidth and ridge are chosen
    by predictions of groups that are left out, whose error is part of the answer. `predict` uses
    the model.
    """
    from dask_sketch.distributions import DistributionClassifier, DistributionRegressor
    from dask_sketch.sketching.open import open_group

    settings = {name: value for name, value in settings.items() if value is not None}
    refuse_existing(output, overwrite, storage_options, groups, labels)
    if report is not None:
        if is_same_place(report, output):
            raise click.UsageError(f"--output and --report are both {report!r}: give two paths.")
        refuse_existing_page(report, overwrite)
    sketches = open_group(groups, storage_options=for_url(groups, storage_options))
    options = for_url(labels, storage_options)
    target = target_column(labels, key, target, options)
    y = read_targets(labels, sketches.labels, key, target, options)
    numbers = next(iter(y.values()), 0.0)
    if task is None:
        task = "regression" if isinstance(numbers, float) else "classification"
        if task == "classification":
            _require_no_typing_error(y, labels)
    if task == "regression" and not isinstance(numbers, float):
        raise InputError(
            f"task='regression': {labels} holds {numbers!r}, which is not a number: give "
            "'classification', or another column as target.",
            parameter="task",
        )
    estimators = {"regression": DistributionRegressor, "classification": DistributionClassifier}
    units = None
    if leave_out is not None:
        options = for_url(labels, storage_options)
        units = read_column(labels, sketches.labels, key, leave_out, options, name="leave_out")
    model = estimators[task](**settings, random_state=seed).fit(sketches, y, groups=units)
    model.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, storage_options))
    values = model.as_dict() | {"n_groups": len(sketches.labels), "output": output}
    shown = describe(values | {"feature_map": None, "output": None}) | {"written to": output}
    if report is not None:
        from dask_sketch.distributions import write_learning

        options = {"--labels": labels, "--key": key, "--target": target,
                   "--leave-out": leave_out, "--task": task,
                   **{f"--{name}": _as_option(value) for name, value in settings.items()},
                   "--seed": seed or None, "-o": output, "--report": report}  # fmt: skip
        words = [str(word) for pair in options.items() if pair[1] is not None for word in pair]
        write_learning(
            report,
            model,
            sketches,
            y,
            target=target,
            left_out_together=units,
            source={"groups": groups, "labels": labels, "model": output},
            command=shlex.join(["dask-sketch", "learn", groups, *words]),
        )
        values, shown = values | {"report": report}, shown | {"report": report}
    run.answer(values, shown)


@click.command(
    epilog=examples(
        "predict model.zarr groups.zarr -o predictions.csv --level 0.1",
        "predict model.zarr frames.zarr --by speaker -o predictions.csv",
        "predict mixture.zarr frames.zarr --probabilities -o components.csv",
        "predict components.zarr frames.zarr -o coordinates.csv",
    )
)
@click.argument("model")
@click.argument("data")
@output_options
@click.option("--level", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="P",
              help="Add intervals that miss a target with this probability.")  # fmt: skip
@click.option("--probabilities", is_flag=True,
              help="Add the probability of each class or component.")  # fmt: skip
@input_options
@by_option
@cluster_options
@run_options
def predict(
    run: Run,
    model: str,
    data: str,
    output: str,
    overwrite: bool,
    level: float | None,
    probabilities: bool,
    input_arguments: dict[str, Any],
) -> None:
    """Predict with MODEL for DATA, and write a CSV file.

    For a model of `learn`, DATA are sketches of groups, or with --by samples, which are sketched in
    one pass; there is one prediction for each group. For a mixture or centroids, DATA are samples,
    and each gets its component; for principal components, each gets its coordinates. Samples are in
    the order of the rows of the files, and the files in the order of their sorted paths.
    """
    from dask_sketch.cli.open import open_any
    from dask_sketch.distributions import DistributionClassifier, DistributionRegressor
    from dask_sketch.models.principal_components import PrincipalComponents

    options = input_arguments["storage_options"]
    refuse_existing_file(output, overwrite, options, model, data,
                         kind="a CSV file of predictions", marks=_HEADERS)  # fmt: skip
    fitted = open_any(model, storage_options=options)
    if level is not None and not isinstance(fitted, DistributionRegressor):
        raise InputError(
            f"level={level:g}: {model} has no intervals; leave it out.", parameter="level"
        )
    if probabilities and not hasattr(fitted, "predict_proba"):
        raise InputError(
            f"probabilities: {model} has none; leave the option out.", parameter="probabilities"
        )
    if isinstance(fitted, (DistributionRegressor, DistributionClassifier)):
        frames = iter([_of_groups(run, fitted, data, input_arguments, level, probabilities)])
    elif hasattr(fitted, "predict") or isinstance(fitted, PrincipalComponents):
        if input_arguments.pop("groups") is not None:
            raise InputError(
                f"groups: {model} predicts for samples; leave it out.", parameter="groups"
            )
        input_arguments = with_columns_of(fitted, input_arguments, data)
        frames = _of_samples(run, fitted, data, input_arguments, probabilities)
    else:
        raise InputError(f"{model} is not a model of `learn`, `decode` or `pca`: its type is "
                         f"{type(fitted).__name__}.", parameter="model")  # fmt: skip
    count = 0
    with new_text_file(output, options) as file:
        for frame in frames:
            frame.to_csv(file, index=False, header=not count)
            count += len(frame)
    run.answer({"n_predictions": count, "output": output},
               {"predictions": f"{count:,}", "written to": output})  # fmt: skip


def read_targets(
    path: str,
    labels: Any,
    key: str | None,
    target: str | None,
    storage_options: dict[str, Any] | None = None,
) -> dict[Any, Any]:
    """Read the target of each group: a float or a text for each label.

    Parameters
    ----------
    path
        Path or URL of a CSV file with a header.
    labels
        Labels of the groups. Rows with other labels are left out.
    key, target
        Columns of the labels and of the targets.
    storage_options
        Options of the file system of a URL.

    Raises
    ------
    InputError
        If the file cannot be read, a column is unknown, or a label is there twice or has no value.
    """
    import numpy as np

    y = read_column(path, labels, key, target, storage_options)
    try:
        numbers = np.array(list(y.values()), dtype=np.float64).tolist()
    except ValueError:
        return y
    if not np.isfinite(numbers).all():
        label = next(group for group, x in zip(y, numbers, strict=True) if not np.isfinite(x))
        raise InputError(
            f"target={target!r} is {y[label]} for the group {label!s}: give a finite number, or "
            "leave the group out of the sketches.",
            parameter="target",
        )
    return dict(zip(y, numbers, strict=True))


def read_column(
    path: str,
    labels: Any,
    key: str | None,
    column: str | None,
    storage_options: dict[str, Any] | None = None,
    *,
    name: str = "target",
) -> dict[Any, str]:
    """Read a column of a table of groups: a text for each label.

    Parameters
    ----------
    path
        Path or URL of a CSV file with a header.
    labels
        Labels of the groups. Rows with other labels are left out.
    key, column
        Column of the labels, by default the first one, and column to read, by default the other
        one of two.
    storage_options
        Options of the file system of a URL.
    name
        Option of the column, for messages.

    Raises
    ------
    InputError
        If the file cannot be read, a column is unknown, or a label is there twice or has no value.
    """
    table = _read_csv(path, storage_options)
    key, column = _choose_columns(path, list(map(str, table.columns)), key, column, name)
    by_label = dict(zip(_as_labels(table[key], labels.dtype, path), table[column], strict=True))
    if len(by_label) < len(table):
        twice = table[key][table[key].duplicated()]
        label = twice.iloc[0] if len(twice) else "a group"
        raise InputError(
            f"key={key!r}: {path} has {label} twice; give one row for each group.", parameter="key"
        )
    wanted = labels if labels.dtype.kind in "mM" else labels.tolist()
    values = {label: by_label[label] for label in wanted if label in by_label}
    for label, value in values.items():
        if not value.strip():
            raise InputError(
                f"{name}={column!r} has no value for the group {label!s}: fill it in, or leave the "
                "group out of the sketches.",
                parameter=name,
            )
    return values


def target_column(
    path: str,
    key: str | None,
    target: str | None,
    storage_options: dict[str, Any] | None = None,
) -> str:
    """Name of the column of the targets, as `read_targets` chooses it."""
    names = list(map(str, _read_csv(path, storage_options, nrows=0).columns))
    return _choose_columns(path, names, key, target, "target")[1]


def _read_csv(path: str, storage_options: dict[str, Any] | None, **options: Any) -> Any:
    """Read a table of texts, or raise InputError."""
    import pandas as pd

    options |= {"dtype": str, "keep_default_na": False, "storage_options": storage_options}
    try:
        return pd.read_csv(path, **options)
    except (OSError, ValueError) as error:
        raise InputError(f"labels={path!r} cannot be read: {error}", parameter="labels") from error


def _choose_columns(
    path: str, names: list[str], key: str | None, column: str | None, name: str
) -> tuple[str, str]:
    """Choose the column of the labels, and that of their values."""
    from dask_sketch.validation.tables import first_few

    key = names[0] if key is None else key
    _require_column("key", key, names, path)
    others = [other for other in names if other != key]
    if column is None:
        if len(others) != 1:
            raise InputError(
                f"{name}=None: {path} has the columns {first_few(names)}; choose one.",
                parameter=name,
            )
        column = others[0]
    _require_column(name, column, names, path)
    if column == key:
        raise InputError(
            f"{name}={column!r} holds the labels of the groups: choose another column.",
            parameter=name,
        )
    return key, column


def _as_option(value: Any) -> str:
    """Write the value of an option as it is read."""
    return ",".join(map(repr, value)) if isinstance(value, tuple) else str(value)


def _require_no_typing_error(y: dict[Any, str], path: str) -> None:
    """Raise InputError for texts among targets that are numbers for most groups."""
    import pandas as pd

    values = pd.Series(list(y.values()))
    if pd.to_numeric(values.str.replace(",", "."), errors="coerce").notna().all():
        raise InputError(
            f"labels={path!r}: the targets are numbers with decimal commas, such as "
            f"{values.iloc[0]!r}: write decimal points, or pass --task classification.",
            parameter="labels",
        )
    numbers = pd.to_numeric(values, errors="coerce")
    texts = [label for label, missing in zip(y, numbers.isna(), strict=True) if missing]
    if 0 < len(texts) < 0.5 * len(y):
        raise InputError(
            f"labels={path!r}: the target is {y[texts[0]]!r} for the group {texts[0]!s}, and a "
            f"number for {len(y) - len(texts):,} of {len(y):,} groups. Correct it, or pass "
            "--task classification.",
            parameter="labels",
        )


def _require_column(name: str, column: str, columns: list[str], path: str) -> None:
    from dask_sketch.validation.tables import first_few

    if column not in columns:
        raise InputError(
            f"{name}={column!r} is not a column of {path}: choose one of {first_few(columns)}.",
            parameter=name,
        )


def _as_labels(column: Any, dtype: Any, path: str) -> list[Any]:
    """Texts of a column in the type of the labels of the groups."""
    import numpy as np
    import pandas as pd

    try:
        if dtype.kind == "M":
            return list(pd.to_datetime(column).to_numpy().astype(dtype))
        if dtype.kind == "m":
            return list(pd.to_timedelta(column).to_numpy().astype(dtype))
        if dtype.kind == "b":
            return [{"true": True, "false": False}[value.strip().lower()] for value in column]
        if dtype.kind == "S":
            return [value.encode() for value in column]
        return list(column) if dtype.kind == "U" else np.array(column, dtype=dtype).tolist()
    except (ValueError, KeyError) as error:
        raise InputError(
            f"key={column.name!r}: {path} has labels that are not of the type {dtype} of the "
            f"groups ({error}).",
            parameter="key",
        ) from error


def _of_groups(
    run: Run,
    fitted: Any,
    data: str,
    input_arguments: dict[str, Any],
    level: float | None,
    probabilities: bool,
) -> Any:
    """Predictions for the groups of a stored group, or of samples, as a table."""
    import pandas as pd

    from dask_sketch.graph.sketch import sketch
    from dask_sketch.sketching.open import open_group

    feature_map = fitted.features_.feature_map_
    if input_arguments["groups"] is None:
        sketches = open_group(
            data, storage_options=for_url(data, input_arguments["storage_options"])
        )
    elif feature_map is None:
        raise InputError(
            "groups: the model was fitted to an array, and not to sketches.", parameter="groups"
        )
    else:
        chosen = with_columns_of(feature_map, input_arguments, data)
        with run.cluster():
            sketches = sketch(run.path(data), feature_map, **chosen).compute(progress=run.progress)
    columns = {sketches.dim: sketches.labels, "prediction": fitted.predict(sketches)}
    if level is not None:
        columns["lower"], columns["upper"] = fitted.predict_interval(sketches, level=level).T
    if probabilities:
        for name, values in zip(fitted.classes_, fitted.predict_proba(sketches).T, strict=True):
            columns[f"probability of {name}"] = values
    return pd.DataFrame(columns)


def _of_samples(
    run: Run, fitted: Any, data: str, input_arguments: dict[str, Any], probabilities: bool
) -> Iterator[Any]:
    """Predictions for samples, a table for each chunk."""
    import numpy as np
    import pandas as pd

    from dask_sketch.graph.apply import apply
    from dask_sketch.graph.compute import compute_plain
    from dask_sketch.models.principal_components import PrincipalComponents

    methods = ["predict", "predict_proba"] if probabilities else ["predict"]
    if isinstance(fitted, PrincipalComponents):
        methods = ["transform"]
    with run.cluster():
        applied = [apply(fitted, method, run.path(data), **input_arguments) for method in methods]
        # arrays without their labels
        arrays = [getattr(values, "data", values) for values in applied]
        axes = arrays[0].ndim - (methods == ["transform"])  # number of axes of the samples
        arrays = [x if axes == 1 else x.reshape((-1, *x.shape[axes:])) for x in arrays]
        for number in range(arrays[0].numblocks[0]):
            parts = [np.asarray(compute_plain(values.blocks[number])[0]) for values in arrays]
            if methods == ["transform"]:
                yield pd.DataFrame(parts[0]).add_prefix("component ")
                continue
            columns = {"prediction": parts[0]}
            if probabilities:
                columns |= {f"probability of {k}": column for k, column in enumerate(parts[1].T)}
            yield pd.DataFrame(columns)
