"""Write models as labelled datasets; the reader is :func:`dask_sketch.open`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

MIXTURE = "dask-sketch/gaussian-mixture"
CENTROIDS = "dask-sketch/centroids"
LATENT_CLASSES = "dask-sketch/latent-class-mixture"
VON_MISES_FISHER = "dask-sketch/von-mises-fisher-mixture"
ALPHA_STABLE = "dask-sketch/alpha-stable-mixture"
COMPONENTS = "dask-sketch/principal-components"
VERSION = 1
STDERR = "_stderr"  # suffix of the names of standard errors
NOISE = "noise_variances"  # name of the noise variances: only their standard errors are stored


@dataclass(frozen=True)
class ModelLayout:
    """Stored form of a model.

    Attributes
    ----------
    meaning
        Stored description of each array of the model, by name.
    convention
        Stored description of the whole.
    """

    meaning: dict[str, str]
    convention: str


# The texts are stored and covered by checksums: a change of them changes stored files.
LAYOUTS = {
    MIXTURE: ModelLayout(
        {
            "weights": "probability of each component; they sum to one",
            "means": "mean of each component, in the units of the data",
            "covariances": "diagonal of each component's covariance matrix: variances, squared "
            "units",
        },
        "density = sum_k weights[k] * prod_l Normal(x[l]; means[k, l], variance "
        "covariances[k, l]). ",
    ),
    CENTROIDS: ModelLayout(
        {
            "weights": "share of the samples that each centroid stands for; they sum to one",
            "centers": "position of each centroid, in the units of the data",
        },
        "a sample belongs to the nearest centroid, by Euclidean distance. ",
    ),
    VON_MISES_FISHER: ModelLayout(
        {
            "weights": "probability of each component; they sum to one",
            "directions": "mean direction of each component, of length one",
            "concentrations": "concentration of each component",
        },
        "a sample x is divided by its Euclidean length; the density on the sphere is proportional "
        "to sum_k weights[k] * c(concentrations[k]) * exp(concentrations[k] directions[k] . x). ",
    ),
    ALPHA_STABLE: ModelLayout(
        {
            "weights": "probability of each component; they sum to one",
            "locations": "center of each component, in the units of the data",
            "scales": "width of each component in each feature, in the units of the data",
            "alphas": "index of stability of each component, above 0.5 and at most 2",
        },
        "characteristic function E exp(-i w . x) = sum_k weights[k] * exp(-i w . locations[k] - "
        "(sum_l (w[l] scales[k, l])**2 / 2)**(alphas[k] / 2)). ",
    ),
}
# For mixtures whose covariances are not the variances of each component and feature: dimensions,
# and stored description.
COVARIANCE_LAYOUTS = {
    "spherical": (("component",), "variance of each component, the same in all features"),
    "tied": (
        ("feature", "other_feature"),
        "covariance matrix that all components share, squared units",
    ),
    "full": (
        ("component", "feature", "other_feature"),
        "covariance matrix of each component, squared units",
    ),
    "low-rank": (
        ("component", "feature", "factor"),
        "noise variances (factor 0) and loadings (others) of each component: its covariance matrix "
        "is diag(noise variances) + loadings loadings^T",
    ),
}
SCHEMAS: tuple[str, ...] = (*LAYOUTS, LATENT_CLASSES)
_DECODING = (
    "`decoding` is JSON: how the model was fitted; cost is the squared distance between the "
    "sketch and that of the model, eq. (9) of Keriven et al. 2018."
)


def to_dataset(model: Any, schema: str) -> xr.Dataset:
    """Return a model as an xarray Dataset with dimensions ``component`` and ``feature``.

    Covariance matrices have the further dimension ``other_feature``.

    Parameters
    ----------
    model
        Object with the arrays of the layout, ``decoding``, ``polishing`` and, for a mixture,
        ``stderr``.
    schema
        Name of the layout, such as ``MIXTURE``.
    """
    import xarray as xr

    layout = LAYOUTS[schema]
    kind = getattr(model, "covariance_type", "diag")
    variables, convention = {}, layout.convention
    for name, text in layout.meaning.items():
        values = getattr(model, name)
        dimensions = ("component", "feature")[: values.ndim]
        if name == "covariances" and kind != "diag":
            dimensions, text = COVARIANCE_LAYOUTS[kind.partition(":")[0]]
            convention = f"density = sum_k weights[k] * Normal(x; means[k], {kind} covariances). "
        variables[name] = (dimensions, values, {"meaning": text})
    if getattr(model, "stderr", None) is not None:
        for name, (dimensions, _, attributes) in list(variables.items()):
            meaning = f"standard error of: {attributes['meaning']}"
            values = getattr(model.stderr, name)
            if "factor" in dimensions:  # errors are those of the matrices and noise variances
                dimensions, text = COVARIANCE_LAYOUTS["full"]
                meaning = f"standard error of: {text}"
                noise = model.stderr.noise_variances
                of_noise = "standard error of: noise variances, squared units"
                variables[NOISE + STDERR] = dimensions[:2], noise, {"meaning": of_noise}
            variables[name + STDERR] = dimensions, values, {"meaning": meaning}
    record = None if model.decoding is None else asdict(model.decoding)
    attrs: dict[str, Any] = {
        "convention": convention + _DECODING,
        "decoding": json.dumps(record, sort_keys=True),
    }
    if getattr(model, "normalize", False):
        attrs["normalize"] = True
        attrs["convention"] = (
            "a sample, divided by its Euclidean length, belongs to the nearest centroid, which is "
            "that of greatest cosine. "
        ) + _DECODING
    if kind != "diag":
        attrs["covariance_type"] = kind
    names = model.feature_names
    if names is not None and (record is None or names != model.decoding.feature_names):
        attrs["feature_names"] = json.dumps(names)
    if model.polishing is not None:
        attrs["polishing"] = json.dumps(asdict(model.polishing), sort_keys=True)
    return xr.Dataset(variables, attrs=attrs)


_LATENT_CLASSES = {
    "weights": (("component",), "probability of each component; they sum to one"),
    "probabilities": (
        ("component", "level"),
        "probabilities of the levels of all categorical features, one feature after the other",
    ),
    "means": (("component", "numeric_feature"), "mean of each numeric feature"),
    "variances": (("component", "numeric_feature"), "variance of each numeric feature"),
}


def latent_class_dataset(model: Any) -> xr.Dataset:
    """Return a mixture of latent classes as an xarray Dataset.

    Arrays of numeric features are left out if there are none.

    Parameters
    ----------
    model
        Object with ``weights``, ``probabilities``, ``means``, ``variances``, ``categories`` and
        ``decoding``.
    """
    import xarray as xr

    variables = {
        name: (dimensions, getattr(model, name), {"meaning": text})
        for name, (dimensions, text) in _LATENT_CLASSES.items()
        if getattr(model, name).size
    }
    record = None if model.decoding is None else asdict(model.decoding)
    attrs = {
        "convention": "density = sum_k weights[k] * product over features of the probability of "
        "the level, or Normal(x; mean, variance). `categories` is JSON: the levels of each "
        "feature, null for a numeric one. " + _DECODING,
        "categories": json.dumps(model.categories.levels),
        "feature_names": json.dumps(model.categories.names),
        "decoding": json.dumps(record, sort_keys=True),
    }
    return xr.Dataset(variables, attrs=attrs)


COMPONENT_ARRAYS = {
    "mean": (("feature",), "mean of the samples, in the units of the data"),
    "components": (("component", "feature"), "orthonormal directions by decreasing variance"),
    "explained_variance": (("component",), "variance along each component, squared units"),
    "remainder": (
        ("quantity",),
        "total variance of all features, mean variance along the other directions, and the "
        "variance that better components would explain, as a fraction of what is not explained",
    ),
}


def components_dataset(components: Any) -> xr.Dataset:
    """Return principal components as an xarray Dataset.

    Parameters
    ----------
    components
        Object with the attributes of
        :class:`~dask_sketch.models.principal_components.PrincipalComponents`.
    """
    import numpy as np
    import xarray as xr

    remainder = np.array(
        [components.total_variance, components.noise_variance, components.excess_risk]
    )
    values = {name: getattr(components, name, remainder) for name in COMPONENT_ARRAYS}
    return xr.Dataset(
        {
            name: (dimensions, values[name], {"meaning": text})
            for name, (dimensions, text) in COMPONENT_ARRAYS.items()
        },
        attrs={
            "convention": "the coordinates of a sample x are components @ (x - mean); "
            "feature_names is JSON, null if there are none.",
            "n_samples": components.n_samples,
            "feature_names": json.dumps(components.feature_names),
        },
    )
