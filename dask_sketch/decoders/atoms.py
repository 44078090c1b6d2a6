"""Sketches of atoms, evaluated by blocks of frequencies that threads may share."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from dask_sketch.decoders import atom_kernels
from dask_sketch.decoders.threads import Threads
from dask_sketch.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dask_sketch.sketching.sketch import Sketch

# Families of atoms: what a component may look like, and how its parameters say so.
#
# An atom has the sketch (eq. 15 of Keriven et al. 2018)
#
#     a_j = exp(g_j - i w_j.mean - w_j.diag(variances) w_j / 2) / sqrt(m),
#
# and a family is an affine map from ``q`` shape parameters to variances, ``variances = shape @
# spread``, beside an envelope ``g`` that all its atoms share:
#
# - ``"gaussian"``: diagonal covariance; ``q = n_features``;
# - ``"isotropic"``: one variance for all features, in the units of the data; ``q = 1``;
# - ``"known"``: Gaussians of one fixed covariance, which is the envelope; ``q = 0``;
# - ``"dirac"``: points; ``q = 0`` and no envelope;
# - ``"scaled"``: a multiple of the variances that the frequency distribution expects, feature by
# feature;   ``q = 1``. It is isotropic where the distribution is, and no model of
# :func:`dask_sketch.decode`: the   density that centroids divide is made of it, so that the units
# of features do not matter.

Array = npt.NDArray[np.float64]
Model = Literal["gaussian", "isotropic", "known", "dirac"]
MODELS: tuple[str, ...] = get_args(Model)
FAMILIES = (*MODELS, "scaled")


@dataclass(frozen=True)
class Family:
    """One family, in coordinates where each feature is divided by a scale of its own.

    Attributes
    ----------
    name
        One of ``FAMILIES``.
    diagonal
        Whether covariances are diagonal.
    spread
        Variances of a shape, shape (q, n_features), in normalised coordinates; all one-entries of a
        shape make the frequency distribution's mean component variance, or its mean over features.
    log_envelope
        Natural logarithm ``g`` of what all atoms share, shape (n_frequencies,).
    fixed
        The part of each component's variances that no parameter changes, shape (n_features,), in
        data units.
    """

    name: str
    diagonal: bool
    spread: Array
    log_envelope: Array
    fixed: Array

    def nearest(self, variances: Array) -> Array:
        """Shapes (..., q) nearest to variances (..., n_features) in normalised coordinates.

        A parameter is the mean, over the features it spans, of variances in units of its spread.
        """
        spans = self.spread > 0.0
        each = np.divide(spans, self.spread, out=np.zeros_like(self.spread), where=spans)
        return np.asarray(variances @ (each / spans.sum(axis=1, keepdims=True)).T)


def family(model: str, scale: Array, frequencies: Array, covariance: Array | None) -> Family:
    """Build a family.

    Parameters
    ----------
    model
        One of ``FAMILIES``.
    scale
        Unit of each feature, in data units, shape (n_features,).
    frequencies
        In inverse data units, shape (n_features, n_frequencies).
    covariance
        For ``"known"`` alone, in data units: variances (n_features,) or a symmetric positive
        semidefinite matrix (n_features, n_features).

    Raises
    ------
    DecodeError
        If the model is unknown, or the covariance is missing, superfluous, or none.
    """
    if model not in FAMILIES:
        raise DecodeError(f"model={model!r} is unknown; choose one of {', '.join(MODELS)}.")
    if (covariance is not None) != (model == "known"):
        raise DecodeError(
            'model="known" needs covariance, the variances or the covariance matrix of every '
            "component."
            if covariance is None
            else f'covariance is given, but model={model!r} has no use for it: give model="known".'
        )
    d, m = frequencies.shape
    fixed, log_envelope, diagonal = np.zeros(d), np.zeros(m), True
    if covariance is not None:
        matrix = _covariance_matrix(covariance, d)
        fixed = np.diagonal(matrix).copy()
        diagonal = bool((matrix == np.diag(fixed)).all())
        log_envelope = -0.5 * np.einsum("ij,ij->j", frequencies, matrix @ frequencies)
    spread = {
        "gaussian": np.eye(d),
        "isotropic": (scale @ scale / d / scale**2)[None, :],
        "scaled": np.ones((1, d)),
    }.get(model, np.empty((0, d)))
    return Family(model, diagonal, spread, log_envelope, fixed)


def _covariance_matrix(covariance: Array, d: int) -> Array:
    """The known covariance as a matrix (n_features, n_features), checked."""
    try:
        given = np.asarray(covariance, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"covariance={covariance!r} is not an array of numbers.") from error
    if given.shape not in ((d,), (d, d)):
        raise DecodeError(
            f"covariance has shape {given.shape}; for n_features={d} give ({d},) or ({d}, {d})."
        )
    matrix = np.diag(given) if given.ndim == 1 else given
    if not np.isfinite(matrix).all():
        raise DecodeError("covariance holds NaN or infinity; give finite variances.")
    if not np.allclose(matrix, matrix.T):
        raise DecodeError("covariance is not symmetric.")
    lowest = np.linalg.eigvalsh(matrix)[0]
    if lowest < -1e-10 * np.abs(matrix).max():
        raise DecodeError(
            f"covariance has the eigenvalue {lowest:g}; give one without negative eigenvalues."
        )
    return matrix


# What the parameters of an atom mean: coordinates, bounds, starting points and splits.
#
# The optimisers see data shifted by the sketch's mean (of a private one, the middle of its bounds)
# and divided, feature by feature, by the
# standard deviation of the frequency distribution's mean component, so that means and variances are
# of order one whatever the units and offset of the data. The change of variables is exact:
# frequencies are multiplied by the scale and the sketch by ``exp(+i w.shift)``.

# Variances are kept above this fraction of the distribution's mean component variance, or of the
# data's if that is less. The paper's bound is 1e-15 (sec. 5.3), a guard and no more: on data that
# is no mixture of Gaussians, least squares then makes needles, which cost nothing in the sketch and
# much in likelihood, and frequencies drawn for a variance tell little of one ten times smaller. On
# speech (d=12, K=64, m=4000) floors of 0.02, 0.05, 0.1 and 0.3 end at -40.82, -40.79, -40.68 and
# -40.57 nats per held-out frame.
VARIANCE_FLOOR = 0.1
_NO_WIDTH = 1e-15  # the floor in features that do not vary at all


class Coordinates:
    """Parameters ``theta`` of the atoms of one family, for the data of one sketch.

    The parameters and errors are those of :class:`~dask_sketch.decoders.objective.Objective`.

    Attributes
    ----------
    family : Family
        What shape parameters mean.
    n_features, n_frequencies, n_shapes, n_parameters : int
        Sizes; an atom has ``n_features + n_shapes`` parameters: means, then shape.
    shift, scale : ndarray of shape (n_features,)
        Origin and unit of the normalised coordinates, in data units.
    omega : ndarray of shape (n_features, n_frequencies)
        Frequencies in normalised coordinates.
    lower, upper : ndarray of shape (n_parameters,)
        Bounds of one atom's parameters.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        box: Array | None,
        variance_floor: float,
        covariance: Array | None,
    ) -> None:
        features = sketch.feature_map
        frequencies = features.frequencies
        self.n_features, self.n_frequencies = frequencies.shape
        self.scale = np.sqrt(features.mean_variances)
        self.shift, data_variance = sketch.extent
        self.omega = frequencies * self.scale[:, None]
        self.family = family(model, self.scale, frequencies, covariance)
        self.n_shapes = len(self.family.spread)
        self.n_parameters = self.n_features + self.n_shapes

        variance = data_variance / self.scale**2
        self._data_spread = np.sqrt(variance)
        data = self.family.nearest(variance)
        floor = np.where(data > 0.0, variance_floor * np.minimum(data, 1.0), _NO_WIDTH)
        infinite = np.full(self.n_features, np.inf)
        low, high = (-infinite, infinite) if box is None else (box - self.shift) / self.scale
        self.lower = np.concatenate([low, floor])
        self.upper = np.concatenate([high, np.full(self.n_shapes, np.inf)])

    def random_atoms(self, rng: np.random.Generator, n: int, *, away: bool = False) -> Array:
        """Draw starting points of Step 1 (n, n_parameters), at the data's centre.

        Variances are isotropic, ``U[0.5, 1.5]`` times the distribution's mean component variance
        (sec. 5.3).

        Parameters
        ----------
        rng
            Source of the draws.
        n
            Number of atoms.
        away
            Draw the means too, from a Gaussian with the data's mean and variances.
        """
        atoms = np.zeros((n, self.n_parameters))
        atoms[:, self.n_features :] = rng.uniform(0.5, 1.5, n)[:, None]
        if away:
            draws = rng.standard_normal((n, self.n_features))
            atoms[:, : self.n_features] = draws * self._data_spread
        return np.clip(atoms, self.lower, self.upper)

    def variances(self, theta: Array) -> Array:
        """Variances of atoms (K, n_features) in normalised coordinates; zero for points."""
        return theta[:, self.n_features :] @ self.family.spread + self.family.fixed / self.scale**2

    def to_data_units(self, theta: Array) -> tuple[Array, Array]:
        """Means and variances (K, n_features) of atoms in the units of the data.

        Of a known covariance matrix, the variances are the diagonal.
        """
        means = self.shift + self.scale * theta[:, : self.n_features]
        return means, self.scale**2 * self.variances(theta)

    def from_data_units(self, means: Array, variances: Array) -> Array:
        """Parameters (K, n_parameters) of the atoms nearest to means and variances of the data.

        What the family cannot express is left out.
        """
        shapes = self.family.nearest(variances / self.scale**2)
        return np.concatenate([(means - self.shift) / self.scale, shapes], axis=1)

    def split(self, theta: Array) -> Array:
        """Function Split (sec. 3.2): two atoms (2K, n_parameters) for each one.

        The means move by one standard deviation, both ways, along the feature of largest variance;
        variances stay. Variances are compared in units of the frequency distribution's, which is
        the paper's comparison when the distribution is isotropic. The halves of an atom are
        neighbours.

        Ours, for the family of points: they move by one standard deviation of the distribution's
        mean component, along the feature in which the data is widest.
        """
        variances = self.variances(theta)
        along = variances.argmax(axis=1)
        length = np.sqrt(variances.max(axis=1))
        if self.family.name == "dirac":
            along[:], length[:] = self._data_spread.argmax(), 1.0
        step = np.zeros_like(theta)
        step[np.arange(len(theta)), along] = length
        halves = np.stack([theta - step, theta + step], axis=1).reshape(-1, self.n_parameters)
        return np.clip(halves, self.lower, self.upper)


# Atoms are evaluated by blocks of frequencies of about this many numbers: real and imaginary
# parts (512 KiB) stay in the second cache, and memory below K times the block.
_BLOCK = 32_768
Part = TypeVar("Part")


class Atoms(Coordinates):
    """Sketches of the atoms of one family at the frequencies of one sketch, and derivatives.

    The parameters, attributes and errors are those of
    :class:`~dask_sketch.decoders.objective.Objective`.
    """

    def __init__(
        self,
        sketch: Sketch,
        model: str,
        box: Array | None,
        variance_floor: float,
        covariance: Array | None,
        threads: Threads,
    ) -> None:
        super().__init__(sketch, model, box, variance_floor, covariance)
        self.threads = threads
        # Weights of the features multiply the sketch, the atoms and the noise of each entry.
        feature_weights = sketch.feature_map.feature_weights
        if feature_weights is None:
            feature_weights = np.ones(self.n_frequencies)
        self.feature_weights = feature_weights
        self._point_amplitude = feature_weights / np.sqrt(self.n_frequencies)
        # The derivative of an atom by a parameter is the atom times a row of this, for a mean
        # times -i beside: 1, the frequencies, and -1/2 of what a shape parameter adds to w'Sw.
        shapes = -0.5 * self.family.spread @ self.omega**2
        self._factors = np.concatenate([np.ones((1, self.n_frequencies)), self.omega, shapes])
        self._even_factors = np.delete(self._factors, np.s_[1 : 1 + self.n_features], axis=0)
        log_envelope = self.family.log_envelope + np.log(feature_weights)
        log_envelope -= 0.5 * np.log(self.n_frequencies)
        self._envelope = log_envelope / np.log(2.0)
        self._amplitude = np.exp(log_envelope)

    def _thinned(self, chosen: npt.NDArray[np.intp]) -> Self:
        """The same at some of the frequencies, which stand for all: norms of atoms are kept."""
        fewer = copy(self)
        fewer.n_frequencies = len(chosen)
        stretch = np.sqrt(self.n_frequencies / len(chosen))
        fewer.omega = self.omega.take(chosen, axis=1)
        fewer.feature_weights = self.feature_weights[chosen]
        fewer._point_amplitude = stretch * self._point_amplitude[chosen]
        fewer._factors = self._factors.take(chosen, axis=1)
        fewer._even_factors = self._even_factors.take(chosen, axis=1)
        fewer._envelope = self._envelope[chosen] + np.log2(stretch)
        fewer._amplitude = stretch * self._amplitude[chosen]
        return fewer

    def _slices(self, n_atoms: int, span: range | None = None) -> list[slice]:
        """Blocks of frequencies, of all or of a span of them."""
        span = range(self.n_frequencies) if span is None else span
        width = max(128, _BLOCK // max(n_atoms, 1))
        return [
            slice(start, min(start + width, span.stop))
            for start in range(span.start, span.stop, width)
        ]

    def _waves(
        self, theta: Array, lift: Array | None = None
    ) -> Callable[[slice], tuple[Array, Array]]:
        """What gives the real and imaginary part (K, B) of atoms at a block of frequencies.

        The arrays are overwritten from one block to the next. Atoms are multiplied by
        ``2**lift``, shape (K,).
        """
        d, n_atoms = self.n_features, len(theta)
        turns = theta[:, :d] * (-0.5 / np.pi)
        shapes = theta[:, d:] / np.log(2.0)
        none = np.zeros(n_atoms) if lift is None else lift
        scratch = np.empty((2, n_atoms * self._slices(n_atoms)[0].stop))

        def at(block: slice) -> tuple[Array, Array]:
            shape = (n_atoms, block.stop - block.start)
            real, imag = (part[: shape[0] * shape[1]].reshape(shape) for part in scratch)
            np.matmul(turns, self.omega[:, block], out=imag)
            if self.n_shapes:
                np.matmul(shapes, self._factors[1 + d :, block], out=real)
                atom_kernels.waves(real, imag, self._envelope[block], none)
            else:
                atom_kernels.plain_waves(real, imag, self._amplitude[block])
            return real, imag

        return at

    def _each(
        self,
        step: Callable[[slice, Array, Array], Part],
        theta: Array,
        lift: Array | None = None,
        span: range | None = None,
    ) -> list[Part]:
        """What ``step(block, real, imag)`` returns for each block of frequencies, in order."""

        def prepare() -> Callable[[slice], Part]:
            waves = self._waves(theta, lift)
            return lambda block: step(block, *waves(block))

        return self.threads.each(prepare, self._slices(len(theta), span))

    def points(self, x: Array) -> Array:
        """Sketches of points (n, n_features) as rows of real numbers (n, 2m), as :meth:`atoms`."""
        rows = np.empty((2, len(x), self.n_frequencies))
        np.matmul(x * (-0.5 / np.pi), self.omega, out=rows[1])
        atom_kernels.plain_waves(rows[0], rows[1], self._point_amplitude)
        return np.concatenate(list(rows), axis=1)

    def atoms(self, theta: Array) -> Array:
        """Sketches of atoms as rows of real numbers (K, 2m): real parts, imaginary parts."""
        everywhere = range(self.n_frequencies)
        return np.concatenate(list(self._atoms_at(theta, everywhere, np.float64)), axis=1)

    def _atoms_at(self, theta: Array, span: range, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Real and imaginary parts of atoms at a span of frequencies, shape (2, K, len(span))."""
        kept = np.empty((2, len(theta), len(span)), dtype)

        def put(block: slice, real: Array, imag: Array) -> None:
            here = slice(block.start - span.start, block.stop - span.start)
            kept[0, :, here] = real
            kept[1, :, here] = imag

        self._each(put, theta, span=span)
        return kept

    def jacobian(self, weights: Array, theta: Array) -> Array:
        """Derivative (P, 2m) of the model's sketch ``sum_k alpha_k a_k``, ``P = K (1 + p)``.

        Rows: the weights, then the parameters of each atom; columns: real parts, imaginary parts.
        """
        rows = np.empty((len(theta) * (1 + self.n_parameters), 2, self.n_frequencies))
        for block, part in self.jacobian_blocks(weights, theta):
            rows[:, :, block] = part
        return rows.reshape(len(rows), -1)

    def jacobian_blocks(self, weights: Array, theta: Array) -> Iterator[tuple[slice, Array]]:
        """The columns of :meth:`jacobian` block by block of frequencies, shape (P, 2, B)."""
        d = self.n_features
        waves = self._waves(theta)
        for block in self._slices(len(theta)):
            atoms = np.stack(waves(block), axis=1)
            by_theta = atoms[:, None] * self._factors[1:, None, block]
            turned = by_theta[:, :d].copy()
            by_theta[:, :d, 0], by_theta[:, :d, 1] = turned[:, :, 1], -turned[:, :, 0]  # times -i
            by_theta *= weights[:, None, None, None]
            yield block, np.concatenate([atoms, by_theta.reshape(-1, *atoms.shape[1:])])
