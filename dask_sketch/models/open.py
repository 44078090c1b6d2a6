"""Open stored models: mixtures, centroids, latent classes and principal components."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dask_sketch.errors import ArtifactError, InputError
from dask_sketch.models.alpha_stable import AlphaStableMixture
from dask_sketch.models.artifact import (
    ALPHA_STABLE,
    CENTROIDS,
    COMPONENT_ARRAYS,
    LATENT_CLASSES,
    LAYOUTS,
    MIXTURE,
    NOISE,
    SCHEMAS,
    STDERR,
    VERSION,
    VON_MISES_FISHER,
)
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.latent_class_mixture import LatentClassMixture
from dask_sketch.models.model import Decoding, Polishing, StandardErrors
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.models.von_mises_fisher import VonMisesFisherMixture
from dask_sketch.storage.artifact_reader import read_dataset
from dask_sketch.validation.categories import Categories

if TYPE_CHECKING:
    import xarray as xr

AnyModel = (
    GaussianMixture | Centroids | LatentClassMixture | VonMisesFisherMixture | AlphaStableMixture
)
_CLASSES: dict[str, type[AnyModel]] = {
    MIXTURE: GaussianMixture,
    CENTROIDS: Centroids,
    VON_MISES_FISHER: VonMisesFisherMixture,
    ALPHA_STABLE: AlphaStableMixture,
}
_DAMAGES = (LookupError, TypeError, ValueError, OverflowError, RecursionError)
_NUMBERS = ("cost", "noise_level", "seconds")
_COUNTS = ("seed", "replicates", "n_evaluations")
_MAX_TEXT = 1000  # characters of a text of the record: all of them are shown


def refuse_other_families(function: str, value: object) -> None:
    """Raise InputError for models of other families, and for sketches with categories.

    Parameters
    ----------
    function
        Name of the function that takes Gaussians and centroids only, for the message.
    value
        Model, or sketch; other objects are not refused.
    """
    feature_map = getattr(value, "feature_map", None)
    if isinstance(value, LatentClassMixture) or getattr(feature_map, "categories", None):
        raise InputError(
            f"{function} takes no categories: it is for mixtures of Gaussians and centroids. Of "
            "latent classes, compare score(x) or bic(x) of held-out rows, and the statistic "
            "decoding.overidentification; or sketch the numeric columns alone.",
            parameter="categories",
        )
    if isinstance(value, (VonMisesFisherMixture, AlphaStableMixture)):
        raise InputError(
            f"{function} takes no {type(value).__name__}: it is for mixtures of Gaussians and "
            "centroids. Compare score(x) or bic(x) of held-out rows, and the statistic "
            "decoding.overidentification."
        )


def gaussian_or_centroids(function: str, model: AnyModel) -> GaussianMixture | Centroids:
    """Return a model, and refuse models of other families.

    Parameters
    ----------
    function, model
        Arguments of :func:`refuse_other_families`.

    Raises
    ------
    InputError
        If it is a model of another family.
    """
    refuse_other_families(function, model)
    assert isinstance(model, (GaussianMixture, Centroids))  # there are no other families
    return model


def open_model(store: Any, *, storage_options: dict[str, Any] | None = None) -> AnyModel:
    """Open a model, and refuse other artifacts.

    Parameters
    ----------
    store
        Path, URL or Zarr store.
    storage_options
        Options of the file system of a URL.

    Returns
    -------
    model
        Model with the same bits as the one stored, and its decoding record.

    Raises
    ------
    ArtifactError
        If there is none, or it is truncated, edited or of another schema; the message says which.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.zarr"
    >>> Centroids([1.0], [[0.0, 1.0]]).to_zarr(path)
    >>> open_model(path).centers
    array([[0., 1.]])
    """
    versions = dict.fromkeys(SCHEMAS, VERSION)
    dataset = read_dataset(store, versions, storage_options=storage_options)
    return model_from_dataset(dataset, dataset.attrs["schema"], store)


def model_from_dataset(
    dataset: xr.Dataset, schema: str = MIXTURE, store: object = "the dataset"
) -> AnyModel:
    """Rebuild a model from its stored dataset.

    Parameters
    ----------
    dataset
        Stored arrays and attributes.
    schema
        Name of the layout.
    store
        Name of the store for messages.

    Raises
    ------
    ArtifactError
        If a variable or attribute is missing, or is not that of such a model.
    """
    noun = schema.rsplit("/", 1)[-1].replace("-", " ")
    try:
        if schema == LATENT_CLASSES:
            return _latent_classes(dataset)
        meaning, model = LAYOUTS[schema].meaning, _CLASSES[schema]
        record = _record(dataset.attrs["decoding"])
        arrays: dict[str, Any] = {name: dataset[name].values for name in meaning}
        if model is GaussianMixture and "means" + STDERR in dataset:
            names = [*meaning, *(name for name in (NOISE,) if name + STDERR in dataset)]
            arrays["stderr"] = StandardErrors(
                **{name: dataset[name + STDERR].values for name in names}
            )
        polishing = _polishing(dataset.attrs.get("polishing", "null"))
        if model is GaussianMixture and "covariance_type" in dataset.attrs:
            arrays["covariance_type"] = str(dataset.attrs["covariance_type"])
        if model is Centroids and "normalize" in dataset.attrs:
            arrays["normalize"] = dataset.attrs["normalize"]
        if "feature_names" in dataset.attrs:
            arrays["feature_names"] = json.loads(dataset.attrs["feature_names"])
        return model(**arrays, decoding=record, polishing=polishing)
    except InputError as error:
        raise ArtifactError(f"store={str(store)!r} does not hold a {noun}: {error}") from error
    except (*_DAMAGES, AttributeError) as error:
        raise ArtifactError(
            f"store={str(store)!r} is not a {noun}: {error!r} is missing or unreadable. Restore "
            "it from a copy, or decode it again."
        ) from error


def components_from_dataset(dataset: xr.Dataset, store: object) -> PrincipalComponents:
    """Rebuild principal components from their stored dataset.

    Parameters
    ----------
    dataset
        Stored arrays and attributes.
    store
        Name of the store for messages.

    Raises
    ------
    ArtifactError
        If a variable or attribute is missing, or is not that of principal components.
    """
    try:
        arrays = {name: dataset[name].values for name in COMPONENT_ARRAYS}
        total, noise, excess = map(float, arrays.pop("remainder"))
        names = json.loads(dataset.attrs["feature_names"])
        return PrincipalComponents(
            **arrays,
            total_variance=total,
            noise_variance=noise,
            excess_risk=excess,
            n_samples=int(dataset.attrs["n_samples"]),
            feature_names=names and tuple(map(str, names)),
        )
    except _DAMAGES as error:
        raise ArtifactError(
            f"store={str(store)!r} does not hold principal components: {error!r}. Restore it from "
            "a copy, or decode them again."
        ) from error


def _latent_classes(dataset: xr.Dataset) -> LatentClassMixture:
    """Rebuild a mixture of latent classes."""
    levels, names = (json.loads(dataset.attrs[key]) for key in ("categories", "feature_names"))
    if names is not None and (
        len(set(names)) != len(levels) or not all(isinstance(name, str) for name in names)
    ):
        raise InputError(f"feature_names={str(names)[:80]!r} are not those of the features.")
    categories = Categories(
        tuple(one if one is None else tuple(one) for one in levels), names and tuple(names)
    )
    numbers: dict[str, Any] = {
        name: dataset[name].values for name in ("means", "variances") if name in dataset
    }
    return LatentClassMixture(
        dataset["weights"].values,
        dataset["probabilities"].values,
        categories,
        **numbers,
        decoding=_record(dataset.attrs["decoding"]),
    )


def _record(text: str) -> Decoding | None:
    """Parse the decoding record, and check the types of its values, which are shown and used."""
    values = json.loads(text)
    if values is None:
        return None
    names = values.get("feature_names")
    tuples = {"trace": tuple(values["trace"]), "feature_names": names and tuple(names)}
    record = Decoding(**(values | tuples))
    texts = [record.method, record.model, record.message, record.refine or "", *(names or ())]
    numbers = [getattr(record, name) for name in _NUMBERS] + [*record.trace]
    numbers += [
        x
        for x in (
            record.variance_floor,
            record.searched,
            record.score,
            record.gain,
            record.overidentification,
            record.freedom,
        )
        if x is not None
    ]
    if (
        not all(isinstance(value, str) and len(value) <= _MAX_TEXT for value in texts)
        or not all(type(value) in (int, float) for value in numbers)
        or not all(type(getattr(record, name)) is int for name in _COUNTS)
        or type(record.converged) is not bool
    ):
        raise InputError("decoding has values of types that no decoding record has.")
    return record


def _polishing(text: str) -> Polishing | None:
    """Parse the record of the passes, and check the types of its values."""
    values = json.loads(text)
    if values is None:
        return None
    record = Polishing(**(values | {"trace": tuple(values["trace"])}))
    numbers = [*record.trace, record.bound, record.seconds]
    if record.variance_floor is not None:
        numbers.append(record.variance_floor)
    if (
        not isinstance(record.objective, str)
        or len(record.objective) > _MAX_TEXT
        or not all(type(value) in (int, float) for value in numbers)
        or not all(type(value) is int for value in (record.n_samples, record.omitted))
        or (record.converged is not None and type(record.converged) is not bool)
    ):
        raise InputError("polishing has values of types that no such record has.")
    return record
