"""Mixtures in the formats of ONNX and MLflow, by way of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dask_sketch.models import GaussianMixture

pytestmark = [pytest.mark.real, pytest.mark.slow]
MATRICES = [[[1.0, 0.5], [0.5, 2.0]], [[1.0, 0.0], [0.0, 1.0]]]
VARIANCES = [[1.0, 2.0], [2.0, 1.0]]
kinds = pytest.mark.parametrize(
    ("kind", "covariances"), [("full", MATRICES), ("diag", VARIANCES)], ids=["full", "diag"]
)


def mixture_and_rows(kind: str, covariances: list[object]) -> tuple[GaussianMixture, np.ndarray]:
    """A mixture, and rows in float32, the precision of the exported model."""
    found = GaussianMixture([0.4, 0.6], [[0, 0], [4, 4]], covariances, covariance_type=kind)
    return found, found.sample(500, seed=0).astype(np.float32)


@kinds
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx(kind: str, covariances: list[object]) -> None:
    convert = pytest.importorskip("skl2onnx").to_onnx
    runtime = pytest.importorskip("onnxruntime")
    mixture, x = mixture_and_rows(kind, covariances)
    model = convert(mixture.to_sklearn(), x[:1])
    session = runtime.InferenceSession(model.SerializeToString())
    labels, shares = session.run(None, {session.get_inputs()[0].name: x})[:2]
    np.testing.assert_array_equal(labels.ravel(), mixture.predict(x))
    np.testing.assert_allclose(shares, mixture.predict_proba(x), atol=1e-5)


# its own code is not of the newest versions of its dependencies
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@kinds
def test_mlflow(kind: str, covariances: list[object], tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow.sklearn")
    pytest.importorskip("skops")
    mixture, x = mixture_and_rows(kind, covariances)
    mlflow.save_model(mixture.to_sklearn(), str(tmp_path / "model"))
    found = mlflow.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(found.predict(x), mixture.predict(x))
    again = GaussianMixture.from_sklearn(found)
    np.testing.assert_allclose(again.logpdf(x), mixture.logpdf(x), rtol=1e-9)
