"""Sutherland (2016), section 6.4: choice of the bandwidth of a two-sample test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from tests.benchmarks.paper.pictures import RED, figure
from tests.benchmarks.paper.records import Job, Run, lines, select

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Problem = Callable[[np.random.Generator, int], tuple[Array, Array]]
BANDWIDTHS = np.logspace(-1.7, 1.7, 30)
LEVEL = 0.1
STRETCH = 6.0  # of the blobs
# repeats, permutations, and rows of the blobs
SIZES = {"full": (100, 300, 500), "quick": (30, 200, 300), "toy": (2, 30, 40)}
PRINTED = {"variance": 0.7}  # largest MMD; the level where both sides are alike
_CHUNK = 10


def section_6_4(form: str) -> list[Job]:
    """Powers of tests whose bandwidth is chosen on other rows."""
    n_repeats, n_permutations, n_blobs = SIZES[form]
    return [
        partial(tested, name, n, range(at, min(at + _CHUNK, n_repeats)), n_permutations)
        for name, n in (("same", 100), ("variance", 100), ("blobs", n_blobs))
        for at in range(0, n_repeats, _CHUNK)
    ]


def same(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 2))


def wider(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    x, y = same(rng, n)
    return x, y * np.array([np.sqrt(2.0), 1.0])


def blobs(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Grids of 25 clusters, round on one side and stretched along the diagonal on the other."""
    off = (STRETCH - 1.0) / (STRETCH + 1.0)
    factor = np.linalg.cholesky(np.array([[1.0, off], [off, 1.0]]))
    x, y = same(rng, n)
    return x + 10.0 * rng.integers(0, 5, (n, 2)), y @ factor.T + 10.0 * rng.integers(0, 5, (n, 2))


PROBLEMS: dict[str, Problem] = {"same": same, "variance": wider, "blobs": blobs}


def u_statistic(xx: Array, yy: Array, xy: Array) -> float:
    """Squared discrepancy, eq. (6.1) with the factor and the indices corrected."""
    m = len(xx)
    h = xx + yy - xy - xy.T
    return float((h.sum() - np.trace(h)) / (m * (m - 1)))


def u_variance(xx: Array, yy: Array, xy: Array) -> float:
    """Variance of the U-statistic from Gram matrices, eq. (6.6) and (6.7) as corrected."""
    m = len(xx)
    one = np.ones(m)
    a, b, c = xx - np.diag(np.diag(xx)), yy - np.diag(np.diag(yy)), xy
    first = -2.0 * (one @ c @ one / m**2) ** 2
    for own, cross in ((a, c), (b, c.T)):
        total, mixed = one @ own @ one, one @ cross @ one
        rows = own @ one
        first += (rows @ rows - np.sum(own**2)) / (m * (m - 1) * (m - 2))
        first -= (total / (m * (m - 1))) ** 2
        first -= 2.0 * (rows @ (cross @ one)) / (m**2 * (m - 1))
        first += 2.0 * total * mixed / (m**3 * (m - 1))
        sums = cross.T @ one
        first += (sums @ sums - np.sum(cross**2)) / (m**2 * (m - 1))
    crossed = c - np.diag(np.diag(c))
    second = np.sum((a + b - crossed - crossed.T) ** 2) / (m * (m - 1))
    second -= u_statistic(xx, yy, xy) ** 2  # not in the printed form
    smallest = 2.0 / (m * (m - 1)) * second
    variance = 4.0 * (m - 2) / (m * (m - 1)) * first + smallest
    return float(variance if variance > 0.0 else smallest)


def grams(squares: Array, bandwidth: float) -> tuple[Array, Array, Array]:
    """Gaussian kernels within the first half, the second, and between them."""
    kernel = np.exp(-0.5 * squares / bandwidth**2)
    m = len(kernel) // 2
    return kernel[:m, :m], kernel[m:, m:], kernel[:m, m:]


def permuted(squares: Array, bandwidth: float, signs: Array) -> Array:
    """Statistic of the given sides and of permuted ones, in units of the U-statistic."""
    kernel = np.exp(-0.5 * squares / bandwidth**2)
    np.fill_diagonal(kernel, 0.0)
    m = len(kernel) // 2
    sides = np.vstack([np.repeat([1.0, -1.0], m), signs])
    within = 0.5 * (np.einsum("ij,ij->i", sides @ kernel, sides) + kernel.sum())
    return within / (m * (m - 1)) - (kernel.sum() - within) / m**2


def tested(name: str, n: int, seeds: range, n_permutations: int) -> list[Run]:
    runs = []
    for seed in seeds:
        rng = np.random.default_rng((seed, n))
        rows = [np.concatenate(PROBLEMS[name](rng, n)) for _ in range(2)]
        old, new = (cdist(x, x, "sqeuclidean") for x in rows)
        signs = np.array(
            [rng.permutation(np.repeat([1.0, -1.0], n)) for _ in range(n_permutations)]
        )
        scores: dict[str, list[float]] = {"largest MMD": [], "t_U": [], "tau_U": []}
        rejected = []
        for bandwidth in BANDWIDTHS:
            found, spread = (of(*grams(old, bandwidth)) for of in (u_statistic, u_variance))
            critical = float(np.quantile(permuted(old, bandwidth, signs)[1:], 1.0 - LEVEL))
            deviation = np.sqrt(max(spread, 1e-300))
            scores["largest MMD"].append(found)
            scores["t_U"].append(found / deviation)
            scores["tau_U"].append((found - critical) / deviation)
            values = permuted(new, bandwidth, signs)
            rejected.append(float(np.mean(values >= values[0] - 1e-15) <= LEVEL))
        median = float(np.sqrt(np.median(old[np.triu_indices(2 * n, 1)])))
        chosen = {key: int(np.argmax(values)) for key, values in scores.items()}
        chosen["median"] = int(np.argmin(np.abs(np.log(BANDWIDTHS / median))))
        for key, position in chosen.items():
            setting = {"problem": name, "rows": n, "bandwidth": "chosen"}
            printed = PRINTED.get(name) if key == "largest MMD" else None
            if name == "same":
                printed = LEVEL
            runs.append(Run(setting, key, seed, rejected[position], None, printed))
        for bandwidth, value in zip(BANDWIDTHS, rejected, strict=True):
            setting = {"problem": name, "rows": n, "bandwidth": round(float(bandwidth), 3)}
            runs.append(Run(setting, "fixed", seed, value))
    return runs


def powers(runs: Sequence[Run]) -> Figure:
    """Power against the bandwidth, with the powers of chosen bandwidths as lines."""
    drawing, axes = figure(1, 3)
    for ax, name in zip(axes[0], PROBLEMS, strict=True):
        chosen = select(runs, problem=name)
        fixed = lines(run for run in chosen if run.method == "fixed")
        at = [line.setting["bandwidth"] for line in fixed]
        ax.plot(at, [line.mean for line in fixed], marker="o", ms=4.5, label="fixed")
        for key, style in (("largest MMD", "-"), ("t_U", "--"), ("median", ":")):
            level = np.mean([run.value for run in chosen if run.method == key])
            ax.axhline(level, label=key, ls=style, color=RED)
        labels = {"xlabel": "bandwidth", "ylabel": "share of rejections"}
        ax.set(xscale="log", ylim=(0, 1), title=name, **labels)
    axes[0, 0].legend(fontsize=7)
    return drawing
