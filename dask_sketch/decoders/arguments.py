"""Arguments of :func:`dask_sketch.decode`, checked."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dask_sketch.decoders.atoms import Array, Family
from dask_sketch.errors import DecodeError
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch


def require_content(sketch: Any) -> None:
    """Refuse what is no sketch, or an empty one."""
    if not isinstance(sketch, Sketch):
        raise DecodeError(
            f"sketch of type {type(sketch).__name__}: give a Sketch; call .compute() on a lazy "
            "one, and decode_groups() for a SketchGroup."
        )
    if not sketch.total_weight > 0:
        raise DecodeError(
            f"the sketch is empty: total weight {sketch.total_weight:g}, {sketch.count} samples. "
            "There is nothing to decode."
        )


def require_callables(executor: object, progress: object) -> None:
    """Refuse an executor that takes no tasks, and a progress that cannot be called."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise DecodeError(
            f"executor={executor!r}: give a concurrent.futures.Executor, such as "
            "client.get_executor() of a Dask client, or leave it out."
        )
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise DecodeError(
            f"progress={progress!r}: give True for a bar, a function, called as progress(done, "
            "total, cost), or leave it out."
        )


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a word that is not known."""
    if value not in known:
        raise DecodeError(f"{name}={value!r} is unknown; choose one of {', '.join(known)}.")


def require_enough(sketch: Sketch, n_components: int, n_each: int) -> None:
    """Refuse a model with more parameters than the sketch has numbers, or components than samples.

    With fewer than two frequencies for each parameter it warns: estimation breaks down there
    (section 5.5), and with the fivefold number it is safe.

    Parameters
    ----------
    sketch
        What is to be decoded.
    n_components
        Number of components.
    n_each
        Parameters of each, its weight included.
    """
    d, m = sketch.feature_map.n_features, sketch.feature_map.n_frequencies
    n_parameters = n_each * n_components
    if n_parameters > 2 * m:
        raise DecodeError(
            f"n_components={n_components} with {d} features has {n_parameters} parameters, more "
            f"than the {2 * m} real numbers of a sketch of {m} frequencies. Decode at most "
            f"{2 * m // n_each} components, or sketch with at least {5 * n_parameters} "
            "frequencies."
        )
    if sketch.count < n_components:
        raise DecodeError(
            f"n_components={n_components} from a sketch of {sketch.count:,} samples: decode no "
            "more components than there are samples."
        )
    if m < 2 * n_parameters:
        warnings.warn(
            f"n_components={n_components} with {d} features has {n_parameters} parameters, for "
            f"which {m} frequencies are few: estimates may fail. Decode fewer components, or "
            f"sketch with {5 * n_parameters} frequencies.",
            UserWarning,
            stacklevel=3,
        )


def box_of(bounds: str | ArrayLike | None, sketch: Sketch) -> Array | None:
    """Bounds on means as an array (2, n_features), or None."""
    if bounds is None:
        return None
    if isinstance(bounds, str):
        if bounds != "data":
            raise DecodeError(
                f"bounds={bounds!r}: give None, 'data', or an array of lowest and highest means."
            )
        return np.stack([sketch.minimum, sketch.maximum])
    d = sketch.feature_map.n_features
    try:
        box = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"bounds={bounds!r} is not an array of numbers.") from error
    if box.shape != (2, d):
        raise DecodeError(
            f"bounds has shape {box.shape}; for n_features={d} give (2, {d}): lowest, highest."
        )
    if not (box[0] < box[1]).all():
        feature = int(np.argmin(box[0] < box[1]))
        raise DecodeError(
            f"bounds of feature {feature} are {box[0, feature]:g} and {box[1, feature]:g}: the "
            "lowest must be below the highest."
        )
    return box


def start_of(start: GaussianMixture | Centroids, n_features: int) -> tuple[Array, Array, Array]:
    """Weights, places and variances of an earlier model; of centroids, variances of zero."""
    if not isinstance(start, (GaussianMixture, Centroids)):
        raise DecodeError(
            f"start of type {type(start).__name__}: give an earlier model, as decode returns it."
        )
    if start.n_features != n_features:
        raise DecodeError(
            f"start has {start.n_features} features, the sketch {n_features}: start from a model "
            "of the same features."
        )
    if isinstance(start, Centroids):
        return start.weights, start.centers, np.zeros_like(start.centers)
    return start.weights, start.means, start.covariances


def require_memory(needed: int, n_components: int) -> None:
    """Refuse efficient refinement that does not fit into memory, before anything is decoded."""
    available = psutil.virtual_memory().available
    if needed > available:
        raise DecodeError(
            f"refine='efficient' with n_components={n_components} needs {needed / 2**30:.1f} GiB "
            f"of memory, and {available / 2**30:.1f} GiB is available. Decode fewer components, "
            "sketch with fewer frequencies, or leave refine out."
        )


def require_noise_model(family: Family) -> None:
    """Refuse efficient refinement of atoms that are not Gaussians with diagonal covariances."""
    if family.name == "dirac":
        raise DecodeError(
            "refine='efficient' with model='dirac': points say nothing of the noise of a sketch. "
            "Decode model='gaussian' or 'isotropic', or leave refine out."
        )
    if not family.diagonal:
        raise DecodeError(
            "refine='efficient' with a covariance matrix: it knows diagonal covariances only. "
            "Whiten the data with it, or leave refine out."
        )
