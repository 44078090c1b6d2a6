"""Starting points of searches: new atoms (Step 1 of Algorithm 1), known components, the pilot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.objectives.atoms import Array
from dask_sketch.decoders.objectives.objective import Complex, Objective
from dask_sketch.decoders.optimizers import StoppingRule, ascend_many
from dask_sketch.display.text import counted
from dask_sketch.errors import DecodeError
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.features.pilot import Pilot, PilotMixture
from dask_sketch.features.pilot_fit import fit_pilot
from dask_sketch.models.alpha_stable import AlphaStableMixture
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.clusters import Clusters
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.model import Decoding
from dask_sketch.models.von_mises_fisher import VonMisesFisherMixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.tables import require_names

# Random atoms whose correlation is evaluated: as many as these numbers allow, within bounds.
# Components far apart are out of reach of an ascent from elsewhere, and small sketches are cheap.
_NUMBERS, _MIN_ATOMS, _MAX_ATOMS = 2_000_000, 200, 2_000
_FAR_NUMBERS = 4_000_000  # atoms in the range of the data times frequencies, at most
_ASCENTS = 7  # ascents from the best of the random atoms, beside the one from the center
_ASCENTS_PER_ATOM = 4  # the same, for each of several atoms
# Step 5 moves the atom on at once, so that the last digits of this maximum are of no use.
_STOP = StoppingRule(tolerance=1e-6, n_iterations=200)
_POINTS = 20_000  # points sampled from a pilot mixture of another number of components
# Divergence between Gaussians of the moments of pilot and sketch, in nats: up to the first the
# mixture of the pilot describes the sketch, beyond the second it says nothing about it.
_SAME, _REACH = 0.02, 3.0
# Squared distance of the sketch from the sketch of the pilot's mixture: for the same data, in
# multiples of the distance of two random samples; and for a start, as a fraction of the energy of
# the sketch.
_SQUARED_CHANCE, _UNEXPLAINED = 2.0, 0.1
# Largest squared distance of a moved mixture, in what is expected of it: data of another scale or
# place had 0.1 to 3, subsets and other weights of clusters 5.5 to 270, classes of images 4 to 190,
# but 1.75 where the mixture of the pilot misses 7 % of the energy of its rows, which is too much.
_MOVED, _MISSED = 2.5, 0.04
_BINS = 10  # bins of the moduli of characteristic functions
_CHANCE = 4.0  # multiple of the divergence of random rows of a Gaussian, since tails may be heavy
# Classes of the models of other families, by the names of the models.
FAMILIES: dict[str, type[VonMisesFisherMixture | AlphaStableMixture]] = {
    "von-mises-fisher": VonMisesFisherMixture,
    "alpha-stable": AlphaStableMixture,
}


@dataclass(frozen=True)
class Start:
    """Components to start from, in the units of the data.

    Attributes
    ----------
    weights
        Weights, shape (K,).
    means, variances
        Means and variances, shape (K, n_features); variances of points are zero. Covariance
        matrices (K, n_features, n_features) may take the place of variances.
    decoding
        Record of the model that the components are taken from, if it has one.
    parameters
        Further arrays of a model of another family by their names, each with K rows; its ``means``
        are directions or locations.
    """

    weights: Array
    means: Array
    variances: Array
    decoding: Decoding | None = None
    parameters: dict[str, Array] | None = None

    def atoms(self, objective: Objective) -> Array:
        """Parameters (K, n_parameters) of the nearest atoms of an objective."""
        return objective.space.from_data_units(self.means, self.variances)


def model_of_start(start: object, model: str | None) -> str | None:
    """Name of the model of a start that is neither Gaussian nor centroids, unless one is given.

    Parameters
    ----------
    start
        Earlier model, or None.
    model
        Argument of :func:`dask_sketch.decode`.
    """
    for name, family in FAMILIES.items():
        if model is None and isinstance(start, family):
            return name
    return model


def type_of_start(start: object, covariance_type: str | None, model: str | None) -> str | None:
    """Type of the covariances of a start, unless a type or a model is given.

    Parameters
    ----------
    start
        Earlier model, or None.
    covariance_type, model
        Arguments of :func:`dask_sketch.decode`.
    """
    if covariance_type is None and model is None and isinstance(start, GaussianMixture):
        return start.covariance_type
    return covariance_type


def components_of(
    start: object, feature_map: FeatureMap, model: str | None, has_matrices: bool
) -> Start | None:
    """Components of an earlier model; variances of centroids are zero.

    Parameters
    ----------
    start
        Earlier model, or None.
    feature_map
        Feature map of the sketch.
    model
        Name of the model to decode.
    has_matrices
        Whether components have covariance matrices.

    Raises
    ------
    DecodeError
        If the start is of another family, or has another number of features.
    InputError
        If the names of its features are others.
    """
    if start is None:
        return None
    other = FAMILIES.get(model or "")
    kinds = (GaussianMixture, Centroids) if other is None else (other,)
    if not isinstance(start, kinds):
        raise DecodeError(
            f"start of type {type(start).__name__} with model={model!r}: give an earlier model of "
            f"{' or '.join(each.__name__ for each in kinds)}, as decode returns it."
        )
    if start.n_features != feature_map.n_features:
        raise DecodeError(
            f"start has {counted(start.n_features, 'feature')}, the sketch "
            f"{feature_map.n_features}: start from a model of the same features."
        )
    require_names(
        start.feature_names, "start", feature_map.feature_names, "the sketch", parameter="start"
    )
    if isinstance(start, (VonMisesFisherMixture, AlphaStableMixture)):
        weights, means, *others = (getattr(start, name) for name in start._arrays)
        parameters = dict(zip(start._arrays[2:], others, strict=True))
        return Start(weights, means, np.zeros_like(means), start.decoding, parameters)
    if isinstance(start, Centroids):
        return Start(start.weights, start.centers, np.zeros_like(start.centers), start.decoding)
    shapes = start.covariance_matrices if has_matrices else start.variances
    return Start(start.weights, start.means, shapes, start.decoding)


def find_atom(objective: Objective, residual: Complex, rng: np.random.Generator) -> Array:
    """Step 1: ascend to a local maximum of ``Re <a / ||a||, r>`` from random starting points.

    The first starting point is the paper's, at the center of the data (sec. 5.3). The others are
    ours: atoms are sampled over the range of the data, and the few that correlate best are starting
    points too; the best maximum is returned. An ascent from the center alone reaches no further
    than a few standard deviations of a component. On mixtures with means 3 to 5 times further apart
    than in sec. 5.1 (d = 1 to 12, K = 2 to 10), CL-OMPR from the center alone missed components in
    15 of 28 fits, and with these starts in 1; on those of sec. 5.1 both end in the same minima.
    All ascents run together, so that Step 1 stays cheap beside Step 5.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each.
    rng
        Random number generator.

    Returns
    -------
    theta
        Parameters of one atom, shape (n_parameters,).
    """
    if not any(part.any() for part in residual):
        return np.asarray(objective.space.random_atoms(rng, 1)[0])
    center, sampled = _best_first(objective, residual, rng)
    starts = np.concatenate([center, sampled[:_ASCENTS]])
    atoms, values = ascend_correlation(objective, starts, residual)
    return np.asarray(atoms[values.argmax()])


def find_atoms(
    objective: Objective, residual: Complex, rng: np.random.Generator, n_atoms: int
) -> Array:
    """Local maxima of the correlation that the frequencies tell apart, as :func:`find_atom`.

    Parameters
    ----------
    objective, residual, rng
        Arguments of :func:`find_atom`.
    n_atoms
        Largest number of atoms.

    Returns
    -------
    theta
        Parameters of at least one atom and at most ``n_atoms``, shape (n, n_parameters).
    """
    if n_atoms == 1 or not any(part.any() for part in residual):
        return find_atom(objective, residual, rng)[None]
    center, sampled = _best_first(objective, residual, rng)
    starts = _apart(objective, sampled, _ASCENTS_PER_ATOM * n_atoms)
    atoms, values = ascend_correlation(objective, np.concatenate([center, starts]), residual)
    return _apart(objective, atoms[np.argsort(-values, kind="stable")], n_atoms)


def _best_first(
    objective: Objective, residual: Complex, rng: np.random.Generator
) -> tuple[Array, Array]:
    """An atom at the center, and atoms over the range of the data by decreasing correlation."""
    center = objective.space.random_atoms(rng, 1)
    n_atoms = min(max(_NUMBERS // objective.n_frequencies, _MIN_ATOMS), _MAX_ATOMS)
    sampled = objective.space.random_atoms(rng, n_atoms, spread_out=True)
    n_far = max(min(objective.space.n_places, _FAR_NUMBERS // objective.n_frequencies), _MIN_ATOMS)
    far = objective.space.atoms_in_range(rng.spawn(1)[0], n_far)
    sampled = np.concatenate([sampled, far])
    return center, sampled[np.argsort(-objective.correlations(sampled, residual), kind="stable")]


def _apart(objective: Objective, theta: Array, n_atoms: int) -> Array:
    """First atoms, at most ``n_atoms``, whose means are further apart than frequencies resolve."""
    means = theta[:, : objective.space.n_features]
    resolution = 1.0 / np.sqrt(np.square(objective.omega).sum(axis=0).mean())
    kept: list[int] = []
    for index in range(len(theta)):
        away = np.linalg.norm(means[kept] - means[index], axis=1)
        if (away > resolution).all():
            kept.append(index)
        if len(kept) == n_atoms:
            break
    return theta[kept]


def ascend_correlation(
    objective: Objective, starts: Array, residual: Complex
) -> tuple[Array, Array]:
    """Ascend to local maxima of ``Re <a / ||a||, r>`` from several atoms together.

    Parameters
    ----------
    objective
        Atoms and their correlation.
    starts
        Starting atoms, shape (n, n_parameters).
    residual
        Real and imaginary part of the residual, shape (n_frequencies,) each; not zero.

    Returns
    -------
    theta, values
        Atoms (n, n_parameters), and their correlations (n,) as fractions of the residual's norm.
    """
    norm = np.sqrt(residual[0] @ residual[0] + residual[1] @ residual[1])

    def correlation(theta: Array) -> tuple[Array, Array]:
        values, gradients = objective.correlation_gradients(theta, residual)
        return values / norm, gradients / norm

    return ascend_many(correlation, starts, objective.space.lower, objective.space.upper, _STOP)


def complete_pilot_rows(sketch: Sketch) -> float:
    """Number of complete rows that determine a mixture as well as the pilot rows do.

    With values observed in a fraction ``f`` of the rows, the variance of an estimate is ``1 / f``
    times as large; one draw of the missing values makes it ``1 + (1 - f)`` times as large again
    (Rubin 1987, p. 114).

    Parameters
    ----------
    sketch
        Sketch by a feature map with a record of its pilot rows.
    """
    pilot = sketch.feature_map.pilot
    assert pilot is not None
    if sketch.missing is None:
        return float(pilot.n_rows)
    fraction = float(sketch.observed.feature_fractions.min())
    return pilot.n_rows * fraction / (2.0 - fraction)


def pilot_mixture(sketch: Sketch, reach: float = _SAME) -> PilotMixture | None:
    """Mixture of the pilot rows; None if there is no pilot, or the sketch is of other data.

    A sketch of one group, or of later data, differs in its means or variances, and in more of its
    frequencies than noise explains. A private sketch holds no means.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    reach
        Largest divergence of the moments of the sketch from the moments of the mixture, in nats.
    """
    pilot = sketch.feature_map.pilot
    if pilot is None or pilot.mixture is None or sketch.privacy is not None:
        return None
    mixture = pilot.mixture
    mean = mixture.weights @ mixture.means
    varies = (pilot.variance > 0) & (sketch.variance > 0)
    if not varies.any():
        return None
    shift = (sketch.mean - mean)[varies] / np.sqrt(pilot.variance[varies])
    ratio = sketch.variance[varies] / pilot.variance[varies]
    # few rows hardly determine the variance of a heavy tail: its kurtosis is at least that of one
    # row
    away = np.maximum(sketch.maximum - sketch.mean, sketch.mean - sketch.minimum)[varies]
    kurtosis = (away**2 / sketch.variance[varies]) ** 2 / sketch.count
    tail = np.maximum(0.5 * kurtosis, 1.0)
    divergence = 0.5 * float(((ratio - 1.0 - np.log(ratio)) / tail + shift**2).sum())
    chance = 1.0 / complete_pilot_rows(sketch) + 1.0 / sketch.effective_count
    if divergence < reach + _CHANCE * int(varies.sum()) * chance:
        return mixture
    # few rows far away change the moments of data with heavy tails, and hardly the sketch
    distance = squared_distance(sketch, mixture)
    energy = float(np.vdot(sketch.z, sketch.z).real) if reach > _SAME else 0.0
    if distance < max(_SQUARED_CHANCE * chance, _UNEXPLAINED * energy):
        return mixture
    # the mixture may be far from its own rows, where the data is not such a mixture
    return mixture if _agrees_with_rows(sketch, pilot, chance) else None


def _agrees_with_rows(sketch: Sketch, pilot: Pilot, chance: float) -> bool:
    """Whether the noise of the sketch and of the pilot rows explains their distance."""
    if pilot.characteristic is None or sketch.missing is not None:
        return False
    feature_map, values = sketch.feature_map, sketch.characteristic
    to_center = np.exp(1j * (feature_map.center @ feature_map.frequencies))
    difference = np.abs(values * to_center - pilot.characteristic) ** 2
    noise = chance * np.maximum(1.0 - np.abs(values) ** 2, 0.0)
    return float(difference.mean()) < _SQUARED_CHANCE * float(noise.mean())


def pilot_clusters(sketch: Sketch, n_components: int | None) -> Clusters | None:
    """Clusters of the pilot rows; None if their number is another, or the sketch is of other data.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of centroids.
    """
    pilot = sketch.feature_map.pilot
    clusters = None if pilot is None else pilot.clusters
    if clusters is None or len(clusters.weights) != n_components or pilot_mixture(sketch) is None:
        return None
    return clusters


def nearby_mixture(sketch: Sketch) -> PilotMixture | None:
    """Mixture of the pilot rows, as a start, also for a sketch of other data.

    It is moved to the means and variances of the sketch if the data is that of the pilot, but for
    its scale and place: in other units, for instance, or of later prices.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    """
    if pilot_mixture(sketch) is None:
        moved = moved_mixture(sketch)
        if moved is not None:
            return moved
    return pilot_mixture(sketch, _REACH)


def moved_mixture(sketch: Sketch) -> PilotMixture | None:
    """Mixture of the pilot rows, moved to the means and variances of a sketch.

    It is as near to the sketch as the mixture of the pilot rows is to these, at frequencies where
    the characteristic function is as large, which are not the same ones on another scale.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.

    Returns
    -------
    mixture
        None if the data of the sketch is not that of the pilot rows on another scale, or there is
        no record of their characteristic function.
    """
    pilot = sketch.feature_map.pilot
    mixture = None if pilot is None else pilot.mixture
    known = None if pilot is None else pilot.characteristic
    if pilot is None or mixture is None or known is None:
        return None
    residual = pilot_residual(pilot, sketch.feature_map)
    is_rough = np.vdot(residual, residual).real > _MISSED * np.vdot(known, known).real
    if is_rough or sketch.privacy is not None or sketch.missing is not None:
        return None
    mean = mixture.weights @ mixture.means
    variance = mixture.weights @ (mixture.variances + (mixture.means - mean) ** 2)
    varies = (variance > 0) & (sketch.variance > 0)
    factor = np.sqrt(np.where(varies, sketch.variance, 1.0) / np.where(varies, variance, 1.0))
    moved = replace(
        mixture,
        means=sketch.mean + factor * (mixture.means - mean),
        variances=factor**2 * mixture.variances,
        score=mixture.score - float(np.log(factor).sum()),
    )
    limit = _MOVED * _expected_distance(sketch, pilot, residual)
    return moved if squared_distance(sketch, moved) < limit else None


def _expected_distance(sketch: Sketch, pilot: Pilot, residual: NDArray[np.complex128]) -> float:
    """Squared distance of a sketch from the mixture of the pilot, if its data is such data.

    It is that of the pilot rows at frequencies where their characteristic function has the same
    modulus, and the noise of both. Beyond the largest modulus ``r``, distances fall like
    ``(1 - r**2)**3``, as those of distributions of equal means and variances.
    """
    known = pilot.characteristic
    assert known is not None
    own = np.abs(residual) ** 2
    order = np.argsort(np.abs(known), kind="stable")
    bins = np.array_split(order, min(_BINS, len(order)))
    moduli = np.array([np.abs(known[part]).mean() for part in bins])
    squares = np.array([max(own[part].mean(), 1e-300) for part in bins])
    here = np.minimum(np.abs(sketch.characteristic), 1.0)
    expected = np.exp(np.interp(here, moduli, np.log(squares)))
    beyond = here > moduli[-1]
    ratio = (1.0 - here[beyond] ** 2) / max(1.0 - float(moduli[-1]) ** 2, 1e-300)
    expected[beyond] = squares[-1] * ratio**3
    chance = 1.0 / sketch.effective_count + 1.0 / pilot.n_rows
    return float(np.mean(expected + 2.0 * chance * (1.0 - here**2)))


def pilot_residual(pilot: Pilot, feature_map: FeatureMap) -> NDArray[np.complex128]:
    """Characteristic function of the mixture of the pilot, less that of its rows.

    Parameters
    ----------
    pilot
        Record with a mixture and a characteristic function.
    feature_map
        Feature map that it is of.
    """
    known, values = pilot.mixture, pilot.characteristic
    assert known is not None
    assert values is not None
    model = GaussianMixture(known.weights, known.means - feature_map.center, known.variances)
    return np.asarray(model.characteristic(feature_map.frequencies) - values)


def squared_distance(sketch: Sketch, mixture: PilotMixture) -> float:
    """Squared distance between a sketch and the sketch of a mixture: its cost, eq. (13).

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    mixture
        Mixture of the same features.
    """
    model = GaussianMixture(mixture.weights, mixture.means, mixture.variances)
    modelled = model.characteristic(sketch.feature_map.frequencies)
    difference = sketch.z - modelled / np.sqrt(sketch.feature_map.n_frequencies)
    return float(np.vdot(difference, difference).real)


def pilot_start(sketch: Sketch, n_components: int | None, seed: int = 0) -> Start | None:
    """Components of the pilot mixture to start from, or None.

    A mixture of another number of components is replaced by the mixture of greatest likelihood for
    points sampled from it.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of components to start from; no start if it is None.
    seed
        Seed of the points.
    """
    components = nearby_mixture(sketch)
    if components is None or n_components is None:
        return None
    if len(components.weights) != n_components:
        mixture = GaussianMixture(components.weights, components.means, components.variances)
        components = fit_pilot(mixture.sample(_POINTS, seed=seed), n_components, seed)
    return Start(components.weights, components.means, components.variances)


def pilot_matrices(sketch: Sketch, n_components: int | None) -> Start | None:
    """Mixture with covariance matrices of the pilot rows, of the same data as the sketch, or None.

    Parameters
    ----------
    sketch
        Sketch of at least one sample.
    n_components
        Number of components that the mixture must have.
    """
    pilot = sketch.feature_map.pilot
    mixture = None if pilot is None else pilot.matrix_mixture
    if mixture is None or len(mixture.weights) != n_components or pilot_mixture(sketch) is None:
        return None
    return Start(mixture.weights, mixture.means, mixture.covariances)
