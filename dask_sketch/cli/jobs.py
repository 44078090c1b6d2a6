"""Commands of nightly jobs: run a job, verify its ledger, list its runs, erase partitions."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dask_sketch.cli.options import FAILED, Run, examples, run_options, storage_option
from dask_sketch.errors import JobError, LedgerLocked

if TYPE_CHECKING:
    from dask_sketch.cli.options import Command

USAGE, INCOMPLETE, ALARM, LOCKED, DAMAGED, BREACH, REFUSED_MODEL = 2, 4, 5, 6, 7, 8, 9
CODES = (
    "Exit codes: 0 done; 1 failed, with what was done kept: run again; 2 the job file is wrong; "
    "3 refused by the plan; 4 incomplete, partitions are in quarantine; 5 the newest data "
    "differs from that before; 6 another run is under way; 7 the newest commit of the ledger is "
    "damaged, and what it held was read again by a run; 8 the data read exceeds a limit of the "
    "job file; 9 a model exceeds a limit, and the last good one is kept."
)


def with_codes(function: Command) -> Command:
    """Add the exit codes of jobs; to be placed below ``run_options``."""

    @functools.wraps(function)
    def wrapper(**given: Any) -> None:
        try:
            function(**given)
        except JobError as error:
            for line in str(error).splitlines():
                click.echo(f"error: {line}", err=True)
            raise click.exceptions.Exit(USAGE) from error
        except LedgerLocked as error:
            click.echo(f"error: {error}", err=True)
            raise click.exceptions.Exit(LOCKED) from error

    return wrapper


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """Treat SIGTERM, by which schedulers stop a job, as Ctrl-C: locks and clusters are released."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command(
    epilog=examples("run --dry-run job.toml", "run job.toml") + "\n\n" + CODES,
)
@click.argument("job")
@click.option("--dry-run", is_flag=True,
              help="Show what would be done; reads no samples and writes nothing.")  # fmt: skip
@click.option("--sample", type=click.IntRange(min=0), metavar="N",
              help="Random rows of each partition for a new ledger; 0 erases them.")  # fmt: skip
@run_options
@with_codes
def run(run: Run, job: str, dry_run: bool, sample: int | None) -> None:
    """Bring the ledger of the job file JOB up to date, decode, score and report.

    Only new and changed partitions are read, and deleted ones are subtracted. Sums are exact, so
    the result has the same bits as one pass over all data. A run that is killed loses nothing that
    it had committed: run again.

    The first run designs the feature map, which the ledger keeps. If it decodes a model, the ledger
    keeps random rows of each partition too, unless job.sample or --sample is 0. Secrets come from
    the environment or from files: key = { env = "NAME" } or { file = "PATH" }. Paths are relative
    to the job file.
    """
    if dry_run:
        from dask_sketch.jobs.run import plan_job

        plan = plan_job(job, sample=sample)
        run.answer(plan.as_dict(), str(plan))
        return
    from dask_sketch.jobs.run import run_job

    with _orderly_end():
        log = partial(click.echo, err=True)
        outcome = run_job(job, sample=sample, progress=run.progress, log=log)
    run.answer(outcome.as_dict(), str(outcome))
    failures: dict[int, object] = {
        INCOMPLETE: outcome.quarantined,
        DAMAGED: outcome.damage,
        BREACH: outcome.breaches,
        REFUSED_MODEL: outcome.refused,
        ALARM: outcome.alarm,
    }
    for code, failure in failures.items():
        if failure:
            raise click.exceptions.Exit(code)


@click.command(
    epilog=examples("verify job.toml", "verify job.toml --fraction 1") + "\n\n" + CODES,
)
@click.argument("job")
@click.option("--fraction", type=click.FloatRange(0, 1, min_open=True), default=0.05,
              show_default=True, metavar="F",
              help="Fraction of the partitions; 1 also compares the total.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), metavar="N",
              help="Seed of the choice; by default another one each time.")  # fmt: skip
@run_options
@with_codes
def verify(run: Run, job: str, fraction: float, seed: int | None) -> None:
    """Sketch a random fraction of the partitions of JOB again, and compare with its ledger.

    Partitions that were changed or deleted since the last run are left out, because `run` updates
    them. Ends with exit code 1 if the bits of a sketch differ from those in the ledger.
    """
    from dask_sketch.jobs.verify import verify_job

    verification = verify_job(job, fraction, seed, progress=run.progress)
    run.answer(verification.as_dict(), str(verification))
    if not verification.is_sound:
        only_damage = not (
            verification.differing or verification.unreadable or verification.total_differs
        )
        raise click.exceptions.Exit(DAMAGED if only_damage else FAILED)


@click.command(epilog=examples("history job.toml", "history nightly.ledger -n 3"))
@click.argument("job")
@click.option("-n", "--last", type=click.IntRange(min=1), metavar="N", default=20,
              show_default=True, help="Number of runs to show.")  # fmt: skip
@storage_option
@run_options
@with_codes
def history(run: Run, job: str, last: int, storage_options: dict[str, Any] | None) -> None:
    """List the runs of a ledger; JOB is a job file, or the path or URL of the ledger.

    A run that failed or was killed has no record: partitions that it had committed count for the
    next one. The last line is the failure of the last run, if it failed.
    """
    from dask_sketch.jobs.verify import open_job_ledger, records_text

    with open_job_ledger(job, storage_options) as ledger:
        records = ledger.history()[-last:]
        forgotten, quarantined = sorted(ledger.forgotten), dict(ledger.quarantined)
        damage, failure = ledger.damage, ledger.failure
    result = {
        "damage": damage,
        "failure": None if failure is None else asdict(failure),
        "runs": [record.to_json() for record in records],
        "forgotten": forgotten,
        "quarantined": quarantined,
    }
    run.answer(result, records_text(records, forgotten, quarantined, failure))
    if damage is not None:
        raise click.exceptions.Exit(DAMAGED)


@click.command(
    epilog=examples(
        "forget job.toml 'frames/speaker-17.parquet'",
        "forget job.toml 'frames/speaker-17.parquet' --undo",
    )
)
@click.argument("job")
@click.argument("keys", nargs=-1, required=True, metavar="PARTITION...")
@click.option("--undo", is_flag=True, help="Let the next run read the partitions again.")
@storage_option
@run_options
@with_codes
def forget(
    run: Run,
    job: str,
    keys: tuple[str, ...],
    undo: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Erase partitions from the ledger of JOB, exactly, and never read them again.

    The total has the bits of a total without these partitions. Their sketches are removed, and so
    are earlier totals that contain them. Earlier models and reports stay until the next run makes
    new ones. The data itself is not touched. Random rows of the partitions are removed too. A file
    that is renamed, moved or copied counts as another file, and is read.
    """
    from dask_sketch.jobs.verify import open_job_ledger, stale_after

    with open_job_ledger(job, storage_options) as ledger, ledger.lock(stale_after(job)):
        before, forgotten = len(ledger.entries), len(ledger.forgotten)
        ledger.forget(keys, undo=undo)
        result = {
            "forgotten": sorted(ledger.forgotten),
            "erased": before - len(ledger.entries),
            "allowed": max(forgotten - len(ledger.forgotten), 0),
            "partitions": len(ledger.entries),
            "samples": ledger.total(sample=False).count,
        }
    shown = {
        **(
            {"to be read again": f"{result['allowed']:,} partitions"}
            if undo
            else {"erased": f"{result['erased']:,} partitions"}
        ),
        "forgotten in all": f"{len(ledger.forgotten):,}",
        "left": f"{result['partitions']:,} partitions, {result['samples']:,} samples",
    }
    run.answer(result, shown)
