"""Cards of what a pass reads and costs: samples, plans, lazy sketches, ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_sketch.display.drawing import BLUE, GREEN, GREY, ORANGE, bars, blocks, gauge
from dask_sketch.display.html import card, grid, words

if TYPE_CHECKING:
    from dask_sketch.features.feature_map import Described
    from dask_sketch.jobs.ledger.reader import LedgerReader

_RUNS = 10  # shown in a table


def samples_card(
    fields: Mapping[str, str], summary: str, sizes: Any, feature_names: tuple[str, ...] | None
) -> str:
    """An input: how many rows in what chunks.

    Parameters
    ----------
    fields, summary
        In words.
    sizes
        Rows of each chunk along the first axis, nan if unknown.
    feature_names
        Where there are any.
    """
    more = {}
    if feature_names is not None and len(feature_names) > 0:
        more["features"] = words({str(k): name for k, name in enumerate(feature_names)})
    return card("Samples", fields, summary=summary, pictures=[chunks(sizes)], more=more)


def lazy_card(
    title: str, fields: Mapping[str, str], summary: str, sizes: Any, feature_map: Described
) -> str:
    """A sketch that has not been computed."""
    return card(
        title,
        fields,
        summary=summary,
        pictures=[chunks(sizes)],
        more={"feature map": words(feature_map._fields())},
    )


def chunks(sizes: Any) -> str:
    """Chunks side by side."""
    lengths = np.asarray(sizes, dtype=np.float64)
    n = len(lengths)
    text = f"{n:,} chunk{'s' * (n != 1)}"
    if n and np.isfinite(lengths).all():
        low, high = int(lengths.min()), int(lengths.max())
        text += f" of {low:,} rows" if low == high else f" of {low:,} to {high:,} rows"
    else:
        text += ", lengths unknown"
    return blocks("chunks along the samples", lengths.tolist(), text)


def plan_card(
    fields: Mapping[str, str],
    summary: str,
    warnings: tuple[str, ...],
    memory: tuple[int | None, int],
    times: Mapping[str, float],
    time_below: str,
) -> str:
    """What a pass will cost.

    Parameters
    ----------
    fields, summary, warnings
        In words.
    memory
        Bytes that a thread needs, and that it has.
    times
        Seconds by what they are spent on, if there is an estimate.
    time_below
        Of the picture of these.
    """
    pictures = []
    needed, available = memory
    if needed is not None:
        share = needed / available if available else np.inf
        pictures.append(
            gauge(
                "memory of a thread, needed and available",
                [("needed", float(needed), BLUE if share <= 1 else ORANGE)],
                float(available),
                f"memory of a thread: {share:.1%} of what there is",
            )
        )
    if times:
        colours = (BLUE, ORANGE, GREEN, GREY)
        parts = [
            (name, seconds, colour)
            for (name, seconds), colour in zip(times.items(), colours, strict=False)
        ]
        pictures.append(gauge("time of the pass", parts, sum(times.values()), time_below))
    return card("Plan", fields, summary=summary, pictures=pictures, notes=warnings)


def ledger_card(ledger: LedgerReader) -> str:
    """What a ledger holds: partitions, samples, runs."""
    entries = sorted(ledger.entries.items())
    counts = np.array([entry.count for _, entry in entries], dtype=np.float64)
    history = ledger.history()
    fields = {
        "at": ledger.label,
        "partitions": f"{len(entries):,}",
        "samples": f"{int(counts.sum()):,}",
        "commit": f"{ledger.number:,}",
        "runs": f"{len(history):,}",
    }
    if history:
        fields["last run"] = f"{history[-1].status}, {history[-1].ended}"
    if ledger.forgotten:
        fields["forgotten"] = f"{len(ledger.forgotten):,}"
    more = {}
    if history:
        rows = [
            [run.number, run.started, run.status, _counted(run.counts)]
            for run in reversed(history[-_RUNS:])
        ]
        more["last runs"] = grid(["run", "started", "status", "counts"], rows)
    if ledger.quarantined:
        more["quarantined"] = words(dict(sorted(ledger.quarantined.items())))
    pictures = [bars("samples of each partition", counts, "samples of the partitions, by key")]
    return card(
        "Ledger",
        fields,
        summary=f"{int(counts.sum()):,} samples in {_partitions(len(entries))}",
        pictures=pictures if len(entries) else [],
        notes=(
            [f"In quarantine: {_partitions(len(ledger.quarantined))}."]
            if ledger.quarantined
            else []
        ),
        more=more | {"feature map": words(ledger.feature_map._fields())},
    )


def _partitions(n: int) -> str:
    return f"{n:,} partition{'s' * (n != 1)}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in counts.items())
