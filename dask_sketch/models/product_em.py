"""Mixtures of products of Gaussians and categorical distributions: densities and EM on rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dask_sketch.models.density import JointDensity
from dask_sketch.models.smallest_variance import MIN_VARIANCE, smallest_variances
from dask_sketch.validation.categories import Categories

Array = NDArray[np.float64]
# smallest probability of a level in a fit, so that no row has the density zero
MIN_PROBABILITY = 1e-6
_SHORT_ITERATIONS = 15  # iterations of each start, before the best one is continued
_OWN_FRACTION = 0.5  # weight of the row that a component starts from, against all rows


class ProductMixture(NamedTuple):
    """Parameters of a mixture whose features are independent within each component.

    Attributes
    ----------
    weights
        Weights, shape (n_components,), summing to one.
    means, variances
        Means and variances of the numeric features, shape (n_components, n_numeric).
    probabilities
        Probabilities of the levels of all categorical features, one after the other, shape
        (n_components, n_levels).
    """

    weights: Array
    means: Array
    variances: Array
    probabilities: Array


class ProductRows:
    """Rows in the form that densities and EM need.

    Parameters
    ----------
    rows
        Rows of numbers and codes, shape (n, n_features), NaN where values are missing.
    categories
        Levels of the categorical features.
    center
        Point that is subtracted from the numeric features, shape (n_numeric,), so that squares do
        not cancel.
    """

    def __init__(self, rows: Array, categories: Categories, center: Array):
        self.categories, self.center = categories, center
        numbers = rows[:, categories.numeric] - center
        self.seen = ~np.isnan(numbers)
        self.values = np.where(self.seen, numbers, 0.0)
        self.squares = self.values**2
        codes = rows[:, categories.columns]
        here = ~np.isnan(codes)
        starts = np.array([part.start for part in categories.slices])
        positions = (np.where(here, codes, 0.0) + starts).astype(np.intp)
        ends = np.concatenate([[0], np.cumsum(here.sum(axis=1))])
        shape = len(rows), categories.n_levels
        self.indicators = sparse.csr_array(
            (np.ones(int(ends[-1])), positions[here], ends), shape=shape
        )

    def log_joint(self, mixture: ProductMixture) -> Array:
        """Log of weight times density of the observed values, shape (n, n_components)."""
        precisions = 1.0 / mixture.variances
        means = mixture.means - self.center
        with np.errstate(divide="ignore"):  # a probability of zero is a density of zero
            joint = np.asarray(self.indicators @ np.log(mixture.probabilities).T)
            joint += np.log(mixture.weights)
        constants = np.log(2.0 * np.pi * mixture.variances) + means**2 * precisions
        joint -= 0.5 * (self.squares @ precisions.T + self.seen @ constants.T)
        joint += self.values @ (means * precisions).T
        return joint


def normalise(joint: Array) -> tuple[Array, Array]:
    """Probabilities of the components, and the log of the sum, of each row of log densities."""
    largest = joint.max(axis=1)
    # a row without density has equal probabilities
    responsibilities = np.exp(joint - np.where(np.isfinite(largest), largest, 0.0)[:, None])
    total = responsibilities.sum(axis=1)
    none = total == 0.0
    responsibilities[none] = 1.0
    with np.errstate(divide="ignore"):
        log_total = np.log(total) + largest
    return responsibilities / responsibilities.sum(axis=1, keepdims=True), np.where(
        none, -np.inf, log_total
    )


class ProductDensity(JointDensity):
    """Joint log-density of rows of numbers and codes, and of components.

    Parameters
    ----------
    mixture
        Parameters.
    categories
        Levels of the categorical features.
    """

    def __init__(self, mixture: ProductMixture, categories: Categories):
        self._mixture, self._categories = mixture, categories
        self._center = mixture.weights @ mixture.means

    def log_joint(self, block: Array) -> Array:
        """Log of weight times density of the observed values, shape (n, n_components)."""
        return ProductRows(block, self._categories, self._center).log_joint(self._mixture)

    def normalised(self, block: Array) -> tuple[Array, Array]:
        """Probabilities of the components, and log-densities, ``-inf`` of impossible levels."""
        return normalise(self.log_joint(block))


@dataclass(frozen=True)
class FittedProduct:
    """Result of EM.

    Attributes
    ----------
    mixture
        Parameters.
    log_likelihood
        Mean log-likelihood of the rows, in nats.
    converged
        Whether the gain of the last iteration was below the tolerance.
    """

    mixture: ProductMixture
    log_likelihood: float
    converged: bool


def fit_product(
    rows: Array,
    weights: Array | None,
    n_components: int,
    categories: Categories,
    *,
    starts: Sequence[ProductMixture] = (),
    n_starts: int = 8,
    seed: int = 0,
    n_iterations: int = 500,
    tolerance: float = 1e-7,
) -> FittedProduct:
    """Maximise the likelihood of weighted rows by EM.

    Parameters
    ----------
    rows
        Rows of numbers and codes, shape (n, n_features), NaN where values are missing.
    weights
        Weights of the rows, shape (n,), not negative; equal if None.
    n_components
        Number of components, ``>= 1``.
    categories
        Levels of the categorical features.
    starts
        Mixtures to start from.
    n_starts
        Number of further starts, from random rows.
    seed
        Seed of these rows, ``>= 0``.
    n_iterations
        Maximum number of iterations of the best start.
    tolerance
        Smallest gain of one iteration, in nats per row.

    Examples
    --------
    >>> codes = np.repeat([[0.0, 0.0], [1.0, 1.0]], [300, 700], axis=0)
    >>> found = fit_product(codes, None, 2, Categories((("a", "b"), ("c", "d"))))
    >>> np.sort(found.mixture.weights).round(3)
    array([0.3, 0.7])
    """
    masses = np.full(len(rows), 1.0) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(categories.numeric):  # equal rows are counted
        rows, of = np.unique(rows, axis=0, return_inverse=True)
        masses = np.bincount(of.reshape(-1), masses)
    masses = masses / masses.sum()
    fit = _Fit(rows, masses, categories)
    rng = np.random.default_rng(seed)
    all_starts = [*starts, *(fit.random_start(n_components, rng) for _ in range(n_starts))]
    short = [fit.run(one, _SHORT_ITERATIONS, tolerance) for one in all_starts]
    best = max(short, key=lambda each: each.log_likelihood)
    return fit.run(best.mixture, n_iterations, tolerance)


class _Fit:
    """EM on weighted rows; missing values are left out of all sums."""

    def __init__(self, rows: Array, masses: Array, categories: Categories):
        numbers = rows[:, categories.numeric]
        seen = ~np.isnan(numbers)
        counts = np.maximum(masses @ seen, 1e-300)
        self._center = masses @ np.where(seen, numbers, 0.0) / counts
        self._rows = ProductRows(rows, categories, self._center)
        self._masses, self._categories = masses, categories
        spread = masses @ self._rows.squares / counts
        smallest = smallest_variances(numbers, spread)[0]
        self._floor = np.where(spread > 0.0, smallest, MIN_VARIANCE)
        self._spread = np.maximum(spread, self._floor)
        self._indicators = self._rows.indicators
        self._levels = self._divided(np.asarray(masses @ self._indicators)[None])

    def _divided(self, counts: Array) -> Array:
        """Probabilities of levels from their counts, shape (n_components, n_levels)."""
        out = np.empty_like(counts)
        for part in self._categories.slices:
            some = np.maximum(counts[:, part], 0.0) + 1e-300
            fractions = some / some.sum(axis=1, keepdims=True)
            fractions = np.maximum(fractions, MIN_PROBABILITY)
            out[:, part] = fractions / fractions.sum(axis=1, keepdims=True)
        return out

    def random_start(self, k: int, rng: np.random.Generator) -> ProductMixture:
        """Components around random rows, which are chosen far from each other."""
        values, far = self._rows.values, np.ones(len(self._masses))
        picked: list[int] = []
        for _ in range(k):
            chances = self._masses * far
            chances = chances if chances.sum() > 0.0 else self._masses
            row = int(rng.choice(len(far), p=chances / chances.sum()))
            away = ((values - values[row]) ** 2 / self._spread).sum(axis=1)
            equal = np.asarray(self._indicators @ self._indicators[[row]].toarray()[0])
            away = np.maximum(away + len(self._categories.sizes) - equal, 0.0)
            far = np.minimum(far, away) if picked else away
            picked.append(row)
        own = self._indicators[picked].toarray()
        return ProductMixture(
            np.full(k, 1.0 / k),
            self._center + self._rows.values[picked],
            np.tile(self._spread, (k, 1)),
            self._divided(_OWN_FRACTION * own + (1.0 - _OWN_FRACTION) * self._levels),
        )

    def run(self, mixture: ProductMixture, n_iterations: int, tolerance: float) -> FittedProduct:
        """Iterate from one start."""
        before, converged = -np.inf, False
        for _ in range(n_iterations):
            responsibilities, totals = normalise(self._rows.log_joint(mixture))
            score = float(self._masses @ totals)
            converged = score - before < tolerance
            if converged:
                break
            before = score
            mixture = self._maximised(responsibilities * self._masses[:, None], mixture)
        totals = normalise(self._rows.log_joint(mixture))[1]
        return FittedProduct(mixture, float(self._masses @ totals), converged)

    def _maximised(self, responsibilities: Array, last: ProductMixture) -> ProductMixture:
        weights = responsibilities.sum(axis=0)
        counts = responsibilities.T @ self._rows.seen
        known = counts > 1e-12
        divisors = np.where(known, counts, 1.0)
        away = responsibilities.T @ self._rows.values / divisors
        squares = responsibilities.T @ self._rows.squares / divisors - away**2
        return ProductMixture(
            weights / weights.sum(),
            np.where(known, self._center + away, last.means),
            np.where(known, np.maximum(squares, self._floor), last.variances),
            self._divided(np.asarray((self._indicators.T @ responsibilities).T)),
        )
