"""The command that makes certificates for a cluster."""

from __future__ import annotations

import click

from dask_sketch.cli_options import Run, examples, run_options


@click.command(
    epilog=examples(
        "certificates certificates",
        "certificates certificates --days 90 --host scheduler.example.org --host 10.1.2.3",
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--days", type=click.IntRange(min=1, max=3650), default=365, show_default=True,
              metavar="N", help="How long the certificates hold.")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="NAME",
              help="Name or address to put in them, for browsers of the dashboard; may be "
              "repeated. Dask does not look at it.")  # fmt: skip
@click.option("--mounted-at", metavar="PATH",
              help="Where the processes will find DIR, as in a container; by default where it is "
              "now.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what stands there.")
@run_options
def certificates(
    run: Run, directory: str, days: int, hosts: tuple[str, ...], mounted_at: str | None,
    overwrite: bool,
) -> None:  # fmt: skip
    """Make the certificates of one cluster in DIR: encryption and mutual authentication.

    Writes ca.pem, and certificate and key of scheduler, worker and client: scheduler.pem,
    scheduler.key and so on. The keys are readable by you alone. The key of the authority is not
    kept, so to renew is to make all of them again.

    Writes tls.env too, the environment variables by which `dask scheduler`, `dask worker` and
    clients use them and refuse connections without encryption. Copy to each machine ca.pem and
    the pair that it needs. Whoever holds one of the keys can use the cluster.
    """
    from dask_sketch.certificates import make_certificates

    made = make_certificates(
        directory, days=days, hosts=hosts, mounted_at=mounted_at, overwrite=overwrite
    )
    until = made.not_after.isoformat(" ", "minutes").removesuffix("+00:00") + " UTC"
    run.answer(
        {
            "folder": str(made.folder),
            "not_before": made.not_before.isoformat(),
            "not_after": made.not_after.isoformat(),
            "hosts": list(made.hosts),
            "environment": dict(made.environment),
        },
        f"certificates in {made.folder}, valid until {until}\n\n"
        "to use them, in every shell that starts a part of the cluster:\n"
        f"  set -a; . {made.folder}/tls.env; set +a\n"
        "  dask scheduler\n"
        "  dask worker tls://HOST:8786\n"
        f"  dask-sketch sketch ... --scheduler tls://HOST:8786 --tls {made.folder}",
    )
