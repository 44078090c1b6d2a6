"""Types of covariances: their arrays, and E-steps and M-steps of EM on weighted rows in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_sketch.models.gaussian_kernels import add_second_moments, squared_distances

Array = NDArray[np.float64]
_BLOCK = 1 << 16  # numbers of one block of the joint log-density, which stays in the cache
_TINY = 1e-300
_START_FLOOR = 1e-3  # constant added to the variances of clusters, in squared standard units


@dataclass(frozen=True)
class Components:
    """Weights, means and covariances of a mixture, in standard units."""

    weights: Array
    means: Array
    covariances: Array


@dataclass(frozen=True)
class Moments:
    """Sums over weighted rows, weighted by the probabilities of the components.

    Attributes
    ----------
    counts
        Weight of each component, shape (n_components,); those of a mixture sum to one.
    squared_counts
        Sums of the squared weights of the rows in each component, shape (n_components,).
    sums
        First moments, shape (n_components, n_features).
    squares
        Second moments, of a shape that the type determines.
    log_likelihoods
        Mean log-likelihood of each mixture, in nats, shape (n_mixtures,).
    """

    counts: Array
    squared_counts: Array
    sums: Array
    squares: Array
    log_likelihoods: Array

    @property
    def log_likelihood(self) -> float:
        """Mean log-likelihood of the first mixture, of usually one, in nats."""
        return float(self.log_likelihoods[0])


class Covariances:
    """Variances of each feature and component: covariance type ``"diag"``."""

    name = "diag"
    isotropic = False
    splits = True  # whether each component has covariances of its own
    dimensions = "(n_components, n_features)"  # shape of the arrays

    def shape(self, n_components: int, n_features: int) -> tuple[int, ...]:
        """Shape of the array of covariances."""
        return n_components, n_features

    def n_parameters(self, n_components: int, n_features: int) -> int:
        """Number of free parameters of the covariances of all components."""
        return math.prod(self.shape(n_components, n_features))

    def variances(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Variances of each component in each feature, shape (n_components, n_features)."""
        del n_components, n_features
        return covariances

    def matrices(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Covariance matrices, shape (n_components, n_features, n_features)."""
        variances = self.variances(covariances, n_components, n_features)
        return variances[:, :, None] * np.eye(n_features)

    def from_matrices(self, weights: Array, matrices: Array) -> Array:
        """Covariances of this type that are nearest to matrices (K, n_features, n_features)."""
        return self.from_variances(weights, np.diagonal(matrices, axis1=1, axis2=2).copy())

    def rescaled(self, covariances: Array, factor: Array) -> Array:
        """Covariances of rows times a factor for each feature, shape (n_features,)."""
        return covariances * factor**2

    def plus_variances(self, covariances: Array, variances: Array) -> Array:
        """Covariances of rows with independent errors of these variances, shape (n_features,)."""
        return covariances + variances

    def from_variances(self, weights: Array, variances: Array) -> Array:
        """Covariances of this type that are nearest to variances (n_components, n_features)."""
        del weights
        return variances

    def from_labels(
        self, rows: Array, weights: Array, labels: NDArray[np.intp], n_components: int
    ) -> Components:
        """Components of rows (n, n_features) with labels (n,)."""
        indicator = np.zeros((len(rows), n_components))
        indicator[np.arange(len(rows)), labels] = weights
        counts = np.maximum(indicator.sum(axis=0), 1e-12)
        means = indicator.T @ rows / counts[:, None]
        variances = indicator.T @ rows**2 / counts[:, None] - means**2
        variances = np.maximum(variances, 0.0) + _START_FLOOR
        return Components(counts / counts.sum(), means, self.from_variances(counts, variances))

    def posterior(self, components: Components, rows: Array, weights: Array) -> tuple[Array, Array]:
        """Probabilities of the components given each row, and the loss without each component.

        The probabilities have shape (n, n_components). The losses (n_components,) are how much the
        weighted log-likelihood falls if a component is left out of a mixture of two or more.
        """
        n_components = len(components.weights)
        responsibilities, losses = np.empty((len(rows), n_components)), np.zeros(n_components)
        for part in self._blocks(rows, n_components):
            joint = self.joint(components, rows[part])
            top, each = joint.argmax(axis=0), np.arange(joint.shape[1])
            joint -= joint[top, each]
            joint[top, each] = -np.inf
            second = joint.max(axis=0)
            np.exp(joint, out=joint)
            others = joint.sum(axis=0)  # one less than the sum of all
            kept = np.where(others > _TINY, np.log(np.maximum(others, _TINY)), second)
            losses += (-np.log1p(-joint / (1.0 + others))) @ weights[part]
            np.add.at(losses, top, weights[part] * (np.log1p(others) - kept))
            joint[top, each] = 1.0
            joint /= 1.0 + others
            responsibilities[part] = joint.T
        return responsibilities, losses

    def merged(self, components: Components, k: int) -> tuple[Array, Array, Array]:
        """Means and covariances of component ``k`` merged with each other one; log-determinants.

        Shapes (n_components, n_features), the shape of the covariances, and (n_components,). Merged
        components have the moments of both.
        """
        fraction = components.weights[k] / np.maximum(
            components.weights[k] + components.weights, _TINY
        )
        offsets = components.means[k] - components.means
        means = components.means + fraction[:, None] * offsets
        extra = self._outer(offsets) * self._per_component(fraction * (1.0 - fraction))
        mixed = self._per_component(fraction) * components.covariances[k]
        mixed = mixed + self._per_component(1.0 - fraction) * components.covariances + extra
        return means, mixed, self.log_determinants(mixed, means.shape[1])

    def of_merged(self, merged: Array) -> Array:
        """Covariances of this type of one of the merged components."""
        return merged

    def log_determinants(self, covariances: Array, n_features: int) -> Array:
        """Logarithms of the determinants, shape (n_components,)."""
        del n_features
        return np.asarray(np.log(covariances).sum(axis=1))

    def _outer(self, offsets: Array) -> Array:
        return offsets**2

    @staticmethod
    def _per_component(values: Array) -> Array:
        return values[:, None]

    def pooled(self, components: Components) -> Array:
        """Covariances of one component, with the mean variances of all."""
        return components.weights @ components.covariances

    def replaced(self, components: Components, which: NDArray[np.intp], means: Array) -> Components:
        """Components with some of them moved, with pooled covariances and a small weight."""
        keep = np.ones(len(components.weights), bool)
        keep[which] = False
        weights = np.where(keep, components.weights, 0.5 / len(keep))
        all_means = components.means.copy()
        all_means[which] = means
        widened = self.widened(components, which)
        return Components(weights / weights.sum(), all_means, widened.covariances)

    def widened(self, components: Components, which: NDArray[np.intp]) -> Components:
        """Components some of which get the pooled covariances."""
        covariances = components.covariances.copy()
        covariances[which] = self.pooled(components)
        return Components(components.weights, components.means, covariances)

    def shrunk(self, components: Components, rows_of: Array, prior: float) -> Components:
        """Components whose covariances are means of their own and of a spherical prior.

        In standard units the prior has the variance ``n_components ** (-2 / n_features)``, that of
        as many balls that fill the space of the rows (Fraley and Raftery 2007).

        Parameters
        ----------
        components
            Components of an M-step.
        rows_of
            Effective rows of each component, shape (n_components,).
        prior
            Rows that the prior counts as, ``> 0``.
        """
        k, d = components.means.shape
        spheres = self.from_variances(np.full(k, 1.0 / k), np.full((k, d), k ** (-2.0 / d)))
        own = self._per_component(rows_of / (rows_of + prior))
        covariances = own * components.covariances + (1.0 - own) * spheres
        return Components(components.weights, components.means, covariances)

    def joint(self, components: Components, rows: Array) -> Array:
        """Log of weight times density, shape (n_components, n).

        With the rows last, sums over components are sums of whole arrays, which are fast.
        """
        linear, quadratic, constants = self._coefficients(components)
        joint = linear @ rows.T
        joint += quadratic @ (rows * rows).T
        joint += constants[:, None]
        return np.asarray(joint)

    def _variances(self, components: Components) -> Array:
        return components.covariances

    def _coefficients(self, components: Components) -> tuple[Array, Array, Array]:
        variances = self._variances(components)
        precisions = 1.0 / variances
        linear = components.means * precisions
        constants = (
            np.log(np.maximum(components.weights, _TINY))
            - 0.5 * np.log(2.0 * np.pi * variances).sum(axis=1)
            - 0.5 * (linear * components.means).sum(axis=1)
        )
        return linear, -0.5 * precisions, constants

    def log_density(self, components: Components, rows: Array) -> Array:
        """Log-density of each row, shape (n,)."""
        density = np.empty(len(rows))
        for part in self._blocks(rows, len(components.weights)):
            joint = self.joint(components, rows[part])
            largest = joint.max(axis=0)
            density[part] = largest + np.log(np.exp(joint - largest).sum(axis=0))
        return density

    @staticmethod
    def _blocks(rows: Array, n_components: int) -> Iterator[slice]:
        size = max(_BLOCK // max(n_components, rows.shape[1]), 64)
        return (slice(k, min(k + size, len(rows))) for k in range(0, len(rows), size))

    def expectation(
        self,
        components: Components,
        rows: Array,
        weights: Array,
        n_mixtures: int = 1,
        *,
        single: bool = True,
    ) -> Moments:
        """E-step, with sums in float64.

        Parameters
        ----------
        components
            Components of one mixture; or of several with as many components each, one mixture after
            the other, whose weights sum to one in all.
        rows, weights
            Rows, shape (n_rows, n_features), and their weights, shape (n_rows,).
        n_mixtures
            Number of mixtures.
        single
            Whether exponentials are computed in float32.
        """
        k, d = components.means.shape
        dtype: np.dtype[np.floating] = np.dtype(np.float32 if single else np.float64)
        counts, squared = np.zeros(k), np.zeros(k)
        sums, squares = np.zeros((k, d)), self._no_squares(k, d)
        totals = np.full(n_mixtures, math.log(n_mixtures))
        for part in self._blocks(rows, k):
            block, w = rows[part], weights[part]
            joint = self.joint(components, block)
            mixtures = joint.reshape(n_mixtures, -1, len(block))
            largest = mixtures.max(axis=1)
            mixtures -= largest[:, None]
            fractions = mixtures.astype(dtype)
            np.exp(fractions, out=fractions)
            norm = fractions.sum(axis=1, dtype=np.float64)
            totals += (largest + np.log(norm)) @ w
            np.multiply(fractions, (w / norm)[:, None], out=mixtures)
            counts += joint.sum(axis=1)
            squared += np.einsum("kn,kn->k", joint, joint)
            sums += joint @ block
            self._add_squares(squares, joint, block)
        return Moments(counts, squared, sums, squares, totals)

    def _no_squares(self, n_components: int, n_features: int) -> Array:
        return np.zeros((n_components, n_features))

    def _add_squares(self, squares: Array, responsibilities: Array, block: Array) -> None:
        squares += responsibilities @ (block * block)

    def constrained(self, matrices: Array, before: Array, floor: Array) -> Array:
        """Matrices of an M-step, of no smaller likelihood than those before.

        Parameters
        ----------
        matrices
            Second moments about the means, shape (n_matrices, n_features, n_features).
        before
            Covariances before the step; they are the floor where they are below it.
        floor
            Smallest variances, shape (n_features,).
        """
        units = np.sqrt(np.outer(floor, floor))
        lowest = min(float(np.linalg.eigvalsh(before / units).min()), 1.0)
        narrow = np.linalg.eigvalsh(matrices / units).min(axis=1) < lowest
        found = matrices.copy()
        found[narrow] = units * floored(matrices[narrow] / units, lowest)
        return found

    def maximization(
        self, moments: Moments, before: Components, floor: float | Array
    ) -> Components:
        """M-step; components without any weight keep their parameters."""
        seen = moments.counts > 1e-12
        counts = np.where(seen, moments.counts, 1.0)[:, None]
        means = np.where(seen[:, None], moments.sums / counts, before.means)
        covariances = self._covariances(moments, counts, means, before, floor)
        if self.splits:
            own = seen.reshape(-1, *(1,) * (covariances.ndim - 1))
            covariances = np.where(own, covariances, before.covariances)
        return Components(moments.counts / moments.counts.sum(), means, covariances)

    def _covariances(
        self,
        moments: Moments,
        counts: Array,
        means: Array,
        before: Components,
        floor: float | Array,
    ) -> Array:
        return np.maximum(moments.squares / counts - means**2, floor)


class Spherical(Covariances):
    """One variance for each component: covariance type ``"spherical"``."""

    name = "spherical"
    isotropic = True
    dimensions = "(n_components,)"

    def shape(self, n_components: int, n_features: int) -> tuple[int, ...]:
        """Shape of the array of covariances."""
        return (n_components,)

    def variances(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Variances of each component in each feature, shape (n_components, n_features)."""
        return np.repeat(covariances[:, None], n_features, axis=1)

    def rescaled(self, covariances: Array, factor: Array) -> Array:
        """Covariances of rows times a factor for each feature."""
        return covariances * factor[0] ** 2

    def plus_variances(self, covariances: Array, variances: Array) -> Array:
        """Covariances of rows with independent errors of these variances, shape (n_features,)."""
        return np.asarray(covariances + variances.mean())

    def from_variances(self, weights: Array, variances: Array) -> Array:
        """Covariances of this type that are nearest to variances (n_components, n_features)."""
        return np.asarray(variances.mean(axis=1))

    def log_determinants(self, covariances: Array, n_features: int) -> Array:
        """Logarithms of the determinants, shape (n_components,)."""
        return np.asarray(n_features * np.log(covariances))

    def _outer(self, offsets: Array) -> Array:
        return np.asarray((offsets**2).mean(axis=1))

    @staticmethod
    def _per_component(values: Array) -> Array:
        return values

    def _variances(self, components: Components) -> Array:
        return self.variances(components.covariances, *components.means.shape)

    def _covariances(
        self,
        moments: Moments,
        counts: Array,
        means: Array,
        before: Components,
        floor: float | Array,
    ) -> Array:
        return np.maximum((moments.squares / counts - means**2).mean(axis=1), np.mean(floor))


class Full(Covariances):
    """One matrix for each component: covariance type ``"full"``."""

    name = "full"
    dimensions = "(n_components, n_features, n_features)"

    def shape(self, n_components: int, n_features: int) -> tuple[int, ...]:
        """Shape of the array of covariances."""
        return n_components, n_features, n_features

    def n_parameters(self, n_components: int, n_features: int) -> int:
        """Number of free parameters of the covariances of all components."""
        return n_components * n_features * (n_features + 1) // 2

    def variances(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Variances of each component in each feature, shape (n_components, n_features)."""
        return np.diagonal(covariances, axis1=1, axis2=2)

    def matrices(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Covariance matrices, shape (n_components, n_features, n_features)."""
        return covariances

    def from_matrices(self, weights: Array, matrices: Array) -> Array:
        """Covariances of this type that are nearest to matrices (K, n_features, n_features)."""
        return matrices

    def rescaled(self, covariances: Array, factor: Array) -> Array:
        """Covariances of rows times a factor for each feature."""
        return covariances * factor[:, None] * factor

    def plus_variances(self, covariances: Array, variances: Array) -> Array:
        """Covariances of rows with independent errors of these variances, shape (n_features,)."""
        return np.asarray(covariances + np.diag(variances))

    def from_variances(self, weights: Array, variances: Array) -> Array:
        """Covariances of this type that are nearest to variances (n_components, n_features)."""
        return variances[:, :, None] * np.eye(variances.shape[1])

    def log_determinants(self, covariances: Array, n_features: int) -> Array:
        """Logarithms of the determinants, shape (n_components,)."""
        del n_features
        return np.asarray(np.linalg.slogdet(covariances)[1])

    def _outer(self, offsets: Array) -> Array:
        return offsets[:, :, None] * offsets[:, None, :]

    @staticmethod
    def _per_component(values: Array) -> Array:
        return values[:, None, None]

    def pooled(self, components: Components) -> Array:
        """Covariances of one component, with the mean covariances of all."""
        return np.einsum("k,kij->ij", components.weights, components.covariances)

    def joint(self, components: Components, rows: Array) -> Array:
        """Log of weight times density, shape (n_components, n)."""
        lower = np.linalg.cholesky(components.covariances)
        joint = -0.5 * squared_distances(rows, components.means, lower)
        half = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        constants = np.log(np.maximum(components.weights, _TINY)) - half
        joint += (constants - 0.5 * rows.shape[1] * np.log(2.0 * np.pi))[:, None]
        return joint

    def _no_squares(self, n_components: int, n_features: int) -> Array:
        return np.zeros((n_components, n_features, n_features))

    def _add_squares(self, squares: Array, responsibilities: Array, block: Array) -> None:
        add_second_moments(squares, responsibilities, block)

    def _covariances(
        self,
        moments: Moments,
        counts: Array,
        means: Array,
        before: Components,
        floor: float | Array,
    ) -> Array:
        matrices = moments.squares / counts[:, :, None] - means[:, :, None] * means[:, None, :]
        return floored(matrices, floor)


class Tied(Covariances):
    """One matrix for all components: covariance type ``"tied"``."""

    name = "tied"
    splits = False
    dimensions = "(n_features, n_features)"

    def shape(self, n_components: int, n_features: int) -> tuple[int, ...]:
        """Shape of the array of covariances."""
        return n_features, n_features

    def n_parameters(self, n_components: int, n_features: int) -> int:
        """Number of free parameters of the covariances of all components."""
        return n_features * (n_features + 1) // 2

    def variances(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Variances of each component in each feature, shape (n_components, n_features)."""
        return np.repeat(np.diagonal(covariances)[None], n_components, axis=0)

    def matrices(self, covariances: Array, n_components: int, n_features: int) -> Array:
        """Covariance matrices, shape (n_components, n_features, n_features)."""
        return np.repeat(covariances[None], n_components, axis=0)

    def from_matrices(self, weights: Array, matrices: Array) -> Array:
        """Covariances of this type that are nearest to matrices (K, n_features, n_features)."""
        return np.einsum("k,kij->ij", weights, matrices)

    def rescaled(self, covariances: Array, factor: Array) -> Array:
        """Covariances of rows times a factor for each feature."""
        return covariances * factor[:, None] * factor

    def plus_variances(self, covariances: Array, variances: Array) -> Array:
        """Covariances of rows with independent errors of these variances, shape (n_features,)."""
        return np.asarray(covariances + np.diag(variances))

    def from_variances(self, weights: Array, variances: Array) -> Array:
        """Covariances of this type that are nearest to variances (n_components, n_features)."""
        return np.diag(weights @ variances)

    def widened(self, components: Components, which: NDArray[np.intp]) -> Components:
        """The same components: they share their covariances."""
        return components

    def shrunk(self, components: Components, rows_of: Array, prior: float) -> Components:
        """Components whose matrix is a mean of their own and of a prior.

        The prior has the shape of the covariance matrix of all rows, as for one ellipsoid (Fraley
        and Raftery 2007): a sphere would widen features that are nearly collinear by far too much.
        """
        k, d = components.means.shape
        offsets = components.means - components.weights @ components.means
        of_rows = components.covariances + (components.weights[:, None] * offsets).T @ offsets
        own = rows_of.sum() / (rows_of.sum() + prior)
        matrix = own * components.covariances + (1.0 - own) * k ** (-2.0 / d) * of_rows
        return Components(components.weights, components.means, matrix)

    def joint(self, components: Components, rows: Array) -> Array:
        """Log of weight times density, shape (n_components, n)."""
        lower = np.linalg.cholesky(components.covariances)
        whitening = np.linalg.inv(lower).T
        white, means = rows @ whitening, components.means @ whitening
        joint = means @ white.T
        joint -= 0.5 * (white * white).sum(axis=1)
        half = np.log(np.diagonal(lower)).sum() + 0.5 * len(lower) * np.log(2.0 * np.pi)
        constants = np.log(np.maximum(components.weights, _TINY)) - half
        joint += (constants - 0.5 * (means * means).sum(axis=1))[:, None]
        return np.asarray(joint)

    def _no_squares(self, n_components: int, n_features: int) -> Array:
        return np.zeros((n_features, n_features))

    def _add_squares(self, squares: Array, responsibilities: Array, block: Array) -> None:
        squares += (block * responsibilities.sum(axis=0)[:, None]).T @ block

    def _covariances(
        self,
        moments: Moments,
        counts: Array,
        means: Array,
        before: Components,
        floor: float | Array,
    ) -> Array:
        matrix = moments.squares - (means * moments.counts[:, None]).T @ means
        return floored(matrix, floor)


def floored(matrices: Array, floor: float | Array) -> Array:
    """Symmetric part, with eigenvalues that are at least the floor, if that is above zero.

    With one for each feature, these are eigenvalues in units of its root.
    """
    if isinstance(floor, np.ndarray):
        unit = np.sqrt(np.outer(floor, floor))
        return np.asarray(unit * floored(matrices / unit, 1.0))
    matrices = 0.5 * (matrices + np.swapaxes(matrices, -1, -2))
    if floor == 0.0:
        return np.asarray(matrices)
    with suppress(np.linalg.LinAlgError):  # a tenth of the time of the eigenvalues
        np.linalg.cholesky(matrices - floor * np.eye(matrices.shape[-1]))
        return np.asarray(matrices)
    values, vectors = np.linalg.eigh(matrices)
    if (values >= floor).all():
        return np.asarray(matrices)
    values = np.maximum(values, floor)
    return np.asarray((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2))


COVARIANCES: dict[str, Covariances] = {
    family.name: family for family in (Covariances(), Spherical(), Tied(), Full())
}
