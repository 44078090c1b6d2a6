"""Sutherland (2016): errors of random features (section 3.5), and counting components (5.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sklearn.kernel_ridge import KernelRidge
from sklearn.pipeline import make_pipeline

from dask_sketch import design
from dask_sketch.distributions import (
    DensityFeatures,
    DistanceKernel,
    DistributionRegressor,
    divergence_matrix,
    random_features,
    trigonometric_features,
)
from tests.benchmarks.learning import by_criteria, drawn_groups, root_mean_square, sketched
from tests.benchmarks.paper.pictures import curves, figure
from tests.benchmarks.paper.records import Job, Run, select, timed
from tests.benchmarks.symmetries import SymmetricFeatures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Groups = list[Array]

# Section 3.5: D times the mean squared error on [-3, 3], and the slope of the largest error
PRINTED = {"sine-cosine": (0.66, -0.499), "offset": (0.83, -0.500)}
POINTS = np.linspace(-3.0, 3.0, 121)[:, None]
# numbers of features, and repeats
FEATURES = {
    "full": ((50, 100, 200, 500, 1000, 2000, 5000), 400),
    "quick": ((50, 200, 1000), 100),
    "toy": ((50, 200), 10),
}


def section_3_5(form: str) -> list[Job]:
    """Both forms of random features of a Gaussian kernel in one dimension."""
    sizes, n_repeats = FEATURES[form]
    return [partial(errors_of_features, kind, sizes, n_repeats) for kind in PRINTED]


def errors_of_features(kind: str, sizes: Sequence[int], n_repeats: int) -> list[Run]:
    rng = np.random.default_rng(0)
    exact = np.exp(-0.5 * (POINTS - POINTS.T) ** 2)
    mean, slope = PRINTED[kind]
    runs, largest = [], []
    for size in sizes:
        squares, maxima = [], []
        for _ in range(n_repeats):
            offset = kind == "offset"
            m = size if offset else size // 2
            phases = rng.uniform(0.0, 2.0 * np.pi, m) if offset else None
            features = random_features(POINTS, rng.normal(size=(1, m)), phases)
            error = features @ features.T - exact
            squares.append(float(np.mean(error**2)))
            maxima.append(float(np.abs(error).max()))
        setting = {"measure": "D times mean squared error", "D": size}
        runs.append(Run(setting, kind, 0, size * float(np.mean(squares)), None, mean))
        largest.append(float(np.mean(maxima)))
        runs.append(Run({"measure": "largest error", "D": size}, kind, 0, largest[-1]))
    found = float(np.polyfit(np.log(sizes), np.log(largest), 1)[0])
    runs.append(Run({"measure": "slope of the largest error"}, kind, 0, found, None, slope))
    return runs


def by_features(runs: Sequence[Run]) -> Figure:
    """Section 3.5: errors against the number of features."""
    drawing, axes = figure(1, 2)
    measures = ("largest error", "D times mean squared error")
    for ax, measure in zip(axes[0], measures, strict=True):
        curves(ax, select(runs, measure=measure), "D")
        ax.set(xscale="log", xlabel="number of features D", ylabel=measure)
    axes[0, 0].set_yscale("log")
    for level, _ in PRINTED.values():
        axes[0, 1].axhline(level, color="#5b5e63", lw=1.2, ls=":")
    axes[0, 1].set_ylim(0.5, 1.0)
    axes[0, 0].legend(fontsize=7)
    return drawing


# numbers of groups to learn from, of others to be predicted, of landmarks, and of the groups of
# methods that need all pairs or many fits
SIZES = {
    "full": (4000, 2000, 1000, 500),
    "quick": (1000, 500, 500, 200),
    "toy": (60, 30, 40, 20),
}
ROWS = 200
CRITERIA = {"AIC of EM": 2.7, "BIC of EM": 3.8}
BOUNDS = ([-11.0, -11.0], [11.0, 11.0])
BANDWIDTHS = (0.25, 0.5, 1.0)  # of kernel densities, in units of Scott's rule
BINS = (8, 12, 16, 24)
DEGREES = (3, 5, 8, 12)
DEGREE = 8  # of the basis of the embeddings of densities


def section_5_2(form: str) -> list[Job]:
    """Number of components of a mixture, from samples of it."""
    methods = [*METHODS, "few", "criteria"]
    return [partial(counted, method, *SIZES[form]) for method in methods]


def counted(method: str, n_train: int, n_test: int, landmarks: int, few: int) -> list[Run]:
    old, y = drawn_groups(np.random.default_rng(5), n_train, (ROWS, ROWS))
    new, truth = drawn_groups(np.random.default_rng(6), n_test, (ROWS, ROWS))

    def run(
        name: str, n: int, found: Array, seconds: float | None, paper: float | None = None
    ) -> Run:
        error = root_mean_square(found - truth[: len(found)])
        learned = {"groups": n} if n else {}
        return Run({"rows": ROWS} | learned, name, 0, error, seconds, paper)

    if method == "criteria":
        found, seconds = timed(lambda: by_criteria(new[: few // 2]))
        runs = [
            run(f"{name} of EM", 0, values, seconds, CRITERIA[f"{name} of EM"])
            for name, values in found.items()
        ]
        return [*runs, run("constant", 0, np.full(n_test, y.mean()), None, 2.8)]
    if method == "few":
        neighbors, seconds = timed(lambda: by_neighbors(old[:few], y[:few], new[: few // 2]))
        runs = [run("KL of 5 neighbours", few, neighbors, seconds)]
        found, seconds = timed(
            lambda: METHODS["MMD"](old[:few], y[:few], new[: few // 2], landmarks)
        )
        return [*runs, run("MMD", few, found, seconds)]
    predicted, seconds = timed(lambda: METHODS[method](old, y, new, landmarks))
    return [run(method, n_train, predicted, seconds)]


def by_neighbors(old: Groups, y: Array, new: Groups) -> Array:
    """Kernel ridge regression on a symmetric divergence by nearest neighbours, repaired."""
    divergences = np.maximum(divergence_matrix([*old, *new], "kl"), 0.0)
    distances = np.sqrt(0.5 * (divergences + divergences.T))
    n, cut = len(old), 4 * len(old) // 5
    best = (np.inf, 1.0, 1.0)
    for bandwidth in (0.5, 1.0, 2.0, 4.0):
        kernel = DistanceKernel(bandwidth=bandwidth)
        train = kernel.fit_transform(distances[:cut, :cut])
        test = kernel.transform(distances[cut:n, :cut])
        for alpha in (1e-3, 1e-2, 1e-1, 1.0):
            ridge = KernelRidge(kernel="precomputed", alpha=alpha).fit(train, y[:cut] - 5.5)
            error = root_mean_square(ridge.predict(test) + 5.5 - y[cut:])
            best = min(best, (error, bandwidth, alpha))
    kernel = DistanceKernel(bandwidth=best[1])
    train = kernel.fit_transform(distances[:n, :n])
    ridge = KernelRidge(kernel="precomputed", alpha=best[2]).fit(train, y - 5.5)
    return np.asarray(ridge.predict(kernel.transform(distances[n:, :n])) + 5.5)


def best_of(
    choices: Sequence[float], points: Callable[[float], Callable[[Groups], Array]]
) -> Callable[[Groups, Array, Groups, int], Array]:
    """Regression on the points of the choice with the smallest leave-one-out error."""

    def fitted(old: Groups, y: Array, new: Groups, landmarks: int) -> Array:
        made = [points(choice) for choice in choices]
        models = [DistributionRegressor(landmarks).fit(of(old), y) for of in made]
        best = int(np.argmax([model.ridge_.best_score_ for model in models]))
        return np.asarray(models[best].predict(made[best](new)))

    return fitted


def densities(kind: str) -> Callable[[float], Callable[[Groups], Array]]:
    """Embeddings of kernel densities."""

    def of_bandwidth(bandwidth: float) -> Callable[[Groups], Array]:
        made = DensityFeatures(kind, bounds=BOUNDS, bandwidth=bandwidth, n_side=40, degree=DEGREE)  # type: ignore[arg-type]
        state: dict[str, DensityFeatures] = {}

        def features(groups: Groups) -> Array:
            if not state:
                state["fitted"] = made.fit(groups)
            return state["fitted"].transform(groups)

        return features

    return of_bandwidth


def histograms(bins: float) -> Callable[[Groups], Array]:
    """The embedding of the Jensen-Shannon divergence, of histograms."""
    n_side = int(bins)
    limits = list(zip(*BOUNDS, strict=True))

    def features(groups: Groups) -> Array:
        made = DensityFeatures("js", bounds=BOUNDS, n_side=n_side, bandwidth=10.0).fit(groups)
        counts = [np.histogram2d(*x.T, bins=n_side, range=limits)[0].ravel() for x in groups]
        values = np.array([count / len(x) for count, x in zip(counts, groups, strict=True)])
        return made.transform_densities(values / made.nodes_.cell)

    return features


def of_sketches(**settings: object) -> Callable[[Groups, Array, Groups, int], Array]:
    """Regression on sketches with the feature map of the default design."""

    def fitted(old: Groups, y: Array, new: Groups, landmarks: int) -> Array:
        feature_map = design(np.concatenate(old[:200]), task="comparison", seed=5)
        model = DistributionRegressor(landmarks, **settings)  # type: ignore[arg-type]
        return np.asarray(model.fit(sketched(old, feature_map), y).predict(
            sketched(new, feature_map)
        ))  # fmt: skip

    return fitted


def in_all_orientations(old: Groups, y: Array, new: Groups, landmarks: int) -> Array:
    """Regression on features that do not change when the plane is turned or mirrored."""
    model = make_pipeline(SymmetricFeatures(landmarks), DistributionRegressor(kernel="linear"))
    return np.asarray(model.fit(old, y).predict(new))


METHODS: dict[str, Callable[[Groups, Array, Groups, int], Array]] = {
    "MMD": of_sketches(),
    "MMD, linear": of_sketches(kernel="linear"),
    "L2": best_of(
        DEGREES, lambda degree: lambda groups: trigonometric_features(groups, *BOUNDS, int(degree))
    ),
    "HDD, JS": best_of(BANDWIDTHS, densities("js")),
    "HDD, TV": best_of(BANDWIDTHS, densities("tv")),
    "HDD, Hellinger": best_of(BANDWIDTHS, densities("squared-hellinger")),
    "JS of histograms": best_of(BINS, histograms),
    "HDD, Hellinger, orientations, and invariants": in_all_orientations,
}
