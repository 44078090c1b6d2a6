"""`python -m tests.benchmarks.compare A B`: what moved from one run to another."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.table import Row, read, times_better

FACTOR = 1.3


def key(one: Row) -> tuple[str, str, str]:
    """Key by which rows of two runs are matched."""
    return one["case"], one["unit"], one["against"]


def compare(before: Sequence[Row], after: Sequence[Row]) -> tuple[list[str], bool]:
    """Lines about every row that moved by more than FACTOR, came or went; whether any got worse.

    The movement of the rival, measured beside it, tells a change of ours from one of the machine.
    """
    old, new = ({key(one): one for one in rows} for rows in (before, after))
    lines, worse = [], False
    for place in dict.fromkeys([*old, *new]):
        case, unit, against = place
        name = f"{case} ({unit}{', against ' + against if against else ''})"
        if place not in new:
            lines.append(f"gone    {name}")
            continue
        if place not in old:
            lines.append(f"new     {name}")
            continue
        a, b = old[place], new[place]
        factor = times_better(b["ours"], a["ours"], unit)
        if 1 / FACTOR <= factor <= FACTOR:
            continue
        worse |= factor < 1
        line = (
            f"{'better ' if factor > 1 else 'WORSE  '} {name}: {a['ours']:.4g} to {b['ours']:.4g}"
        )
        line += f", {factor:.2f} times as good"
        if a["rival"] is not None and b["rival"] is not None:
            line += f"; the rival {times_better(b['rival'], a['rival'], unit):.2f}"
        lines.append(line)
    return lines, worse


def main(arguments: Sequence[str]) -> int:
    """Print what moved; 1 if anything got worse, 2 if the files have no case in common."""
    if len(arguments) != 2:
        print("name two runs: make bench-compare A=file B=file", file=sys.stderr)  # noqa: T201
        return 2
    try:
        (machine_a, before), (machine_b, after) = (read(Path(name)) for name in arguments)
    except (OSError, ValueError, KeyError) as error:
        print(f"not a file of `make bench`: {error}", file=sys.stderr)  # noqa: T201
        return 2
    if machine_a["cpu"] != machine_b["cpu"]:
        print(f"other machines: {machine_a['cpu']} and {machine_b['cpu']}")  # noqa: T201
    lines, worse = compare(before, after)
    if not {key(one) for one in before} & {key(one) for one in after}:
        print("the two runs have no case in common", file=sys.stderr)  # noqa: T201
        return 2
    print("\n".join(lines) or f"nothing moved by more than {FACTOR}")  # noqa: T201
    return int(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
