"""Sutherland (2016), chapter 7: active search on generated fields, beside other searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.gaussian_process.kernels import RBF

from dask_sketch.distributions import PatternSearch, ProbitRegions, SampledRegions
from tests.benchmarks.paper.pictures import curves, figure
from tests.benchmarks.paper.records import Job, Run, select, timed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Choice = Callable[[PatternSearch, NDArray[np.intp], np.random.Generator], int]
LENGTH, NOISE = 2.5, 0.1  # of the field, in units of its points and of its variance
LEVEL, SHARPNESS, THRESHOLD = 0.5, 10.0, 0.7
WINDOW, STRIDE, N_FIRST = 5, 2, 10
LSE_BETA, LSE_SLACK = 6.25, 0.1
N_CANDIDATES = 20  # of the search with sampled classifiers
# sides of the field, observations, and fields
SIZES = {"full": ((30, 20), 200, 15), "quick": ((24, 16), 80, 6), "toy": ((10, 8), 14, 1)}


def chapter_7(form: str) -> list[Job]:
    """Share of the regions with the pattern that each search found."""
    sides, n_steps, n_fields = SIZES[form]
    return [partial(searched, sides, n_steps, seed) for seed in range(n_fields)]


def windows(points: Array, sides: tuple[int, int]) -> NDArray[np.bool_]:
    """Points of each square window."""
    corners = [
        (i, j)
        for i in range(0, sides[0] - WINDOW + 1, STRIDE)
        for j in range(0, sides[1] - WINDOW + 1, STRIDE)
    ]
    inside = [np.all((points >= c) & (points < np.add(c, WINDOW)), axis=1) for c in corners]
    return np.array(inside)


def by_reward(search: PatternSearch, left: NDArray[np.intp], rng: np.random.Generator) -> int:
    return search.next_point(left)


def by_sampled_reward(
    search: PatternSearch, left: NDArray[np.intp], rng: np.random.Generator
) -> int:
    return search.next_point(rng.choice(left, min(N_CANDIDATES, len(left)), replace=False))


def by_variance(search: PatternSearch, left: NDArray[np.intp], rng: np.random.Generator) -> int:
    """Uncertainty sampling (UNC)."""
    return int(left[np.argmax(np.diag(search.covariance)[left])])


def at_random(search: PatternSearch, left: NDArray[np.intp], rng: np.random.Generator) -> int:
    """Random points (RAND)."""
    return int(rng.choice(left))


def by_level_set() -> Choice:
    """Level set estimation (LSE; Gotovos, Casati, Hitz and Krause 2013), at single points."""
    bounds: dict[str, Array] = {}

    def chosen(search: PatternSearch, left: NDArray[np.intp], rng: np.random.Generator) -> int:
        reach = np.sqrt(LSE_BETA * np.maximum(np.diag(search.covariance), 0.0))
        low, high = search.mean - reach, search.mean + reach
        # intersections of all intervals so far
        bounds["low"] = np.maximum(bounds.get("low", low), low)
        bounds["high"] = np.minimum(bounds.get("high", high), high)
        open_ = (bounds["low"] < LEVEL - LSE_SLACK) & (bounds["high"] > LEVEL + LSE_SLACK)
        ambiguity = np.minimum(bounds["high"] - LEVEL, LEVEL - bounds["low"])
        ambiguity[~open_] -= 1e3  # points that are classified come last
        return int(left[np.argmax(ambiguity[left])])

    return chosen


def searched(sides: tuple[int, int], n_steps: int, seed: int) -> list[Run]:
    rng = np.random.default_rng(seed)
    grid = np.meshgrid(np.arange(sides[0]), np.arange(sides[1]), indexing="ij")
    points = np.stack([axis.ravel() for axis in grid], axis=1).astype(float)
    members = windows(points, sides)
    regions = ProbitRegions.of_means(members, LEVEL, SHARPNESS)
    while True:  # fields without any such region have no recall
        field = rng.multivariate_normal(np.zeros(len(points)), RBF(LENGTH)(points), method="eigh")
        is_there = ndtr(regions.weights @ field + regions.offsets) > THRESHOLD
        if is_there.any():
            break
    values = field + np.sqrt(NOISE) * rng.normal(size=len(field))
    first = rng.choice(len(points), N_FIRST, replace=False)

    def classify(fields: Array) -> Array:
        return np.asarray(ndtr(fields @ regions.weights.T + regions.offsets))

    sampled = SampledRegions(classify, len(members), n_fields=60, n_values=4)
    kinds: dict[str, tuple[object, Choice]] = {
        "APPS": (regions, by_reward),
        "APPS, sampled": (sampled, by_sampled_reward),
        "LSE": (regions, by_level_set()),
        "UNC": (regions, by_variance),
        "RAND": (regions, at_random),
    }
    marks = sorted({N_FIRST, *(round(n_steps * k / 8) for k in range(1, 9))})
    marks = [mark for mark in marks if mark >= N_FIRST]
    runs = []
    for name, (classifier, choose) in kinds.items():
        (recalls, wrong), seconds = timed(
            partial(recall, points, classifier, regions, values, first, choose, is_there, n_steps)
        )
        for mark in marks:
            setting = {"measure": "recall", "observations": mark}
            spent = seconds if mark == marks[-1] else None
            runs.append(Run(setting, name, seed, float(recalls[mark - N_FIRST]), spent))
        setting = {"measure": "wrong of those found", "observations": n_steps}
        runs.append(Run(setting, name, seed, wrong))
    return runs


def recall(
    points: Array,
    classifier: object,
    regions: ProbitRegions,
    values: Array,
    first: NDArray[np.intp],
    choose: Choice,
    is_there: NDArray[np.bool_],
    n_steps: int,
) -> tuple[Array, float]:
    """Share of the regions with the pattern found after each observation, and of wrong ones."""
    settings = {"noise_variance": NOISE, "threshold": THRESHOLD}
    search = PatternSearch(points, RBF(LENGTH), classifier, **settings)  # type: ignore[arg-type]
    # regions count as found by their exact probability, also for the search with samples
    judge = search
    if classifier is not regions:
        judge = PatternSearch(points, RBF(LENGTH), regions, **settings)  # type: ignore[arg-type]
    rng, seen, recalls = np.random.default_rng(0), np.zeros(len(points), dtype=bool), []
    for step in range(n_steps):
        if step < len(first):
            position = int(first[step])
        else:
            position = choose(search, np.flatnonzero(~seen), rng)
        seen[position] = True
        for one in {id(one): one for one in (search, judge)}.values():
            one.observe(position, values[position])
        if step >= len(first) - 1:
            recalls.append(np.mean(judge.found[is_there]))
    wrong = float(np.mean(~is_there[judge.found])) if judge.found.any() else 0.0
    return np.array(recalls), wrong


def recall_curves(runs: Sequence[Run]) -> Figure:
    """Mean recall against the number of observations."""
    drawing, axes = figure(1, 1, width=6.0, height=4.2)
    curves(axes[0, 0], select(runs, measure="recall"), "observations")
    axes[0, 0].set(xlabel="observations", ylabel="share of the regions found", ylim=(0.0, 1.0))
    axes[0, 0].legend(fontsize=8)
    return drawing
