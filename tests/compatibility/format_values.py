"""Sketches, labels, models and estimators from what the reader of FORMAT.md gives."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

Found = dict[str, Any]


def variances(spec: dict) -> np.ndarray:
    """Variances of a specification, a row for each weight."""
    return np.array(spec["covariances"] or [spec["scale"] ** 2] * spec["n_features"], ndmin=2)


def whitenings(spec: dict) -> tuple[np.ndarray, np.ndarray]:
    """Matrices of the whitening of the frequencies, and of the rows of the data."""
    matrix = np.asarray(spec["whitening"] or np.eye(spec["n_features"]))
    mixed = spec["law"] in ("sparse-sums", "dense-sums", "gaussian-pairs") and np.any(
        matrix - np.diag(np.diag(matrix))
    )
    return (np.eye(len(matrix)), matrix) if mixed else (matrix, np.eye(len(matrix)))


def radians(found: Found) -> np.ndarray:
    """Matrix of frequencies, in radians per unit of the data."""
    return whitenings(found["spec"])[1].T @ (found["cycles"].T.astype(float) * (2 * np.pi))


def sketch_z(found: Found) -> np.ndarray:
    """Complex sketch of eq. 13, of a group one in a row."""
    missing = 512 * found.get("missing_frequency", np.zeros(1, dtype=object))
    weight = np.asarray(found["weight"], dtype=object)[..., None] - missing
    sums = found["moment"].astype(float) * 512 / weight.astype(float)[..., None, :]
    real, imaginary = np.moveaxis(sums, -2, 0)
    omega = radians(found)
    shift = np.exp(-1j * (found["spec"]["center"] @ omega))
    return shift * (real + 1j * imaginary) / np.sqrt(omega.shape[1])


def labels(found: Found, name: str = "labels", kind: str = "label_type") -> np.ndarray:
    """Labels of the groups, or classes."""
    stored, kind = np.ascontiguousarray(found[name]), found[kind]
    if kind in "US":
        return stored.view(f"{kind}{stored.shape[1]}")[:, 0]
    return stored.view(kind) if kind[0] in "mM" else stored


def moment_matrix(found: Found) -> tuple[np.ndarray, np.ndarray | None]:
    """Second moments as integers in steps of 2**-60, and with a test matrix the squares."""
    sums, d = found["sums"], len(found["center"])
    if "n_columns" in found:
        return sums[:-d].reshape(d + 1, found["n_columns"] + 1), sums[-d:]
    side = 1 + d * (1 + found.get("pairwise", 0))
    matrix = np.empty((side, side), dtype=object)
    matrix[np.triu_indices(side)] = sums
    matrix.T[np.triu_indices(side)] = sums
    return matrix, None


def coins(found: Found) -> np.ndarray:
    """Random matrix with which values are multiplied, shape (feature, column)."""
    shape = len(found["center"]), found["n_columns"]
    words = np.random.Philox(key=int(found["seed"])).random_raw(shape[0] * shape[1])
    return found["test_scale"] * (np.bitwise_count(words) - 32.0).reshape(shape)


def covariance_matrices(found: Found) -> np.ndarray:
    """Covariance matrices of a Gaussian mixture, one for each component."""
    kind, stored = found.get("covariance_type", "diag"), found["covariances"]
    k, d = found["means"].shape
    if kind == "full":
        return stored
    if kind == "tied":
        return np.array([stored] * k)
    if kind.startswith("low-rank:"):
        noise, loadings = stored[:, :, 0], stored[:, :, 1:]
        assert loadings.shape[2] == int(kind.split(":")[1])
        return noise[:, :, None] * np.eye(d) + loadings @ loadings.transpose(0, 2, 1)
    return stored.reshape(k, -1)[:, :, None] * np.eye(d)


def feature_weights(found: Found) -> np.ndarray:
    """Weight of each frequency in an estimator."""
    spec = found["spec"]
    if spec["law"] != "clustering":
        return np.ones(spec["n_frequencies"])
    v, d = variances(spec), spec["n_features"]
    s = v @ (np.linalg.inv(whitenings(spec)[0].T) @ radians(found)) ** 2
    scale = np.sqrt(v.prod(axis=1)) * (spec["law_weights"] or np.ones(len(v)))
    a, b = scale[:, None] * np.exp(-s / 2), (1 + s / d) ** 2 / (4 + 2 / d)
    return np.sqrt(a.sum(axis=0) / (a * b).sum(axis=0))


def estimator_features(found: Found, z: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Features of groups with the sketches z, one in a row, and effective sizes n."""
    z = z * feature_weights(found)
    x, settings = np.hstack([z.real, z.imag]), json.loads(found["features"])
    if "shrinkage_center" in found:
        center, between, within = (
            found[f"shrinkage_{name}"] for name in ("center", "between", "within")
        )
        total = between + within / n[:, None]
        x = center + np.where(total > 0, between / np.where(total > 0, total, 1), 1) * (x - center)
    if settings["kernel"] == "linear":
        return x
    if "landmarks" in found:
        t = np.linalg.norm(x[:, None] - found["landmarks"], axis=2) / found["kernel_bandwidth"]
        r = math.sqrt(3) * t
        rbf = settings["kernel"] == "rbf"
        return (np.exp(-(t**2) / 2) if rbf else (1 + r) * np.exp(-r)) @ found["basis"]
    phase = x @ found["layer_frequencies"]
    return np.hstack([np.cos(phase), np.sin(phase)]) / math.sqrt(phase.shape[1])


def predict(found: Found, z: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Predictions of a regressor, or classes of a classifier."""
    features = estimator_features(found, z, n)
    targets = features @ found["coefficients"].T + found["intercept"]
    if "classes" not in found:
        return targets[:, 0]
    inputs = features if json.loads(found["settings"])["loss"] == "logistic" else targets
    logits = inputs @ found["logistic_coefficients"].T + found["logistic_intercept"]
    largest = (logits[:, 0] > 0).astype(int) if logits.shape[1] == 1 else logits.argmax(axis=1)
    return labels(found, "classes", "class_type")[found["logistic_classes"][largest]]


def half_widths(found: Found, n: np.ndarray, level: float) -> np.ndarray:
    """Half-widths of the intervals of a regressor."""
    rank = math.ceil((1 - level) * (len(found["scores"]) + 1))
    error = found["error_constant"] + found["error_per_sample"] / n
    return found["scores"][rank - 1] * np.sqrt(error)
