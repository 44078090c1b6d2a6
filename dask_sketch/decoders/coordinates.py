"""What the parameters of an atom mean: coordinates, bounds, starting points and splits.

The optimisers see data shifted by the sketch's mean (of a private one, the middle of its bounds)
and divided, feature by feature, by the
standard deviation of the frequency law's mean component, so that means and variances are of order
one whatever the units and offset of the data. The change of variables is exact: frequencies are
multiplied by the scale and the sketch by ``exp(+i w.shift)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dask_sketch.decoders.families import Array, family

if TYPE_CHECKING:
    from dask_sketch.sketching import Sketch

# Variances are kept above this fraction of the law's mean component variance, or of the data's if
# that is less. The paper's bound is 1e-15 (sec. 5.3), a guard and no more: on data that is no
# mixture of Gaussians, least squares then makes needles, which cost nothing in the sketch and much
# in likelihood, and frequencies drawn for a variance tell little of one ten times smaller. On
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

        Variances are isotropic, ``U[0.5, 1.5]`` times the law's mean component variance
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

        The means move by one standard deviation, both ways, along the feature of largest
        variance; variances stay. Variances are compared in units of the frequency law's, which
        is the paper's comparison when the law is isotropic. The halves of an atom are neighbours.

        Ours, for the family of points: they move by one standard deviation of the law's mean
        component, along the feature in which the data is widest.
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
