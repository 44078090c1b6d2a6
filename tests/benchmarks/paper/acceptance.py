"""The project's own targets: one row for each case, with ours, EM or Lloyd, bound and verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dask_sketch.display.text import text_table
from tests.benchmarks.paper import (
    cluster_cases,
    family_cases,
    likelihood_cases,
    matrix_cases,
    missing_cases,
)
from tests.benchmarks.paper.bandwidths import OURS
from tests.benchmarks.paper.clusters import SPECTRAL
from tests.benchmarks.paper.mixtures import EFFICIENT
from tests.benchmarks.paper.records import REFERENCES, Job, Line, Run, Setting, lines
from tests.benchmarks.paper.tables import beside_of, number


@dataclass(frozen=True)
class Goal:
    """Goal of a method: a statistic between ``least`` and ``most``, relative to a reference."""

    method: str
    most: float = float("inf")
    least: float = float("-inf")
    over: str | None = None
    statistic: str = "mean"
    where: Callable[[Setting], bool] = field(default=lambda setting: True)

    def __str__(self) -> str:
        sides = (("at least", self.least), ("at most", self.most))
        known = [f"{side} {value:g}" for side, value in sides if abs(value) != float("inf")]
        beyond = f" above {self.over}" if self.over else ""
        return " and ".join(known) + beyond


@dataclass(frozen=True)
class Row:
    """One row of the table of targets; ``needs`` is the data that its jobs are given."""

    title: str
    jobs: Callable[..., list[Job]]
    goals: tuple[Goal, ...]
    needs: str | None = None


# EM started at the truth, so that a start of EM's that failed makes no target easier
LIMIT = "EM from the truth"
_RSE = partial(Goal, OURS, statistic="median")


def _full(kind: str, **sizes: float) -> Row:
    """Row of full covariances whose loss is compared with that of EM from the truth, each draw."""
    return Row(
        f"held-out nats lost to the truth, full covariances, d=8, K=5, {kind}, n=2e5, m=1120",
        partial(matrix_cases.full_covariances, **sizes),
        (Goal(matrix_cases.RATIO, 1.5, statistic="highest"),),
    )


def _low_rank(d: int, n_components: int, rank: int) -> Row:
    """Row of factor analysers, compared with EM of the same model on a part of the rows."""
    return Row(
        f"held-out nats lost to the truth, factor analysers, d={d}, K={n_components}, rank {rank}, "
        "n=2e5, EM of factor analysers on 20,000 of them, full EM on all",
        partial(matrix_cases.low_rank, d=d, n_components=n_components, rank=rank),
        (
            Goal(matrix_cases.LOW_RANK, 0.0, over="EM of factor analysers"),
            Goal(matrix_cases.LOW_RANK, 0.0, over="EM"),
            Goal(matrix_cases.LOW_RANK_ALONE, 0.0, over="EM of factor analysers"),
        ),
    )


def _missing(title: str, fraction: float, goal: Goal, *, together: bool = False) -> Row:
    """Row of missing values, whose loss is compared with that of EM on the observed values."""
    return Row(
        f"held-out nats lost to the truth, {title}, d=8, K=5, n=1e5, m=672",
        partial(missing_cases.missing_values, fraction=fraction, together=together),
        (goal,),
    )


def _directions(d: int, n_components: int, widest: float) -> Row:
    """Row of von Mises-Fisher mixtures, whose loss is compared with that of EM in each draw."""
    return Row(
        f"held-out nats lost to the truth, von Mises-Fisher, d={d}, K={n_components}, n=2e5",
        partial(family_cases.directions, d=d, n_components=n_components, widest=widest),
        (
            Goal(family_cases.RATIO, 2.0, statistic="highest"),
            Goal(family_cases.WITH_ROWS, 0.0, over="EM"),
        ),
    )


def _number(n_components: int, separation: float, n: int) -> Row:
    """Row of the number of components of an overlapping mixture."""
    return Row(
        f"share of draws whose number of components is found, d=6, K={n_components}, nearest "
        f"components {separation:g} deviations apart, n={n:.0e}",
        partial(
            missing_cases.numbers_of_components,
            n_components=n_components, separation=separation, n=n,
        ),
        (Goal(missing_cases.FOUND, least=0.9),),
    )  # fmt: skip


ROWS: dict[str, Row] = {
    "gmm-2": Row(
        "ln KL, d=2, K=3, n=3e5, m=150",
        partial(likelihood_cases.mixture, d=2, n_components=3, m=150),
        (Goal("CL-OMPR", -9.5), Goal(EFFICIENT, 0.25, over=LIMIT)),
    ),
    "gmm-10": Row(
        "ln KL, d=10, K=5, n=3e5, m=525",
        partial(likelihood_cases.mixture, d=10, n_components=5, m=525),
        (Goal("CL-OMPR", -7.2), Goal(EFFICIENT, 0.3, over=LIMIT)),
    ),
    "gmm-20": Row(
        "ln KL, d=20, K=5, n=3e5, m=2050",
        partial(likelihood_cases.mixture, d=20, n_components=5, m=2050),
        (Goal("CL-OMPR", -6.5), Goal(EFFICIENT, -7.0)),
    ),
    "gmm-many": Row(
        "held-out nats lost to the truth, d=10, K=20, n=3e5, m=2100",
        likelihood_cases.many_components,
        (
            Goal("CL-OMPR", 0.01),
            Goal("splitting", 0.01),
            Goal(EFFICIENT, 0.0015),
            Goal("splitting, efficient", 0.0015),
        ),
    ),
    "full-separated": _full("separated", d=8, n_components=5, m=1120, separation=2.0),
    "full-overlapping": _full("overlapping", d=8, n_components=5, m=1120),
    "full-narrow": _full("narrow", d=8, n_components=5, m=1120, smallest=0.005),
    "full-many": Row(
        "held-out nats lost to the truth, full covariances, d=6, K=20, uneven weights, n=2e5",
        partial(matrix_cases.full_covariances, d=6, n_components=20, m=2795, uneven=True),
        (Goal(matrix_cases.OURS, 0.002), Goal(matrix_cases.OURS, 15.0, statistic="seconds")),
    ),
    "full-ill-conditioned": Row(
        "held-out nats lost to the truth, full covariances, d=6, K=10, overlapping, eigenvalues "
        "from 0.005, n=2e5",
        partial(matrix_cases.full_covariances, d=6, n_components=10, m=2790, smallest=0.005),
        (Goal(matrix_cases.OURS, 0.001, statistic="nine_of_ten"),),
    ),
    "full-speech": Row(
        "held-out log-likelihood, cepstra of recordings, full covariances, K=10, random rows",
        matrix_cases.speech,
        (Goal(matrix_cases.OURS, least=-0.01, over="EM", statistic="median"),),
        needs="fsdd",
    ),
    "low-rank-12": _low_rank(12, 3, 2),
    "low-rank-64": _low_rank(64, 10, 3),
    "directions-3": _directions(3, 5, 10.0),
    "directions-8": _directions(8, 5, 10.0),
    "directions-many": _directions(6, 20, 20.0),
    "directions-images": Row(
        "held-out log-likelihood of directions, images of MNIST, 20 components, random rows",
        family_cases.images,
        (Goal(family_cases.WITH_ROWS, least=-0.01, over="EM", statistic="median"),),
        needs=cluster_cases.IMAGES,
    ),
    "alpha-stable": Row(
        "largest error of alpha, and held-out nats lost, d=2, K=3, alpha 1.2 to 1.8, n=1e6",
        family_cases.stable,
        (
            Goal(family_cases.ALPHA, 0.05, statistic="highest"),
            Goal(family_cases.OURS, 0.001, statistic="highest"),
        ),
    ),
    "missing-10": _missing("10 % missing", 0.1, Goal(missing_cases.RATIO, 2.0)),
    "missing-30": _missing("30 % missing", 0.3, Goal(missing_cases.RATIO, 2.0)),
    "missing-together": _missing(
        "half of the features missing together, 30 %", 0.3, Goal(EFFICIENT, 0.0015), together=True
    ),
    "components-5": _number(5, 1.0, 100_000),
    "components-10": _number(10, 1.5, 100_000),
    "components-20": _number(20, 2.0, 200_000),
    "kmeans": Row(
        "RSE and CPU seconds, 10 Gaussian clusters, d=10, n=1e5",
        cluster_cases.ten_clusters,
        (Goal(OURS, 1.05), Goal(OURS, 3.0, statistic="seconds")),
    ),
    "anisotropic": Row(
        "ln KL, d=10, K=10, A=10, n=2e5, m=2000, default design",
        likelihood_cases.anisotropic,
        (Goal("CL-OMPR", 1.0, over=LIMIT), Goal(EFFICIENT, 1.0, over=LIMIT)),
    ),
    "clusters-2": Row(
        "RSE, three clusters, d=2, n=1e5",
        cluster_cases.plane,
        (_RSE(1.05, where=lambda s: s["sigma"] >= 0.05 or s["m"] == 1000),),
    ),
    "clusters-6": Row(
        "RSE, three clusters, d=6, n=1e5, m=200, at most 100 starts",
        cluster_cases.space,
        (_RSE(1.05),),
    ),
    "mnist": Row(
        "RSE, spectral features of MNIST",
        cluster_cases.digits,
        (
            _RSE(1.2, where=lambda s: (s["m"], s["sigma"]) == (500, cluster_cases.DESIGNED)),
            _RSE(1.08, where=lambda s: (s["m"], s["sigma"]) == (2000, cluster_cases.DESIGNED)),
            _RSE(1.5, where=lambda s: s["sigma"] != cluster_cases.DESIGNED),
        ),
        needs=SPECTRAL,
    ),
    "directions": Row(
        "mean of 1 - cosine over that of spherical Lloyd's best of ten starts, K=30, normalized "
        "images of MNIST, 50 components",
        cluster_cases.directions,
        (Goal(OURS, 1.01, statistic="highest"),),
        needs=cluster_cases.IMAGES,
    ),
    "ten-million": Row(
        "ln KL, d=10, K=5, n=1e7, m=1050 (EM: 3e5 samples)",
        likelihood_cases.ten_million,
        (Goal(EFFICIENT, -11.0),),
    ),
    "speech": Row(
        "held-out log-likelihood per frame, recordings, K=64, m=1e4 (wall seconds)",
        likelihood_cases.speech,
        (Goal("ours", least=-0.3, over="EM"),),
        needs="fsdd",
    ),
    "coverage": Row(
        "share inside nominal 95 % intervals, d=2, K=3, n=3e5, m=150",
        likelihood_cases.coverage,
        (Goal(EFFICIENT, least=0.92, most=0.98),),
    ),
    "latent-classes": Row(
        "largest difference of probabilities from those of EM on all rows, in its standard errors, "
        "6 columns of 4 levels, K=4, n=1e6, from the sketch alone",
        likelihood_cases.latent_classes,
        (Goal(likelihood_cases.LATENT, 2.0, statistic="highest"),),
    ),
    "windows": Row(
        "windows of 30 sketches that move on by one: exact subtraction, and nats that decoding "
        "from the model before loses to a search, d=12, K=64, m=8000, n=6e5",
        likelihood_cases.windows,
        (
            Goal(likelihood_cases.SLIDE, least=1.0),
            Goal(likelihood_cases.SLIDE, 0.01, statistic="seconds"),
            Goal(likelihood_cases.WARM, 0.001),
            Goal(likelihood_cases.WARM, 1.0, statistic="seconds"),
        ),
    ),
    "coverage-dependent": Row(
        "share inside nominal 95 % intervals, AR(1) frames in 50 groups, d=2, K=3, m=150",
        likelihood_cases.dependent_coverage,
        (
            Goal(likelihood_cases.BOOTSTRAP, least=0.92, most=0.98),
            Goal(EFFICIENT, most=0.7),
        ),
    ),
}

HEADER = (
    ("setting", "decoder", "statistic", "draws", "ours"),
    ("bound", "target", "met", "CPU s", "CPU s of the first reference"),
)


def verdicts(row: Row, runs: Sequence[Run]) -> str:
    """The row's title, and a line for each goal in each setting."""
    known = lines(runs)
    references = [line for line in known if line.method in REFERENCES]
    names = [name for name in REFERENCES if any(line.method == name for line in references)]
    cells = []
    for line in known:
        beside = {name: beside_of(line, references, name) for name in names}
        for goal in row.goals:
            if goal.method == line.method and goal.where(line.setting):
                cells.append(_verdict(goal, line, beside))
    return f"{row.title}\n\n{text_table(cells, header=(*HEADER[0], *names, *HEADER[1]))}"


def reached(goal: Goal, line: Line, beside: dict[str, Line | None]) -> bool:
    """Whether the draws of a line reach the goal."""
    value = getattr(line, goal.statistic)
    if goal.over is not None:
        reference = beside.get(goal.over)
        if reference is None:
            raise ValueError(f"the goal {goal} needs draws of {goal.over}; there are none.")
        value -= getattr(reference, goal.statistic)
    return bool(goal.least <= value <= goal.most)


def _verdict(goal: Goal, line: Line, beside: dict[str, Line | None]) -> list[str]:
    spent = [other.seconds for other in beside.values() if other is not None]
    return [
        ", ".join(f"{key}={value}" for key, value in line.setting.items()),
        line.method,
        goal.statistic,
        str(len(line.runs)),
        number(getattr(line, goal.statistic)),
        *(number(other and getattr(other, goal.statistic)) for other in beside.values()),
        number(line.bound),
        str(goal),
        "yes" if reached(goal, line, beside) else "NO",
        number(line.seconds),
        number(spent[0] if spent else None),
    ]
