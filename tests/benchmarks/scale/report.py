"""The results as tables for people and as plain rows for comparison."""

from __future__ import annotations

from typing import Any

from dask_sketch.display.text import text_table
from tests.benchmarks.table import Row, row, table

MB = 1e6
PASSES = """the passes: 2 workers of one thread and 1 GiB; CPU seconds of all processes
kernel: part of the workers' CPU time, Dask's included, inside the compiled kernel; ms/task: CPU of
the loop of scheduler, nannies and client; peak: of a worker process since its start"""
CONTEST = """one store, held out: nats per sample (higher is better), mean squared distance to
centroids (lower is better; of a mixture, to its means); ours with the pass in wall and CPU"""
ROWS = "every figure for comparison; a ratio above one speaks for ours"


def text(held: dict[str, Any]) -> str:
    """All tables, of the parts that were done."""
    blocks = []
    if _all_passes(held):
        blocks.append(f"{PASSES}\n\n{_passes(_all_passes(held))}")
    contest = contenders(held)
    if contest:
        blocks.append(f"{CONTEST}\n\n{_contest(contest)}")
    if held.get("rows"):
        blocks.append(f"{ROWS}\n\n{table(held['rows'])}")
    if "machine" in held:
        parts = {name: part["seconds"] for name, part in held.items() if "seconds" in part}
        took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items())
        blocks.append(f"{held['machine']['cores']} cores of {held['machine']['cpu']}; {took}")
    return "\n\n".join(blocks)


def _all_passes(held: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for part in ("sketch", "independent") for e in held.get(part, {}).get("entries", [])]


def _passes(entries: list[dict[str, Any]]) -> str:
    header = (
        "samples", "law", "m", "wall s", "CPU s", "G pairs/s", "kernel", "tasks", "ms/task",
        "peak MB", "read MB", "store MB",
    )  # fmt: skip
    lines = [
        (
            f"{e['n_samples']:,}",
            e["law"],
            str(e["n_frequencies"]),
            f"{e['wall']:.1f}",
            f"{e['cpu']:.1f}",
            f"{_pairs(e) / e['wall'] / 1e9:.2f}",
            f"{e['kernel_share']:.1%}",
            str(e["n_tasks"]),
            f"{1e3 * e['scheduler'] / e['n_tasks']:.1f}",
            f"{e['peak'] / MB:.0f}",
            f"{e['read'] / MB:,.0f}",
            f"{e['store_bytes'] / MB:,.0f}",
        )
        for e in entries
    ]
    return text_table(lines, header)


def _pairs(entry: dict[str, Any]) -> float:
    return float(entry["n_samples"]) * float(entry["n_frequencies"])


def contenders(held: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours, with the cost of the pass added to that of decoding, and the rivals."""
    largest = {(e["law"], e["n_frequencies"]): e for e in _all_passes(held)}
    entries = []
    for entry in held.get("decode", {}).get("entries", []):
        taken = largest.get((entry.get("law"), entry.get("n_frequencies")))
        if taken is not None:
            entry = entry | {
                "used": taken["n_samples"],
                "passes": 1,
                "wall": entry["wall"] + taken["wall"],
                "cpu": entry["cpu"] + taken["cpu"],
                "peak": taken["peak"],
                "note": f"{entry['how']}; decoding {entry['cpu']:.0f} CPU s, at most "
                f"{entry['peak'] / MB:.0f} MB",
            }
        entries.append(entry)
    return entries + held.get("rivals", {}).get("entries", [])


def _contest(entries: list[dict[str, Any]]) -> str:
    header = ("who", "samples", "passes", "wall s", "CPU s", "peak MB", "nats", "distance", "how")
    return text_table([_line(entry) for entry in entries], header)


def _line(entry: dict[str, Any]) -> tuple[str, ...]:
    def shown(key: str, form: str, unit: float = 1) -> str:
        value = entry.get(key)
        return "-" if value is None else format(value / unit, form)

    used = entry.get("used", entry.get("tried"))
    note = entry.get("note", "")
    tried = entry.get("tried")
    if "peak" in entry and tried and entry.get("passes") == 1 and entry["used"] < tried:
        whole = entry["cpu"] * tried / entry["used"]
        note += f"; stopped by the cap, extrapolated to all: {whole:,.0f} CPU s"
    return (
        entry["name"],
        "-" if used is None else f"{used:,}",
        shown("passes", ".0f"),
        shown("wall", ".0f"),
        shown("cpu", ".0f"),
        shown("peak", ".0f", MB),
        shown("nats", ".4f"),
        shown("distance", ".4f"),
        note.strip("; "),
    )


def rows(held: dict[str, Any]) -> list[Row]:
    """Plain rows (case, ours, rival, ratio, unit) of all parts that were done."""
    made = []
    for e in _all_passes(held):
        case = f"sketch of {e['n_samples']:,}, {e['law']}, m={e['n_frequencies']}"
        made.append(row(f"{case}: wall", e["wall"], "s"))
        made.append(row(f"{case}: CPU", e["cpu"], "s", floor=e["kernel"]))
        made.append(row(f"{case}: peak of a worker", e["peak"] / MB, "MB"))
        made.append(row(f"{case}: tasks", e["n_tasks"], "tasks"))
    made += _contest_rows(contenders(held))
    for e in held.get("workers", {}).get("entries", []):
        case = f"two workers against one, {e['n_samples']:,}, {e['law']}, m={e['n_frequencies']}"
        made.append(row(case, e["speedup"], "times", floor=e["machine"]))
        made.append(row(f"{case}: CPU time", e["work"], "times", floor=1.0))
    for e in held.get("merge", {}).get("entries", []):
        case = f"{e['n_parts']:,} sketches of m={e['n_frequencies']:,}, {e['where']}"
        made.append(row(f"{case}: merging", e["merge"], "s"))
        for key in ("receive", "workers", "client"):
            if key in e:
                made.append(row(f"{case}: {key}", e[key], "s"))
    return made


def _contest_rows(entries: list[dict[str, Any]]) -> list[Row]:
    """Our best scores, and the cost of them, against each rival's."""
    truth = next((e for e in entries if e["name"] == "the truth"), None)
    ours = [e for e in entries if e["name"].startswith("ours")]
    made: list[Row] = []
    for rival in entries:
        if rival["name"].startswith(("ours", "the truth")) or "peak" not in rival or not ours:
            continue
        assert truth is not None
        key = "distance" if rival["nats"] is None else "nats"
        best = (min if key == "distance" else max)(
            (e for e in ours if e[key] is not None), key=lambda e: e[key]
        )
        # of a likelihood, what is lost to the truth: a cost, as a distance is
        lost = [abs(e[key] - truth[key]) if key == "nats" else e[key] for e in (best, rival)]
        unit = "nats lost to the truth" if key == "nats" else "squared distance"
        for name, mine, other, what in (
            ("held out", *lost, unit),
            ("CPU", best["cpu"], rival["cpu"], "s"),
            ("peak of a process", best["peak"] / MB, rival["peak"] / MB, "MB"),
        ):
            made.append(
                row(
                    f"{best['name']}, {best['how']}: {name}", mine, what,
                    against=f"{rival['name']} on {rival['used']:,}", rival=other,
                )
            )  # fmt: skip
    return made
