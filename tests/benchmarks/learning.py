"""Learning from groups of samples, beside other methods: ``make distributions``.

The problem of counting is that of Sutherland (2016), section 5.2: predict the number of components
of a Gaussian mixture in the plane from some of its samples. Digits are those of MNIST as sets of
points in the plane, weighted by their brightness, centered, upright and of about one size by the
moments of each image; the tested images are not used for any choice.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path

import click
import dask.array as da
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from sklearn.mixture import GaussianMixture

from dask_sketch import FeatureMap, SketchGroup, design, partial_sketch, sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import DistributionClassifier, DistributionRegressor
from tests.benchmarks.symmetries import SymmetricFeatures

Array = NDArray[np.float64]
Groups = list[Array]
MAX_COMPONENTS = 10
LEVEL = 0.1  # of the intervals
_DESIGNED = 200  # groups whose rows choose the feature map
_NODES, _REACH, _SMOOTHING = 40, 10.0, 1.5  # of the densities on nodes
_EM_GROUPS = 200  # tested groups to which mixtures are fitted
_TUNED, _TUNED_SIZE = 10_000, 1000  # images and landmarks that choose bandwidth and ridge
_DIGIT_LANDMARKS = 4000
_SCALE, _FREQUENCIES = 2.0, 300  # of the feature map of images, in pixels


def drawn_group(rng: np.random.Generator, n_components: int, size: int) -> Array:
    """Samples of a mixture with random means and covariances."""
    means = rng.uniform(-5.0, 5.0, (n_components, 2))
    factors = rng.uniform(-1.0, 1.0, (n_components, 2, 2))
    covariances = rng.uniform(1.0, 4.0, (n_components, 1, 1)) * factors @ factors.swapaxes(1, 2)
    covariances[:, [0, 1], [0, 1]] += rng.uniform(0.0, 1.0, (n_components, 2))
    chosen = rng.integers(n_components, size=size)
    noise = np.linalg.cholesky(covariances)[chosen] @ rng.normal(size=(size, 2, 1))
    return np.asarray(means[chosen] + noise[:, :, 0])


def drawn_groups(
    rng: np.random.Generator, n_groups: int, sizes: tuple[int, int]
) -> tuple[Groups, Array]:
    """Groups of samples, and their numbers of components; sizes are uniform in their logarithm."""
    counts = rng.integers(1, MAX_COMPONENTS + 1, n_groups)
    low, high = np.log(sizes)
    n = np.rint(np.exp(rng.uniform(low, high, n_groups))).astype(int)
    groups = [drawn_group(rng, k, size) for k, size in zip(counts, n, strict=True)]
    return groups, counts.astype(float)


def sketched(groups: Groups, feature_map: FeatureMap) -> SketchGroup:
    """One sketch for each group."""
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return partial_sketch(np.concatenate(groups), feature_map, groups=labels)


def density_roots(groups: Groups) -> Array:
    """Roots of kernel densities on nodes, in which distances are those of Hellinger."""
    limits = [[-_REACH, _REACH]] * 2
    out = np.empty((len(groups), _NODES**2))
    for k, group in enumerate(groups):
        inside = np.clip(group, -_REACH + 0.1, _REACH - 0.1)
        counts = np.histogram2d(*inside.T, bins=_NODES, range=limits)[0]
        out[k] = np.sqrt(gaussian_filter(counts / len(group), _SMOOTHING)).ravel()
    return out


def moments(groups: Groups) -> Array:
    """Means and covariances, in units about as large as their deviations between groups."""
    scaled = [group / 3.0 for group in groups]
    return np.array([[*g.mean(axis=0), *np.cov(g.T)[np.triu_indices(2)]] for g in scaled])


def by_criteria(groups: Groups) -> dict[str, Array]:
    """Numbers of components of the mixtures of expectation-maximisation with the best criteria."""
    found: dict[str, list[float]] = {"AIC": [], "BIC": []}
    for group in groups:
        counts = range(1, MAX_COMPONENTS + 1)
        fits = [GaussianMixture(k, random_state=0).fit(group) for k in counts]
        for name, chosen in found.items():
            values = [getattr(fit, name.lower())(group) for fit in fits]
            chosen.append(1.0 + float(np.argmin(values)))
    return {name: np.array(chosen) for name, chosen in found.items()}


def root_mean_square(errors: Array) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(errors**2)))


def counting(
    n_train: int, n_test: int, sizes: tuple[int, int], landmarks: int, only: str = ""
) -> list[tuple[str, ...]]:
    """Errors of the predicted numbers of components, one row for each method.

    Parameters
    ----------
    n_train, n_test
        Numbers of groups to learn from, and to be predicted.
    sizes
        Least and largest number of samples in a group.
    landmarks
        Number of landmarks.
    only
        Beginning of the names of the methods that run.
    """
    old, y = drawn_groups(np.random.default_rng(5), n_train, sizes)
    new, truth = drawn_groups(np.random.default_rng(6), n_test, sizes)
    rows = [("constant", f"{root_mean_square(truth - y.mean()):.2f}", "", "")]
    criteria = by_criteria(new[:_EM_GROUPS]) if not only and sizes[0] == sizes[1] else {}
    for name, found in criteria.items():
        error = root_mean_square(found - truth[: len(found)])
        rows.append((f"{name} of EM, {len(found)} groups", f"{error:.2f}", "", ""))

    def ours(**how: object) -> tuple[Array, Array]:
        feature_map = design(np.concatenate(old[:_DESIGNED]), task="comparison", seed=5)
        model = DistributionRegressor(**{"size": landmarks, **how})  # type: ignore[arg-type]
        model.fit(sketched(old, feature_map), y)
        group = sketched(new, feature_map)
        return model.predict(group), model.predict_interval(group, level=LEVEL)

    def in_all_orientations() -> tuple[Array, Array]:
        features = SymmetricFeatures(landmarks)
        model = DistributionRegressor(kernel="linear").fit(features.fit_transform(old), y)
        made = features.transform(new)
        return model.predict(made), model.predict_interval(made, level=LEVEL)

    def of_points(points: Callable[[Groups], Array]) -> tuple[Array, Array]:
        model = DistributionRegressor(landmarks).fit(points(old), y)
        made = points(new)
        return model.predict(made), model.predict_interval(made, level=LEVEL)

    methods: dict[str, Callable[[], tuple[Array, Array]]] = {
        "means and covariances": lambda: of_points(moments),
        "densities on 1,600 nodes (Hellinger)": lambda: of_points(density_roots),
        "sketches": ours,
        "sketches, Gaussian kernel, random features": lambda: ours(
            size=landmarks // 2, kernel="rbf", layer="random"
        ),
    }
    if sizes[0] == sizes[1]:
        methods["invariants, and densities in all orientations"] = in_all_orientations
    else:
        methods["sketches, without weights"] = lambda: ours(weight_sizes=False)
        methods["sketches, without weights and shrinkage"] = lambda: ours(
            weight_sizes=False, shrink=False
        )
    for name, method in methods.items():
        if not name.startswith(only):
            continue
        start = time.process_time()
        found, interval = method()
        spent = time.process_time() - start
        inside = np.mean((interval[:, 0] <= truth) & (truth <= interval[:, 1]))
        error = root_mean_square(found - truth)
        rows.append((name, f"{error:.3f}", f"{inside:.1%}", f"{spent:.0f}"))
        click.echo(", ".join(rows[-1]), err=True)
    return rows


def drawn_chunk(number: int, n_groups: int, size: int) -> NDArray[np.float32]:
    """Rows of the groups of one chunk, like those of :func:`drawn_group`, drawn together."""
    rng = np.random.default_rng([7, number])
    shape = (n_groups, MAX_COMPONENTS)
    means = rng.uniform(-5.0, 5.0, (*shape, 2))
    factors = rng.uniform(-1.0, 1.0, (*shape, 2, 2))
    covariances = rng.uniform(1.0, 4.0, (*shape, 1, 1)) * factors @ factors.swapaxes(2, 3)
    covariances[..., [0, 1], [0, 1]] += rng.uniform(0.0, 1.0, (*shape, 2))
    roots = np.linalg.cholesky(covariances)
    counts = drawn_counts(number, n_groups)
    chosen = (rng.random((n_groups, size)) * counts[:, None]).astype(int)
    group = np.arange(n_groups)[:, None]
    noise = roots[group, chosen] @ rng.normal(size=(n_groups, size, 2, 1))
    return (means[group, chosen] + noise[..., 0]).reshape(-1, 2).astype(np.float32)


def drawn_counts(number: int, n_groups: int) -> NDArray[np.int64]:
    """Numbers of components of the groups of one chunk."""
    return np.random.default_rng([8, number]).integers(1, MAX_COMPONENTS + 1, n_groups)


def streamed(n_groups: int, size: int, m: int, landmarks: int, in_chunk: int = 500) -> str:
    """Fit to lazy groups that are drawn as they are read, and predict others."""
    n_chunks = n_groups // in_chunk
    rows = da.map_blocks(
        lambda block_info=None: drawn_chunk(block_info[None]["chunk-location"][0], in_chunk, size),
        chunks=((in_chunk * size,) * n_chunks, (2,)),
        dtype=np.float32,
        meta=np.empty((0, 0), np.float32),
    )
    labels = da.arange(n_groups * size, chunks=in_chunk * size) // size
    start = time.process_time()
    rows[: n_chunks // 10 * in_chunk * size].sum().compute(scheduler="threads")
    drawing = (time.process_time() - start) * n_chunks / max(n_chunks // 10, 1)
    y = {k: v for i in range(n_chunks)
         for k, v in enumerate(drawn_counts(i, in_chunk).tolist(), i * in_chunk)}  # fmt: skip
    feature_map = design(drawn_chunk(0, in_chunk, size), n_frequencies=m, task="comparison", seed=5)
    model = DistributionRegressor(landmarks, solver="normal")
    start = time.process_time()
    model.fit(sketch(rows, feature_map, groups=labels), y)
    spent = time.process_time() - start - drawing
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    new = [drawn_chunk(number, in_chunk, size) for number in range(n_chunks, n_chunks + 8)]
    truth = np.concatenate([drawn_counts(n_chunks + i, in_chunk) for i in range(8)])
    found = model.predict(np.concatenate(new), groups=np.arange(8 * in_chunk * size) // size)
    return (
        f"{n_groups:,} groups of {size} rows, m={m}, {landmarks} landmarks: {spent:.0f} CPU s "
        f"beside {drawing:.0f} s to draw the rows, at most {peak:.2f} GiB, root mean square error "
        f"{root_mean_square(found - truth):.3f} on {len(truth):,} other groups"
    )


def upright(points: Array, weights: Array, image: NDArray[np.intp]) -> Array:
    """Points of images less their centers and slants, and half as unequal in height and width."""
    total = np.bincount(image, weights)

    def mean(values: Array) -> Array:
        return np.bincount(image, weights * values) / total

    row, column = (values - mean(values)[image] for values in points.T)
    column -= (mean(row * column) / mean(row**2))[image] * row
    deviations = np.sqrt([mean(row**2), mean(column**2)])
    typical = np.exp(np.log(deviations).mean(axis=1, keepdims=True))
    return np.stack([row, column], axis=1) / np.sqrt(deviations / typical).T[image]


def sketched_images(images: NDArray[np.uint8]) -> SketchGroup:
    """One sketch for each image: its pixels are points, weighted by their brightness."""
    side = int(np.sqrt(images.shape[1]))
    number, pixel = np.nonzero(images)
    points = np.stack([pixel // side, pixel % side], axis=1).astype(float)
    feature_map = FeatureMap(2, _FREQUENCIES, scale=_SCALE, distribution="gaussian")
    weights = images[number, pixel] / 255.0
    return partial_sketch(upright(points, weights, number), feature_map, weights, groups=number)


def digits(images: NDArray[np.uint8], labels: NDArray[np.uint8], n_test: int, size: int) -> float:
    """Share of wrong digits among the last images, by a fit to all others."""
    # the pixels of an image are all of it, rather than samples: nothing is noise of small groups
    settings = {"shrink": False, "weight_sizes": False}
    old, y = images[:-n_test], labels[:-n_test]
    tuned = DistributionClassifier(_TUNED_SIZE, **settings)  # type: ignore[arg-type]
    tuned.fit(sketched_images(old[:_TUNED]), y[:_TUNED])
    model = DistributionClassifier(
        size,
        bandwidths=(tuned.bandwidth_,),
        alphas=(tuned.alpha_,),
        **settings,  # type: ignore[arg-type]
    )
    model.fit(sketched_images(old), y)
    return float(np.mean(model.predict(sketched_images(images[-n_test:])) != labels[-n_test:]))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", type=int, default=4000, help="groups to learn from")
    parser.add_argument("--test", type=int, default=2000, help="groups to be predicted")
    parser.add_argument("--landmarks", type=int, default=1000)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--images", type=int, default=60_000, help="images to learn from")
    parser.add_argument("--method", default="", help="beginning of the names of the methods")
    parser.add_argument("--only", choices=("even", "uneven", "digits"))
    parser.add_argument("--streamed", type=int, nargs="*", help="numbers of lazy groups")
    chosen = parser.parse_args()
    if chosen.streamed is not None:
        for n_groups in chosen.streamed or [100_000]:
            click.echo(streamed(n_groups, 200, 200, chosen.landmarks))
        return
    header = ("method", "root mean square error", f"inside of {1 - LEVEL:.0%} intervals", "CPU s")
    for name, sizes in (("even", (200, 200)), ("uneven", (20, 2000))):
        if chosen.only in (None, name):
            rows = counting(chosen.train, chosen.test, sizes, chosen.landmarks, chosen.method)
            click.echo(f"components of groups of {sizes[0]} to {sizes[1]} samples")
            click.echo(text_table(rows, header=header))
    if chosen.data is not None and chosen.only in (None, "digits"):
        with np.load(chosen.data / "mnist.npz") as file:
            images, labels = file["images"], file["labels"]
        # the images are sorted by their digits in some copies
        order = np.random.default_rng(0).permutation(len(images))[: chosen.images + 10_000]
        start = time.process_time()
        error = digits(images[order], labels[order], 10_000, _DIGIT_LANDMARKS)
        spent = time.process_time() - start
        click.echo(
            f"digits as sets of points, {chosen.images:,} images: {error:.2%} ({spent:.0f} s)"
        )


if __name__ == "__main__":
    main()
