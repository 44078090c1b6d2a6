"""Records as aligned text."""

from __future__ import annotations

from collections.abc import Sequence

from dask_sketch.display.text import text_table
from tests.benchmarks.paper.records import REFERENCES, Line, Run, lines


def table(title: str, runs: Sequence[Run]) -> str:
    """One line for each setting and decoder: paper, ours, EM or Lloyd, bound, CPU seconds.

    Means over the draws; of ours also the median and the worst.
    """
    known = lines(runs)
    references = [line for line in known if line.method in REFERENCES]
    ours = [line for line in known if line.method not in REFERENCES]
    blocks = list(dict.fromkeys(next(iter(line.setting.values())) for line in ours))
    ours.sort(key=lambda line: blocks.index(next(iter(line.setting.values()))))
    settings = list(dict.fromkeys(name for line in ours for name in line.setting))
    names = [name for name in REFERENCES if any(line.method == name for line in references)]
    header = [
        *(*settings, "decoder", "paper", "ours", "median", "worst", *names, "bound"),
        *("CPU s", *(f"{name} s" for name in names)),
    ]
    rows = []
    for line in ours:
        beside = [beside_of(line, references, name) for name in names]
        rows.append(
            [
                *(_shown(line.setting.get(name, "")) for name in settings),
                line.method,
                *map(number, (line.paper, line.mean, line.median, max(line.values))),
                *(number(reference and reference.mean) for reference in beside),
                *map(number, (line.bound, line.seconds)),
                *(number(reference and reference.seconds) for reference in beside),
            ]
        )
    draws = max(len(line.runs) for line in ours)
    return f"{title}; {draws} draws\n\n{text_table(rows, header=header)}"


def beside_of(line: Line, references: Sequence[Line], name: str) -> Line | None:
    """The reference whose setting agrees with this line's."""
    for reference in references:
        if reference.method == name and reference.setting.items() <= line.setting.items():
            return reference
    return None


def number(value: float | None) -> str:
    """Two decimals or, below 0.1, two digits; nothing where there is nothing."""
    if value is None:
        return ""
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value:.2f}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
