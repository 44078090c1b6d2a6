"""Models and estimators, written from dask_sketch/FORMAT.md alone."""

from __future__ import annotations

import json
import math

import numpy as np

from compatibility.format_frequencies import sample_frequencies, whitenings
from compatibility.format_reader import labels, radians


def covariance_matrices(attrs: dict, arrays: dict) -> np.ndarray:
    """Covariance matrices of a Gaussian mixture, one for each component."""
    kind, stored = attrs.get("covariance_type", "diag"), arrays["covariances"]
    k, d = arrays["means"].shape
    if kind == "full":
        return stored
    if kind == "tied":
        return np.array([stored] * k)
    if kind.startswith("low-rank:"):
        noise, loadings = stored[:, :, 0], stored[:, :, 1:]
        assert loadings.shape[2] == int(kind.split(":")[1])
        return noise[:, :, None] * np.eye(d) + loadings @ loadings.transpose(0, 2, 1)
    return stored.reshape(k, -1)[:, :, None] * np.eye(d)


def feature_weights(spec: str) -> np.ndarray:
    """Weight of each frequency in an estimator."""
    parts = json.loads(spec)
    d, m = parts["n_features"], parts["n_frequencies"]
    if parts["law"] != "clustering":
        return np.ones(m)
    omega = np.linalg.inv(whitenings(parts)[0].T) @ radians(spec, sample_frequencies(spec))
    v = np.atleast_2d(parts["covariances"] or [parts["scale"] ** 2] * d)
    s = v @ omega**2
    scale = np.sqrt(v.prod(axis=1)) * (parts["law_weights"] or np.ones(len(v)))
    a, b = scale[:, None] * np.exp(-s / 2), (1 + s / d) ** 2 / (4 + 2 / d)
    return np.sqrt(a.sum(axis=0) / (a * b).sum(axis=0))


def estimator_features(attrs: dict, arrays: dict, z: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Features of groups with the sketches z, one in a row, and effective sizes n."""
    z = z * feature_weights(attrs["feature_map"])
    x, settings = np.hstack([z.real, z.imag]), json.loads(attrs["features"])
    if "shrinkage_center" in arrays:
        center, between, within = (
            arrays[f"shrinkage_{name}"] for name in ("center", "between", "within")
        )
        total = between + within / n[:, None]
        x = center + np.where(total > 0, between / np.where(total > 0, total, 1), 1) * (x - center)
    if settings["kernel"] == "linear":
        return x
    if "landmarks" in arrays:
        t = np.linalg.norm(x[:, None] - arrays["landmarks"], axis=2) / attrs["kernel_bandwidth"]
        r = math.sqrt(3) * t
        rbf = settings["kernel"] == "rbf"
        return (np.exp(-(t**2) / 2) if rbf else (1 + r) * np.exp(-r)) @ arrays["basis"]
    phase = x @ arrays["layer_frequencies"]
    return np.hstack([np.cos(phase), np.sin(phase)]) / math.sqrt(phase.shape[1])


def predict(attrs: dict, arrays: dict, z: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Predictions of a regressor, or classes of a classifier."""
    features = estimator_features(attrs, arrays, z, n)
    found = features @ arrays["coefficients"].T + arrays["intercept"]
    if "classes" not in arrays:
        return found[:, 0]
    inputs = features if json.loads(attrs["settings"])["loss"] == "logistic" else found
    logits = inputs @ arrays["logistic_coefficients"].T + arrays["logistic_intercept"]
    largest = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)
    classes = labels({"label_type": attrs["class_type"]}, {"labels": arrays["classes"]})
    return classes[arrays["logistic_classes"][largest]]


def half_widths(attrs: dict, arrays: dict, n: np.ndarray, level: float) -> np.ndarray:
    """Half-widths of the intervals of a regressor."""
    rank = math.ceil((1 - level) * (len(arrays["scores"]) + 1))
    error = attrs["error_constant"] + attrs["error_per_sample"] / n
    return arrays["scores"][rank - 1] * np.sqrt(error)
