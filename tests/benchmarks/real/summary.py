"""Tables of `make real`: losses by data set, by method, and the targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from dask_sketch.display.text import text_table
from tests.benchmarks.real.cells import Record
from tests.benchmarks.real.far import FOUND
from tests.benchmarks.real.methods import METHODS
from tests.benchmarks.real.sets import SETS

MAX_LOSS = 0.1  # nats; above it a warning is due
MAX_RATIO = 1.2  # of squared errors; above it a warning is due
SCIKIT_LEARN = ("EM", "KMeans", "Lloyd")  # first words of the methods of scikit-learn
REFERENCE = {  # by experiment, and whether the fit is of centroids
    ("real", False): "EM 5",
    ("real", True): "KMeans 5",
    ("far", False): "EM from the truth",
    ("far", True): "Lloyd from the truth",
}


@dataclass(frozen=True)
class Loss:
    """A fit beside its reference: nats lost to EM, or squared error over that of k-means.

    A fit that failed lost infinitely much.
    """

    experiment: str
    case: str
    n_components: int
    method: str
    value: float
    seconds: float
    warned: bool
    centroids: bool

    @property
    def poor(self) -> bool:
        """Whether a warning is due."""
        return self.value > (MAX_RATIO if self.centroids else MAX_LOSS)

    @property
    def silent(self) -> bool:
        """Whether a warning of the package is due, and none stated the loss."""
        return self.poor and not self.warned and not self.method.startswith(SCIKIT_LEARN)


def losses(records: Iterable[Record]) -> list[Loss]:
    """Losses to the references of the same split; fits without a reference are left out."""
    known = list(records)
    values = {(*_split_of(each), each["method"]): each["value"] for each in known}
    found = []
    for each in known:
        if each["experiment"] == "coverage":
            continue
        centroids = _is_centroids(each["method"])
        reference = values.get((*_split_of(each), REFERENCE[each["experiment"], centroids]))
        if reference is None:
            continue
        value = math.inf
        if each["value"] is not None:
            value = each["value"] / reference if centroids else reference - each["value"]
        found.append(
            Loss(
                each["experiment"], each["case"], each["n_components"], each["method"], value,
                each["seconds"], each["warned"], centroids,
            )
        )  # fmt: skip
    return found


def _split_of(record: Record) -> tuple[object, ...]:
    return tuple(
        record[name] for name in ("experiment", "case", "n_components", "seed", "max_rows")
    )


def _is_centroids(method: str) -> bool:
    return method.startswith("Lloyd") or (method in METHODS and METHODS[method].centroids)


def number(value: float) -> str:
    """Three decimals, or fewer for large values: ratios near one differ in the third."""
    return (
        f"{value:.3f}"
        if abs(value) < 10
        else f"{value:.1f}"
        if abs(value) < 1e5
        else f"{value:.2g}"
    )


def by_set(found: Sequence[Loss]) -> str:
    """One line for each data set and number of components: median over the splits."""
    names = list(dict.fromkeys(each.method for each in found))
    names = [name for name in names if not name.endswith((" 5", "truth"))]
    rows = []
    for case, size in dict.fromkeys((each.case, each.n_components) for each in found):
        cells = []
        for name in names:
            here = [e for e in found if (e.case, e.n_components, e.method) == (case, size, name)]
            text = number(median(e.value for e in here)) if here else ""
            cells.append(text + ("!" if any(e.silent for e in here) else ""))
        role = ""
        if case in SETS:
            role = "judged" if SETS[case].judged else "development"
        rows.append([case, role, str(size), *cells])
    return text_table(rows, header=("case", "role", "K", *names))


def by_method(found: Sequence[Loss]) -> str:
    """One line for each method and number of components: median and worst over all splits."""
    rows = []
    for size in sorted({each.n_components for each in found}):
        for name in dict.fromkeys(each.method for each in found):
            here = [e for e in found if (e.n_components, e.method) == (size, name)]
            if not here:
                continue
            worst = max(here, key=lambda each: each.value)
            rows.append(
                [
                    *(str(size), name, "ratio" if here[0].centroids else "nats", str(len(here))),
                    *map(number, (median(e.value for e in here), worst.value)),
                    worst.case,
                    str(sum(e.poor for e in here)),
                    str(sum(e.silent for e in here)),
                    number(median(e.seconds for e in here)),
                ]
            )
    header = ("K", "method", "unit", "fits", "median", "worst", "worst case", "poor",
              "of them silent", "CPU s")  # fmt: skip
    return text_table(rows, header=header)


@dataclass(frozen=True)
class Target:
    """A row of the table of targets; ``values`` computes the figures to compare with ``most``."""

    title: str
    before: str
    most: tuple[float, ...]
    values: Callable[[Sequence[Loss]], tuple[float, ...] | None]
    least: bool = False  # whether the figures must be at least, rather than at most


def _of(
    methods: Sequence[str], sizes: Sequence[int], where: Callable[[Loss], bool] = lambda each: True
) -> Callable[[Sequence[Loss]], tuple[float, ...] | None]:
    def values(found: Sequence[Loss]) -> tuple[float, ...] | None:
        here = [
            each.value
            for each in found
            if each.experiment == "real"
            and each.method in methods
            and each.n_components in sizes
            and where(each)
        ]
        return (median(here), max(here)) if here else None

    return values


def _is_smooth(each: Loss) -> bool:
    return each.case in SETS and SETS[each.case].smooth


def _rest(found: Sequence[Loss]) -> tuple[float, ...] | None:
    here = [each for each in found if each.method == "sketch alone" and not _is_smooth(each)]
    if not here:
        return None
    return median(each.value for each in here), float(sum(each.silent for each in here))


def _silent(found: Sequence[Loss]) -> tuple[float, ...] | None:
    here = [each for each in found if not each.method.startswith(SCIKIT_LEARN)]
    return (float(sum(each.silent for each in here)),) if here else None


def _far(found: Sequence[Loss]) -> tuple[float, ...] | None:
    here = [each for each in found if each.experiment == "far"]
    worst = [
        max((each.value for each in here if each.method == name), default=None)
        for name in ("default", "centroids")
    ]
    return tuple(worst) if None not in worst else None  # type: ignore[arg-type]


def _without_pilot(found: Sequence[Loss]) -> tuple[float, ...] | None:
    here = [each for each in found if each.method == "without pilot"]
    return (sum(each.value < FOUND for each in here) / len(here),) if here else None


TARGETS = (
    Target("default, K=10: nats lost, median and worst", "1.4; 142", (0.01, 0.05),
           _of(["default"], [10])),
    Target("estimator, K=10: the same", "0.2 to 5.5", (0.01, 0.05), _of(["estimator"], [10])),
    Target("polish, two passes, K=10: the same", "", (0.002, 0.02), _of(["polish"], [10])),
    Target("sketch alone, smooth data, K=10 and 64: the same", "0.1 to 0.5", (0.02, 0.05),
           _of(["sketch alone"], [10, 64], _is_smooth)),
    Target("sketch alone, the rest: median; silent above 0.1", "1.4; all", (0.1, 0), _rest),
    Target("centroids, K=10: error ratio, median and worst", "1.06; 1.23", (1.005, 1.02),
           _of(["centroids", "centroids, estimator"], [10])),
    Target("centroids, K=30: the same", "1.06 to 1.12", (1.01, 1.05),
           _of(["centroids", "centroids, estimator"], [30])),
    Target("poor fits without a warning", "145 of 150", (0,), _silent),
    Target("far clusters: worst nats lost; worst error ratio", "160; 240", (0.01, 1.01), _far),
    Target("far clusters found without pilot", "", (0.9,), _without_pilot, least=True),
)  # fmt: skip


def coverage(records: Iterable[Record]) -> dict[str, float]:
    """Mean fraction of the parameters of each kind inside their intervals."""
    found: dict[str, list[float]] = {}
    for each in records:
        if each["experiment"] == "coverage":
            found.setdefault(each["method"], []).append(each["value"] or 0.0)
    return {name: sum(values) / len(values) for name, values in found.items()}


def targets(records: Sequence[Record]) -> str:
    """The table of targets: figures of all sets and of the judged ones, and a verdict on each."""
    found = losses(records)
    judged = [each for each in found if each.case not in SETS or SETS[each.case].judged]
    rows = []
    for target in TARGETS:
        cells = [target.title, target.before, "; ".join(f"{value:g}" for value in target.most)]
        for part in (found, judged):
            values = target.values(part)
            cells += ["", ""] if values is None else [
                "; ".join(map(number, values)), "yes" if _reached(target, values) else "NO"
            ]  # fmt: skip
        rows.append(cells)
    covered = coverage(records)
    if covered:
        inside = all(0.92 <= value <= 0.98 for value in covered.values())
        text = "/".join(f"{100 * value:.0f}" for value in covered.values())
        rows.append(["coverage of 95 % intervals, n=1e4, d=5, K=5: " + ", ".join(covered),
                     "73/86/85", "92 to 98", text, "yes" if inside else "NO", "", ""])  # fmt: skip
    header = ("target", "before issue 13", "must reach", "all", "reached", "judged", "reached")
    return text_table(rows, header=header)


def _reached(target: Target, values: tuple[float, ...]) -> bool:
    pairs = zip(values, target.most, strict=True)
    return all(value >= most if target.least else value <= most for value, most in pairs)
