"""Commands that prepare what leaves the machine: private sketches, and certificates."""

from __future__ import annotations

from typing import Any

import click

from dask_sketch.cli.options import (
    Run,
    examples,
    for_url,
    group_option,
    numbers,
    output_options,
    refuse_existing,
    run_options,
    storage_option,
)
from dask_sketch.display.text import describe


@click.command(
    epilog=examples(
        "privatise sketch.zarr -o release.zarr --epsilon 1 --delta 1e-6",
        "privatise sketch.zarr -o release.zarr --epsilon 1 --low 0 --high 120,250",
    )
)
@click.argument("sketch")
@output_options
@click.option("--epsilon", type=float, required=True, metavar="E",
              help="Privacy loss: data of an individual makes no outcome more than exp(E) times "
              "as probable.")  # fmt: skip
@click.option("--delta", type=float, default=0.0, show_default=True, metavar="D",
              help="Additional probability, which reduces the noise. Choose much less than one "
              "over the number of individuals.")  # fmt: skip
@click.option("--low", metavar="V,V,...", callback=numbers,
              help="Smallest value of each feature, known without the data.")  # fmt: skip
@click.option("--high", metavar="V,V,...", callback=numbers,
              help="Largest value of each feature, or of all, known without the data.")  # fmt: skip
@click.option("--max-weight", type=float, metavar="W",
              help="Largest weight of a sample, known without the data; 1 by default.")  # fmt: skip
@click.option("--group-size", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Largest number of samples of one individual.")  # fmt: skip
@click.option("--nan-policy", type=click.Choice(["raise", "omit", "available"]),
              default="raise", show_default=True,
              help="Policy of the sketch; available releases counters of missing values, with "
              "noise, whether there are any or not.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), metavar="N",
              help="Seed of the noise, for tests only: it reveals the noise.")  # fmt: skip
@group_option
@storage_option
@run_options
def privatise(
    run: Run,
    sketch: str,
    output: str,
    overwrite: bool,
    group: str | None,
    low: list[float] | None,
    high: list[float] | None,
    storage_options: dict[str, Any] | None,
    **choices: Any,
) -> None:
    """Make a differentially private sketch from SKETCH, which can be released.

    Noise hides whether an individual is in the data. Minimum, maximum, moments and counts, which
    would reveal it, are left out. The feature map is released unchanged, with all that `design`
    found in the data. The privacy losses of several releases about the same individuals add up.
    """
    import numpy as np

    from dask_sketch.cli.open import open_one
    from dask_sketch.sketching.privatise import privatise

    if (low is None) != (high is None):
        raise click.UsageError("give both --low and --high, or neither.")
    refuse_existing(output, overwrite, storage_options)
    source = open_one(sketch, group, storage_options=storage_options)
    bounds = None
    if low is not None and high is not None:
        d = source.feature_map.n_features
        for name, given in (("--low", low), ("--high", high)):
            if len(given) not in (1, d):
                raise click.UsageError(f"{name}: give one number, or one for each of {d} features.")
        bounds = np.stack([np.broadcast_to(given, d) for given in (low, high)])
    result = privatise(source, bounds=bounds, **choices)
    result.to_zarr(output, overwrite=overwrite, storage_options=for_url(output, storage_options))
    assert result.privacy is not None
    shown = describe(result.as_dict() | {"feature_map": None})
    shown |= {"note": " ".join(result.privacy.notes()), "written to": output}
    run.answer(result.as_dict() | {"output": output}, shown)


@click.command(
    epilog=examples(
        "certificates certificates",
        "certificates certificates --days 90 --host scheduler.example.org --host 10.1.2.3",
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--days", type=click.IntRange(min=1, max=3650), default=365, show_default=True,
              metavar="N", help="Number of days for which the certificates are valid.")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="NAME",
              help="Name or address in the certificates, which browsers check; may "
              "be repeated. Dask ignores it.")  # fmt: skip
@click.option("--mounted-at", metavar="PATH",
              help="Path of DIR for the processes of the cluster; by default the "
              "path of DIR here.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace what exists at the path.")
@run_options
def certificates(
    run: Run, directory: str, days: int, hosts: tuple[str, ...], mounted_at: str | None,
    overwrite: bool,
) -> None:  # fmt: skip
    """Make the certificates of one cluster in DIR, for encryption and mutual authentication.

    Writes ca.pem, and the certificates and keys of scheduler, worker and client: scheduler.pem,
    scheduler.key and so on. Only you can read the keys. The key of the authority is not kept, so
    renewing means making all of them again.

    Also writes tls.env, the environment variables with which `dask scheduler`, `dask worker` and
    clients use the certificates and refuse connections without encryption. Copy ca.pem and the
    pair that a machine needs to that machine. Whoever has one of the keys can use the cluster.
    """
    from dask_sketch.cluster.certificates import make_certificates

    issued = make_certificates(
        directory, days=days, hosts=hosts, mounted_at=mounted_at, overwrite=overwrite
    )
    until = issued.not_after.isoformat(" ", "minutes").removesuffix("+00:00") + " UTC"
    run.answer(
        {
            "folder": str(issued.folder),
            "not_before": issued.not_before.isoformat(),
            "not_after": issued.not_after.isoformat(),
            "hosts": list(issued.hosts),
            "environment": dict(issued.environment),
        },
        f"certificates in {issued.folder}, valid until {until}\n\n"
        "to use them, run in every shell that starts a part of the cluster:\n"
        f"  set -a; . {issued.folder}/tls.env; set +a\n"
        "  dask scheduler\n"
        "  dask worker tls://HOST:8786\n"
        f"  dask-sketch sketch ... --scheduler tls://HOST:8786 --tls {issued.folder}",
    )
