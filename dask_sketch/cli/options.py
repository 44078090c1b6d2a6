"""Options that several commands share, answers on standard output, and exit codes of errors."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

from dask_sketch.display.text import fields_text, first_line, jsonable, printable
from dask_sketch.errors import ArtifactError, InputError, PlanError, SketchError
from dask_sketch.storage.local_files import replacing, write_errors
from dask_sketch.validation.choices import PCA, TASKS, known_type, listed_types

FAILED, REFUSED = 1, 3  # exit codes; click uses 2 for wrong usage
# Options whose name differs from the parameter of the library.
_OPTION_NAMES: dict[str | None, str] = {
    "groups": "by",
    "address": "scheduler",
    "y": "labels",
}

Command = Callable[..., None]


@dataclass(frozen=True)
class Run:
    """Settings of one call of a command: the cluster, and the form of the answer.

    Attributes
    ----------
    scheduler, tls
        Address of a scheduler, and folder of its certificates.
    workers
        Number of worker processes to start here.
    progress
        Whether to show progress on standard error.
    as_json
        Whether to answer as JSON.
    """

    scheduler: str | None
    workers: int | None
    tls: str | None
    progress: bool
    as_json: bool

    @contextlib.contextmanager
    def cluster(self) -> Iterator[Any]:
        """Provide the client of the cluster, ``None`` for the threads of this process."""
        from dask_sketch.cluster.connect import connect
        from dask_sketch.cluster.settings import ClusterSettings

        if self.scheduler is not None:
            settings = ClusterSettings("address", address=self.scheduler, tls=self.tls)
        elif self.workers is not None:
            settings = ClusterSettings("local", n_workers=self.workers)
        else:
            settings = ClusterSettings("threads")
        with connect(settings) as client:
            if self.workers is not None:
                from dask_sketch.cluster.dashboard import address

                click.echo(f"dashboard: {address(client)}", err=True)
            yield client

    def path(self, data: str) -> str:
        """Make a path absolute for the workers of a cluster, which may run in another folder."""
        if self.scheduler is None or "://" in data or "::" in data:
            return data
        return str(Path(data).absolute())

    def answer(self, result: Mapping[str, Any], text: str | Mapping[str, object]) -> None:
        """Write the result to standard output, as JSON with ``--json``, else as text."""
        if self.as_json:
            click.echo(json.dumps(jsonable(result), indent=2, allow_nan=False))
        else:
            shown = text if isinstance(text, str) else fields_text(text)
            click.echo(printable(shown, keep="\n"))


def run_options(function: Command) -> Command:
    """Add ``--json``, ``--progress`` and ``--debug``, and turn errors into exit codes.

    The command receives ``run``, a :class:`Run`.
    """

    @click.option("--json", "as_json", is_flag=True, help="Write the result as JSON, for programs.")
    @click.option(
        "--progress/--no-progress",
        default=None,
        help="Show progress on standard error; by default if it is a terminal.",
    )
    @click.option("--debug", is_flag=True, help="Show the log, and the traceback of an error.")
    @functools.wraps(function)
    def wrapper(
        *,
        as_json: bool,
        progress: bool | None,
        debug: bool,
        scheduler: str | None = None,
        workers: int | None = None,
        tls: str | None = None,
        **rest: Any,
    ) -> None:
        if scheduler is not None and workers is not None:
            raise click.UsageError("give --scheduler or --workers, not both.")
        if tls is not None and scheduler is None:
            raise click.UsageError("--tls needs --scheduler; --workers needs no certificates.")
        shown = sys.stderr.isatty() if progress is None else progress
        run = Run(scheduler=scheduler, workers=workers, tls=tls, progress=shown, as_json=as_json)
        with _notices(debug):
            try:
                function(run=run, **rest)
            except (click.ClickException, click.Abort, click.exceptions.Exit):
                raise
            except Exception as error:
                if debug:
                    traceback.print_exc()
                click.echo(f"error: {first_line(error)}{_option_of(error)}", err=True)
                code = REFUSED if isinstance(error, PlanError) else FAILED
                raise click.exceptions.Exit(code) from error

    return wrapper


def _option_of(error: Exception) -> str:
    """Name the option of the parameter that an error is about."""
    name = error.parameter if isinstance(error, SketchError) else None
    for option in click.get_current_context().command.params:
        if isinstance(option, click.Option) and option.name == _OPTION_NAMES.get(name, name):
            return f" (option {max(option.opts, key=len)})"
    return ""


def examples(*lines: str) -> str:
    """Format the examples at the end of a help text."""
    head = "Example:" if len(lines) == 1 else "Examples:"
    # click keeps the line breaks of a paragraph that starts with a backspace
    return "\n".join(["\b", head, *(f"  dask-sketch {line}" for line in lines)])


@contextlib.contextmanager
def _notices(debug: bool) -> Iterator[None]:
    """Write each warning as one line to standard error, and with ``debug`` the log too."""
    logger = logging.getLogger("dask_sketch")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    before = logger.level
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        if debug:
            logger.addHandler(handler)
            logger.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    click.echo(f"warning: {printable(' '.join(str(message).split()))}", err=True)


def cluster_options(function: Command) -> Command:
    """Add ``--scheduler``, ``--tls`` and ``--workers``; placed above :func:`run_options`."""
    for option in (
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help="Start N worker processes of one thread; the default is threads of this process.",
        ),
        click.option(
            "--tls",
            metavar="DIR",
            help="Folder of certificates, from `dask-sketch certificates`, for tls:// schedulers.",
        ),
        click.option(
            "--scheduler", metavar="ADDRESS", help="Use the Dask cluster at this address."
        ),
    ):
        function = option(function)
    return function


def input_options(function: Command) -> Command:
    """Add the options of ``open_samples``, which the command receives as ``input_arguments``."""

    @click.option("--weights", metavar="NAME", help="Column or array with a weight for each row.")
    @click.option(
        "--columns",
        metavar="A,B,...",
        multiple=True,
        help="Columns that are features; by default the features of the map or model, else all. "
        "They must be numeric. May be repeated.",
    )
    @click.option("--array", metavar="NAME", help="Array of a Zarr group that holds the rows.")
    @click.option(
        "--chunk-size", metavar="SIZE", help="Size of the data that one task reads, such as 64MiB."
    )
    @click.option(
        "--missing-chunks",
        type=click.Choice(["raise", "fill"]),
        help="Stop where a chunk of a Zarr store is missing (default), or use its fill value.",
    )
    @storage_option
    @functools.wraps(function)
    def wrapper(
        *,
        weights: str | None,
        columns: tuple[str, ...],
        array: str | None,
        chunk_size: str | None,
        missing_chunks: str | None,
        storage_options: dict[str, Any] | None,
        **rest: Any,
    ) -> None:
        names = [name.strip() for given in columns for name in given.split(",") if name.strip()]
        function(
            input_arguments={
                "weights": weights,
                "columns": names or None,
                "array": array,
                "chunk_size": chunk_size,
                "missing_chunks": missing_chunks,
                "storage_options": storage_options,
            },
            **rest,
        )

    return wrapper


def with_columns_of(owner: Any, input_arguments: dict[str, Any], data: str) -> dict[str, Any]:
    """Choose the columns of files by the names that a feature map or a model knows.

    Parameters
    ----------
    owner
        Feature map or model.
    input_arguments
        Options of the input. Columns that are given are kept.
    data
        Path or URL of the samples.
    """
    from dask_sketch.sources.named_columns import with_named_columns

    return with_named_columns(data, owner.feature_names, input_arguments)


def by_option(function: Command) -> Command:
    """Add ``--by`` to ``input_arguments``; to be placed above :func:`input_options`."""

    @click.option(
        "--by",
        metavar="NAME",
        help="Column or array of labels, for one sketch of each label; not a feature.",
    )
    @functools.wraps(function)
    def wrapper(*, by: str | None, input_arguments: dict[str, Any], **rest: Any) -> None:
        function(input_arguments={**input_arguments, "groups": by}, **rest)

    return wrapper


def group_option(function: Command) -> Command:
    """Add ``--group``, the label of one sketch of a store that ``sketch --by`` wrote."""
    return click.option(
        "--group",
        metavar="LABEL",
        help="Label of one group, if SKETCH holds groups (`sketch --by`).",
    )(function)


def device_option(function: Command) -> Command:
    """Add ``--device``."""
    return click.option(
        "--device", type=click.Choice(["cuda"]), help="Compute on the GPU; needs CuPy."
    )(function)


def numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[float] | None:
    """Parse an option that takes numbers separated by commas (callback of click)."""
    if value is None:
        return None
    try:
        return [float(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: give numbers, such as -1.0,2.5.") from error


def storage_option(function: Command) -> Command:
    """Add ``--storage-options``."""
    return click.option(
        "--storage-options",
        metavar="JSON",
        callback=_json_object,
        help="Options of the file system of URLs, such as '{\"anon\": true}'.",
    )(function)


def map_option(*, moments: bool) -> Callable[[Command], Command]:
    """Add ``--map``, which also takes second moments with ``moments``."""
    others = "a sketch or second moments" if moments else "a sketch"
    return click.option(
        "--map",
        "map_path",
        metavar="PATH",
        help=f"Feature map that `design` wrote, or {others}, to make others that can be added.",
    )


class NumberOrAuto(click.ParamType[Any]):
    """A number of components, or ``"auto"``."""

    name = "integer or auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        """Return the number, or ``"auto"``."""
        return "auto" if value == "auto" else click.IntRange(min=1).convert(value, param, ctx)


class PositiveNumbers(click.ParamType[Any]):
    """Positive numbers with commas between them."""

    name = "positive numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(map(float, value.split(",")))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number < float("inf") for number in numbers):
            self.fail(f"{value!r} is not a list of positive numbers, such as 0.5,1,2.", param, ctx)
        return numbers


class CovarianceOption(click.ParamType[Any]):
    """A covariance type, also ``low-rank:r``."""

    name = "covariance type"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Return the name of the type."""
        if not known_type(value):
            self.fail(f"{value!r} is not one of {listed_types()}.", param, ctx)
        return str(value)


def size_options(function: Command) -> Command:
    """Add ``-k``, ``-m``, ``--covariance-type`` and ``--task``: they set the size of a sketch."""
    function = click.option(
        "--covariance-type",
        type=CovarianceOption(),
        metavar="TYPE",
        help="Covariances to decode later, as for `decode`: matrices need more frequencies.",
    )(function)
    function = click.option(
        "--task",
        type=click.Choice([*TASKS, PCA]),
        help="Purpose of the sketch: a mixture, by default, centroids, a comparison, or principal "
        "components (pca), which take second moments in place of a sketch.",
    )(function)
    function = click.option(
        "-m",
        "--n-frequencies",
        type=click.IntRange(min=1),
        metavar="M",
        help="Number of frequencies: 5(2d+1)K by default, 5(d+1)K for clustering; five for each "
        "parameter of covariance matrices.",
    )(function)
    return click.option(
        "-k",
        "--n-components",
        type=click.IntRange(min=1),
        metavar="K",
        help="Number of components to decode.",
    )(function)


def nan_option(
    function: Command, more: Sequence[str] = (), text: str = "", default: str = "raise"
) -> Command:
    """Add ``--nan-policy``."""
    return click.option(
        "--nan-policy",
        type=click.Choice(["raise", "omit", *more]),
        default=default,
        show_default=True,
        help=f"Stop at rows with NaN or infinite values, or leave them out and count them{text}.",
    )(function)


def missing_option(function: Command, default: str = "raise") -> Command:
    """Add ``--nan-policy`` with missing values."""
    text = "; or take such values as missing, completely at random, and use the others (available)"
    return nan_option(function, ("available",), text, default)


def output_options(function: Command) -> Command:
    """Add ``-o`` and ``--overwrite``."""
    function = click.option("--overwrite", is_flag=True, help="Replace what exists at the path.")(
        function
    )
    return click.option(
        "-o", "--output", metavar="PATH", required=True, help="Path of the result."
    )(function)


def seed_option(function: Command) -> Command:
    """Add ``--seed``."""
    return click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="The same seed gives the same result.",
    )(function)


def refuse_existing(
    path: str, overwrite: bool, storage_options: dict[str, Any] | None, *inputs: str
) -> None:
    """Check before a long run that a sketch or a model can be written.

    Parameters
    ----------
    path
        Path or URL of the output.
    overwrite
        Whether an earlier result is replaced; the inputs are never replaced.
    storage_options
        Options of the file system of a URL.
    inputs
        Paths or URLs of other kinds of results that are read.

    Raises
    ------
    ArtifactError
        If ``path`` exists and is not to be replaced, or cannot be written to.
    """
    from dask_sketch.storage.overwrite import require_writable

    _refuse_inputs(path, inputs)
    require_writable(path, overwrite=overwrite, storage_options=for_url(path, storage_options))


def is_same_place(path: str, other: str) -> bool:
    """Whether two paths or URLs are of the same file or folder."""
    from dask_sketch.storage.overwrite import local_path

    local, other_local = local_path(path), local_path(other)
    if local is not None and other_local is not None and local.exists() and other_local.exists():
        return local.samefile(other_local)
    return path == other


def _refuse_inputs(path: str, inputs: Sequence[str]) -> None:
    for each in inputs:
        if is_same_place(path, each):
            raise ArtifactError(
                f"{path} is an input, which is not overwritten: choose another path.",
                parameter="output",
            )


def refuse_existing_file(
    path: str,
    overwrite: bool,
    storage_options: dict[str, Any] | None,
    *inputs: str,
    kind: str = "",
    marks: Sequence[str] = (),
) -> None:
    """Check before a long run that a text file can be written.

    Parameters
    ----------
    path
        Path or URL of the output.
    overwrite
        Whether an existing file is replaced; folders, and the inputs, are never replaced.
    storage_options
        Options of the file system of a URL.
    inputs
        Paths or URLs of what is read.
    kind, marks
        Kind of the local files that may be replaced, for messages, and the texts with one of which
        such a file begins; by default any file may be replaced.

    Raises
    ------
    ArtifactError
        If ``path`` exists and is not to be replaced.
    """
    import fsspec

    from dask_sketch.storage.overwrite import local_path, path_exists, require_earlier_text

    _refuse_inputs(path, inputs)
    output = local_path(path)
    fs, fs_path = fsspec.core.url_to_fs(path, **(for_url(path, storage_options) or {}))
    if not overwrite and path_exists(fs, fs_path):
        raise ArtifactError(
            f"{path} exists: choose another path, or pass --overwrite.", parameter="overwrite"
        )
    if output is not None and marks:
        require_earlier_text(output, kind, marks)


def refuse_existing_page(path: str, overwrite: bool) -> None:
    """Check before a long run that an HTML page can be written; other files are never replaced.

    Raises
    ------
    ArtifactError
        If ``path`` exists and is not to be replaced, or cannot be written to.
    """
    from dask_sketch.storage.overwrite import require_writable_page

    refuse_existing_file(path, overwrite, None)
    require_writable_page(Path(path))


@contextlib.contextmanager
def new_text_file(path: str, storage_options: dict[str, Any] | None) -> Iterator[IO[str]]:
    """Open a text file for writing; a local one replaces an earlier one only when complete.

    Raises
    ------
    InputError
        If ``path`` cannot be opened.
    ArtifactError
        If it cannot be written, as on a full disk.
    """
    import fsspec

    with write_errors(path), contextlib.ExitStack() as opened:
        try:
            if not _is_url(path):
                new = opened.enter_context(replacing(Path(path)))
                file = opened.enter_context(new.open("w", newline="", encoding="utf-8"))
            else:
                options = storage_options or {}
                file = opened.enter_context(fsspec.open(path, "w", newline="", **options))
        except OSError as error:
            raise InputError(
                f"output={path!r} cannot be written: {error}. Choose another path.",
                parameter="output",
            ) from error
        yield file


def for_url(path: str, storage_options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the storage options for a URL, ``None`` for a local path."""
    return storage_options if _is_url(path) else None


def _is_url(path: str) -> bool:
    return "://" in path or "::" in path


def _json_object(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> dict[str, Any] | None:
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.BadParameter("give a JSON object, such as '{\"anon\": true}'.")
    return parsed
