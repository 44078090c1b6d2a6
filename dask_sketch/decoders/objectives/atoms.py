"""Families of atoms (sketches of components): parameters, their bounds and smallest variances.

An atom has the sketch (eq. 15 of Keriven et al. 2018)

    a_j = exp(g_j - i w_j.mean - w_j.diag(variances) w_j / 2) / sqrt(m),

and a family is an affine map from ``q`` shape parameters to variances, ``variances = shape @
spread``, together with an envelope ``g`` that all its atoms share:

- ``"gaussian"``: diagonal covariance; ``q = n_features``;
- ``"isotropic"``: one variance for all features, in the units of the data; ``q = 1``;
- ``"known"``: Gaussians with one fixed covariance, which is the envelope; ``q = 0``;
- ``"dirac"``: points; ``q = 0`` and no envelope;
- ``"full"``: covariance matrices, whose entries are the shape parameters: first the variances, then
  the covariances of the pairs of features; ``q = n_features (n_features + 1) / 2``;
- ``"tied"``: the same, for fits whose components share their matrix;
- ``"scaled"``: a multiple of the variances that the frequency distribution expects in each feature;
  ``q = 1``. It is isotropic if the distribution is. It is not a model of
  :func:`dask_sketch.decode`: densities of many atoms consist of it, so that the units of features
  do not matter.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders.names import ATOMS
from dask_sketch.errors import DecodeError
from dask_sketch.models.covariances import floored
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.choices import rank_of, uses_matrices

Array = npt.NDArray[np.float64]
FAMILIES = (*ATOMS, "scaled", "full", "tied")

# Variances are kept above this fraction of the mean component variance of the frequency
# distribution, or of the variance of the data if that is less. The paper's bound is 1e-15 (sec.
# 5.3), a numerical guard. If the data is not a mixture of Gaussians, least squares makes components
# of almost no width, which cost nothing in the sketch and much in likelihood; and frequencies
# sampled for one variance say little about a variance ten times smaller. On speech (d=12, K=64,
# m=4000) floors of 0.02, 0.05, 0.1 and 0.3 end at -40.82, -40.79, -40.68 and -40.57 nats per
# held-out frame.
VARIANCE_FLOOR = 0.1
_MAX_PLACES = 1e5  # atoms that are too many to cover the range of the data
# bounds of a variance after a step, relative to that before; the rise is for matrices only
_LARGEST_FALL, _LARGEST_RISE = 0.3, 10.0
_MARGIN, _WIDEST = 1.0, 25.0  # ranges of the data, and variances
# longest step of the mean of a component with a matrix, in its standard deviations
_LONGEST_MOVE = 3.0
_ATOMS_IN_RANGE = 4.0  # standard deviations of the widest random atom in the range of the data
_NO_WIDTH = 1e-15  # floor in features that do not vary at all
# Smallest eigenvalue of a covariance matrix, as a fraction of the floor of diagonal covariances:
# features that are strongly correlated have small eigenvalues, and none has a small variance.
_EIGENVALUE_FLOOR = 0.01


def count_shapes(model: str, n_features: int) -> int:
    """Number of shape parameters of one atom.

    Examples
    --------
    >>> count_shapes("gaussian", 3), count_shapes("isotropic", 3), count_shapes("low-rank:1", 3)
    (3, 1, 6)
    """
    rank = rank_of(model)
    if rank is not None:
        return n_features * (1 + rank)
    n_entries = n_features * (n_features + 1) // 2
    counts = {"gaussian": n_features, "isotropic": 1, "scaled": 1, "full": n_entries}
    counts["tied"] = n_entries
    return counts.get(model, 0)


def covariance_matrix(model: str, covariance: npt.ArrayLike | None, d: int) -> Array | None:
    """Known covariance as a matrix (n_features, n_features), validated; None for other models.

    Parameters
    ----------
    model
        Name of a family.
    covariance
        Variances (n_features,) or symmetric positive semidefinite matrix (n_features, n_features)
        in data units; for ``"known"`` only.
    d
        Number of features.

    Raises
    ------
    DecodeError
        If the covariance is missing, superfluous or invalid.
    """
    if (covariance is not None) != (model == "known"):
        raise DecodeError(
            "covariance=None with model='known': give the variances or the covariance matrix of "
            "the components."
            if covariance is None
            else f"covariance is given with model={model!r}: leave it out, or give model='known'."
        )
    if covariance is None:
        return None
    try:
        array = np.asarray(covariance, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DecodeError(
            f"covariance={covariance!r} is not an array of numbers: give variances or a matrix."
        ) from error
    if array.shape not in ((d,), (d, d)):
        raise DecodeError(
            f"covariance has shape {array.shape}; for n_features={d} give ({d},) or ({d}, {d})."
        )
    matrix = np.diag(array) if array.ndim == 1 else array
    if not np.isfinite(matrix).all():
        raise DecodeError("covariance holds NaN or infinity: give finite variances.")
    if not np.allclose(matrix, matrix.T):
        raise DecodeError("covariance is not symmetric: give a symmetric matrix.")
    lowest = np.linalg.eigvalsh(matrix)[0]
    if lowest < -1e-10 * np.abs(matrix).max():
        raise DecodeError(
            f"covariance has the eigenvalue {lowest:g}: give a matrix without negative eigenvalues."
        )
    return matrix


def entries(n_features: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows and columns of the entries of a covariance matrix: the diagonal, then all pairs.

    Examples
    --------
    >>> [index.tolist() for index in entries(3)]
    [[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    """
    each = np.arange(n_features)
    first, second = np.triu_indices(n_features, 1)
    return np.concatenate([each, first]), np.concatenate([each, second])


def packed(matrices: Array) -> Array:
    """Entries (..., q) of symmetric matrices (..., n_features, n_features), see :func:`entries`."""
    first, second = entries(matrices.shape[-1])
    return np.asarray(matrices[..., first, second])


def unpacked(shapes: Array, n_features: int) -> Array:
    """Symmetric matrices (..., n_features, n_features) of entries (..., q)."""
    first, second = entries(n_features)
    matrices = np.empty((*shapes.shape[:-1], n_features, n_features))
    matrices[..., first, second] = shapes
    matrices[..., second, first] = shapes
    return matrices


@dataclass(frozen=True)
class Family:
    """One family of atoms, in coordinates that divide each feature by its own scale.

    Attributes
    ----------
    name
        One of ``FAMILIES``.
    diagonal
        Whether covariances are diagonal.
    spread
        Variances of a unit of each shape parameter, shape (q, n_features), in normalised
        coordinates. If all shape parameters are one, variances are the mean component variances of
        the frequency distribution, or their mean over features.
    log_envelope
        Natural logarithm ``g`` of the factor that all atoms share, shape (n_frequencies,).
    fixed
        Part of the variances that no parameter changes, shape (n_features,), in data units.
    """

    name: str
    diagonal: bool
    spread: Array
    log_envelope: Array
    fixed: Array

    @classmethod
    def build(
        cls, model: str, scale: Array, frequencies: Array, covariance: npt.ArrayLike | None = None
    ) -> Family:
        """Build the family of a model.

        Parameters
        ----------
        model
            One of ``FAMILIES``.
        scale
            Unit of each feature, in data units, shape (n_features,).
        frequencies
            Frequencies in inverse data units, shape (n_features, n_frequencies).
        covariance
            Argument of :func:`covariance_matrix`.

        Raises
        ------
        DecodeError
            If the model is unknown, or the covariance is not what the model needs.
        """
        if model not in FAMILIES:
            raise DecodeError(f"model={model!r} is unknown: choose one of {', '.join(ATOMS)}.")
        d, m = frequencies.shape
        fixed, log_envelope, diagonal = np.zeros(d), np.zeros(m), True
        matrix = covariance_matrix(model, covariance, d)
        if matrix is not None:
            fixed = np.diagonal(matrix).copy()
            diagonal = bool((matrix == np.diag(fixed)).all())
            log_envelope = -0.5 * np.einsum("ij,ij->j", frequencies, matrix @ frequencies)
        spread = {
            "gaussian": np.eye(d),
            "isotropic": (scale @ scale / d / scale**2)[None, :],
            "scaled": np.ones((1, d)),
            "full": np.eye(count_shapes("full", d), d),
            "tied": np.eye(count_shapes("tied", d), d),
        }.get(model, np.empty((0, d)))
        diagonal = diagonal and not uses_matrices(model)
        return cls(model, diagonal, spread, log_envelope, fixed)

    @property
    def has_matrices(self) -> bool:
        """Whether the shape parameters are the entries of covariance matrices."""
        return uses_matrices(self.name)

    def factors(self, frequencies: Array) -> Array:
        """Derivatives (q, n_frequencies) of the logarithm of an atom by its shape parameters."""
        if not self.has_matrices:
            return np.asarray(-0.5 * self.spread @ frequencies**2)
        first, second = entries(len(frequencies))
        halves = np.where(first == second, -0.5, -1.0)
        return np.asarray(halves[:, None] * frequencies[first] * frequencies[second])

    def nearest(self, variances: Array) -> Array:
        """Shape parameters (..., q) nearest to variances (..., n_features), both normalised.

        A parameter is the mean, over the features that it spans, of variances in units of its
        spread.
        """
        spans = self.spread > 0.0
        each = np.divide(spans, self.spread, out=np.zeros_like(self.spread), where=spans)
        n_features = np.maximum(spans.sum(axis=1, keepdims=True), 1)
        return np.asarray(variances @ (each / n_features).T)


class ParameterSpace:
    """Parameters ``theta`` of the atoms of one family, for the data of one sketch.

    Optimisers see data shifted by the mean of the sketch (of a private sketch, the middle of its
    bounds) and divided, feature by feature, by the standard deviation of the mean component of the
    frequency distribution: means and variances are of order one for any units and offset of the
    data. The change of variables is exact: frequencies are multiplied by the scale, and the sketch
    by ``exp(+i w.shift)``.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    model, box, variance_floor, covariance
        Arguments of :class:`~dask_sketch.decoders.objectives.objective.Objective`.

    Attributes
    ----------
    family : Family
        Meaning of the shape parameters.
    n_features, n_shapes, n_parameters : int
        Sizes; an atom has ``n_features + n_shapes`` parameters: the mean, then the shape.
    shift, scale : ndarray of shape (n_features,)
        Origin and unit of the normalised coordinates, in data units.
    lower, upper : ndarray of shape (n_parameters,) or (K, n_parameters)
        Bounds of the parameters of an atom, or of each of ``K`` atoms.
    varies : ndarray of shape (n_features,)
        Whether the data varies in each feature.
    data_deviations : ndarray of shape (n_features,)
        Standard deviations of the data in normalised coordinates.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        box: Array | None,
        variance_floor: float,
        covariance: npt.ArrayLike | None,
    ) -> None:
        frequencies = sketch.feature_map.frequencies
        self.n_features = len(frequencies)
        self.scale = np.sqrt(sketch.feature_map.mean_variances)
        self.shift, data_variance = sketch.extent
        self.family = Family.build(model, self.scale, frequencies, covariance)
        self.n_shapes = len(self.family.spread)
        self.n_parameters = self.n_features + self.n_shapes

        variance = data_variance / self.scale**2
        self.varies = variance > 0.0
        self.data_deviations = np.sqrt(variance)
        self._range = (np.stack([sketch.minimum, sketch.maximum]) - self.shift) / self.scale
        if not np.isfinite(self._range).all():
            self._range = np.stack([-3.0 * self.data_deviations, 3.0 * self.data_deviations])
        data = self.family.nearest(variance)
        # narrow components are expected as well if the map has several scales
        self._narrowest = float((sketch.feature_map.min_variances / self.scale**2).min())
        expected = np.minimum(data, self._narrowest)
        floor = np.where(data > 0.0, variance_floor * expected, _NO_WIDTH)
        if self.family.has_matrices:
            floor *= _EIGENVALUE_FLOOR
            floor[self.n_features :] = -np.inf  # covariances of pairs
        infinite = np.full(self.n_features, np.inf)
        low, high = (-infinite, infinite) if box is None else (box - self.shift) / self.scale
        self.lower = np.concatenate([low, floor])
        self.upper = np.concatenate([high, np.full(self.n_shapes, np.inf)])

    def restrict(self, features: npt.NDArray[np.intp]) -> Self:
        """Parameters of atoms of known variances in some of the features.

        Parameters
        ----------
        features
            Numbers of the features.
        """
        assert self.n_shapes == 0, self.family.name
        fewer = copy(self)
        fewer.n_features = fewer.n_parameters = len(features)
        for name in ("scale", "shift", "varies", "lower", "upper", "data_deviations"):
            setattr(fewer, name, getattr(self, name)[features])
        fewer._range = self._range[:, features]
        fixed, spread = self.family.fixed[features], self.family.spread[:, features]
        fewer.family = replace(self.family, fixed=fixed, spread=spread)
        return fewer

    def clip(self, theta: Array) -> Array:
        """Atoms moved into the bounds."""
        theta = np.clip(theta, self.lower, self.upper)
        return self._with_eigenvalues(theta) if self.family.has_matrices else theta

    def _with_eigenvalues(self, theta: Array) -> Array:
        """Atoms whose matrices have eigenvalues above their floor, in units of that of features."""
        d = self.n_features
        unit = np.sqrt(self.lower[d : 2 * d])
        matrices = floored(unpacked(theta[:, d:], d) / np.outer(unit, unit), 1.0)
        return np.concatenate([theta[:, :d], packed(matrices * np.outer(unit, unit))], axis=1)

    def is_in_reach(self, theta: Array) -> bool:
        """Whether means and variances are of the size of the data, with a wide margin.

        A component that is far wider than the data only adds to the lowest frequencies.
        """
        d = self.n_features
        low, high = self._range
        margin = _MARGIN * (high - low)
        means, variances = theta[:, :d], theta[:, d : 2 * d]
        within = (means > low - margin).all() and (means < high + margin).all()
        return bool(within and variances.max() < _WIDEST * (self.data_deviations**2).max())

    def limit_step(self, theta: Array, trial: Array) -> Array:
        """Atoms after a step, with no variance below a fraction of the one before.

        The noise of a sketch depends on the variances: a fit that is weighted by the noise is blind
        to a variance that became far too small at once.
        """
        shapes = slice(self.n_features, None)
        if not self.family.has_matrices:
            trial = self.clip(trial)
            trial[:, shapes] = np.maximum(trial[:, shapes], _LARGEST_FALL * theta[:, shapes])
            return trial
        lower = np.linalg.cholesky(unpacked(theta[:, shapes], self.n_features))
        inverse, upper = np.linalg.inv(lower), np.swapaxes(lower, 1, 2)
        after = inverse @ unpacked(trial[:, shapes], self.n_features) @ np.swapaxes(inverse, 1, 2)
        values, vectors = np.linalg.eigh(after)
        values = np.clip(values, _LARGEST_FALL, _LARGEST_RISE)
        after = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
        moved = trial[:, : self.n_features] - theta[:, : self.n_features]
        length = np.linalg.norm(np.einsum("kij,kj->ki", inverse, moved), axis=1)
        moved *= np.minimum(_LONGEST_MOVE / np.maximum(length, 1e-300), 1.0)[:, None]
        means = theta[:, : self.n_features] + moved
        return self.clip(np.concatenate([means, packed(lower @ after @ upper)], axis=1))

    def random_atoms(self, rng: np.random.Generator, n: int, *, spread_out: bool = False) -> Array:
        """Sample starting points of Step 1 (n, n_parameters) at the center of the data.

        Variances are ``U[0.5, 1.5]`` times the mean component variance of the frequency
        distribution (sec. 5.3).

        Parameters
        ----------
        rng
            Random number generator.
        n
            Number of atoms.
        spread_out
            Sample the means too, from a Gaussian with the mean and variances of the data.
        """
        atoms = np.zeros((n, self.n_parameters))
        atoms[:, self.n_features :] = rng.uniform(0.5, 1.5, n)[:, None]
        if spread_out:
            sampled = rng.standard_normal((n, self.n_features))
            atoms[:, : self.n_features] = sampled * self.data_deviations
        return self.clip(atoms)

    @property
    def n_places(self) -> int:
        """Number of atoms that cover the range of the data; few if no affordable number does."""
        low, high = self._range
        width = 2.0 * np.sqrt(self._narrowest)
        needed = float(np.prod(np.minimum(np.maximum((high - low) / width, 1.0), 1e6)))
        return round(needed) if needed <= _MAX_PLACES else 0

    def atoms_in_range(self, rng: np.random.Generator, n: int) -> Array:
        """Sample atoms (n, n_parameters) of all widths, with means in the range of the data.

        Far and rare clusters hardly change the variance of the data. A wide atom is seen by low
        frequencies alone, and leads the way to narrow ones.

        Parameters
        ----------
        rng
            Random number generator.
        n
            Number of atoms.
        """
        low, high = self._range
        atoms = np.zeros((n, self.n_parameters))
        atoms[:, : self.n_features] = rng.uniform(low, high, (n, self.n_features))
        widest = max(float((high - low).max()) / _ATOMS_IN_RANGE, 1.0) ** 2
        factors = (max(widest / self._narrowest, 1.0)) ** rng.uniform(0.0, 1.0, n)
        atoms[:, self.n_features :] = self._narrowest * factors[:, None]
        return self.clip(atoms)

    def variances(self, theta: Array) -> Array:
        """Variances of atoms (K, n_features) in normalised coordinates; zero for points."""
        return theta[:, self.n_features :] @ self.family.spread + self.family.fixed / self.scale**2

    def shapes(self, theta: Array) -> Array:
        """Variances of atoms, or covariance matrices, in normalised coordinates."""
        if not self.family.has_matrices:
            return self.variances(theta)
        return unpacked(theta[:, self.n_features :], self.n_features)

    def complete_information(self, atom: Array) -> Array | None:
        """Fisher information of one row about a component, if it is known which rows are its.

        Parameters
        ----------
        atom
            Parameters of the component, shape (n_parameters,).

        Returns
        -------
        information
            Information about the mean and the shape parameters, shape (n_parameters,
            n_parameters); None for families whose components share parameters, or have a known
            covariance that is not diagonal.
        """
        d, family = self.n_features, self.family
        if family.name == "tied" or not (family.diagonal or family.has_matrices):
            return None
        shape = self.shapes(atom[None])[0]
        out = np.zeros((self.n_parameters, self.n_parameters))
        if shape.ndim == 1:
            out[:d, :d] = np.diag(1.0 / shape)
            out[d:, d:] = 0.5 * (family.spread / shape**2) @ family.spread.T
            return out
        precision = np.linalg.inv(shape)
        out[:d, :d], out[d:, d:] = precision, self._shape_information(atom, precision)
        return out

    def _shape_information(self, atom: Array, precision: Array) -> Array:
        """Information about the entries of a covariance matrix, from its inverse."""
        del atom
        first, second = entries(self.n_features)
        halves = np.where(first == second, 0.5, 1.0)
        products = precision[np.ix_(first, first)] * precision[np.ix_(second, second)]
        products += precision[np.ix_(first, second)] * precision[np.ix_(second, first)]
        return np.asarray(halves * halves[:, None] * products)

    def to_data_units(self, theta: Array) -> tuple[Array, Array]:
        """Means and variances (K, n_features) of atoms, in the units of the data.

        With a known covariance matrix, the variances are its diagonal.
        """
        means = self.shift + self.scale * theta[:, : self.n_features]
        return means, self.scale**2 * self.variances(theta)

    def matrices(self, theta: Array) -> Array:
        """Covariance matrices (K, n_features, n_features) of atoms, in the units of the data."""
        unit = np.outer(self.scale, self.scale)
        return unpacked(theta[:, self.n_features :], self.n_features) * unit

    def from_data_units(self, means: Array, variances: Array) -> Array:
        """Parameters (K, n_parameters) of the atoms nearest to means and variances of the data.

        Differences between features that the family cannot express are averaged out. Covariance
        matrices (K, n_features, n_features) may take the place of the variances.
        """
        if variances.ndim == 3:
            if self.family.has_matrices:
                shapes = packed(variances / np.outer(self.scale, self.scale))
                return np.concatenate([(means - self.shift) / self.scale, shapes], axis=1)
            variances = np.diagonal(variances, axis1=1, axis2=2)
        shapes = self.family.nearest(variances / self.scale**2)
        return np.concatenate([(means - self.shift) / self.scale, shapes], axis=1)

    def split(self, theta: Array) -> Array:
        """Function Split (sec. 3.2): two atoms (2K, n_parameters) for each one.

        The means move by one standard deviation, in both directions, along the feature of largest
        variance; variances stay. Variances are compared in units of those of the frequency
        distribution, which is the comparison of the paper if the distribution is isotropic. The
        two halves of an atom are adjacent rows.

        Points move by one standard deviation of the mean component of the frequency
        distribution, along the feature in which the data is widest.
        """
        variances = self.variances(theta)
        along = variances.argmax(axis=1)
        length = np.sqrt(variances.max(axis=1))
        if self.family.name == "dirac":
            along[:], length[:] = self.data_deviations.argmax(), 1.0
        step = np.zeros_like(theta)
        step[np.arange(len(theta)), along] = length
        return self.clip(np.stack([theta - step, theta + step], axis=1).reshape(-1, theta.shape[1]))
