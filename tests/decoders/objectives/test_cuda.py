"""The objective of the GPU beside that of the processor, with NumPy in place of CuPy too."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dask_sketch import decode, partial_sketch
from dask_sketch.decoders.names import ATOMS
from dask_sketch.decoders.objectives.cuda import DeviceObjective
from dask_sketch.decoders.objectives.objective import Objective
from dask_sketch.errors import DecodeError, DeviceError
from dask_sketch.features import FeatureMap
from dask_sketch.models import random_mixture
from dask_sketch.validation.device import cupy

KNOWN = np.array([[0.5, -0.3, 0.02], [-0.3, 4.0, 0.1], [0.02, 0.1, 0.05]])


class Uploads:
    """NumPy as a namespace whose arrays are copies, with a count of them."""

    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDeviceCount=lambda: 1),
        Device=lambda: SimpleNamespace(compute_capability="90"),
    )

    def __init__(self):
        self.sent = 0

    def asarray(self, x):
        self.sent += 1
        return np.array(x)

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)) * [1.0, 5.0, 0.2] + [3.0, -40.0, 0.1]
    feature_map = FeatureMap(3, 700, covariances=[0.5, 9.0, 0.03], seed=1, dtype="float64")
    return partial_sketch(x, feature_map)


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    if request.param == "numpy":
        return Uploads()
    try:
        return cupy()
    except DeviceError as error:
        pytest.skip(f"no GPU: {error.__cause__ or error}")


@pytest.fixture(params=ATOMS)
def pair(request, xp, data, monkeypatch):
    """The objective of one family, and the one of the GPU in several blocks."""
    monkeypatch.setattr(DeviceObjective, "device_block_size", 2000)
    options = {"covariance": KNOWN if request.param == "known" else None}
    here = Objective(data, request.param, **options)
    return here, DeviceObjective(data, request.param, xp=xp, **options)


def draw(objective, n_atoms=4):
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.1, 1.0, n_atoms)
    shapes = rng.uniform(0.2, 2.0, (n_atoms, objective.space.n_shapes))
    return weights, np.concatenate([rng.normal(size=(n_atoms, 3)), shapes], axis=1)


def assert_close(there, here):
    if isinstance(here, tuple):
        assert len(there) == len(here)
        for a, b in zip(there, here, strict=True):
            assert_close(a, b)
        return
    assert type(there) is type(here)
    scale = np.abs(here).max()
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-11 * scale)


@pytest.mark.parametrize("method", ["residual", "cost", "cost_gradient", "gram", "curvatures"])
def test_fits_are_evaluated_alike(pair, method):
    here, there = pair
    weights, theta = draw(here)
    assert_close(getattr(there, method)(weights, theta), getattr(here, method)(weights, theta))
    assert there.n_evaluations == here.n_evaluations


@pytest.mark.parametrize("method", ["correlations", "correlation_gradients"])
def test_starts_are_evaluated_alike(pair, method):
    here, there = pair
    _, theta = draw(here, 9)
    residual = here.residual(*draw(here))
    assert_close(getattr(there, method)(theta, residual), getattr(here, method)(theta, residual))
    assert there.n_evaluations == here.n_evaluations


def test_wide_atoms_do_not_underflow(data, xp):
    here, there = Objective(data), DeviceObjective(data, xp=xp)
    theta = np.concatenate([np.zeros((2, 3)), np.full((2, 3), 1e4)], axis=1)
    residual = here.target
    assert_close(there.correlations(theta, residual), here.correlations(theta, residual))
    assert np.isfinite(there.correlations(theta, residual)).all()


def test_a_part_of_the_frequencies(pair):
    here, there = (objective.subsample(300) for objective in pair)
    assert isinstance(there, DeviceObjective)
    weights, theta = draw(here)
    assert_close(there.cost_gradient(weights, theta), here.cost_gradient(weights, theta))
    assert there.noise_level == here.noise_level


def test_a_part_of_the_features(data, xp):
    options = {"covariance": [0.5, 9.0, 0.03]}
    here, there = (
        Objective(data, "known", **options),
        DeviceObjective(data, "known", xp=xp, **options),
    )
    for objective in (here, there):
        objective.omega[2, 100:] = 0.0
    here, there = (objective.restrict(np.array([0, 1])) for objective in (here, there))
    weights, theta = draw(here)
    assert_close(
        there.cost_gradient(weights, theta[:, :2]), here.cost_gradient(weights, theta[:, :2])
    )


def test_equations_are_solved_alike(data, xp):
    here, there = Objective(data), DeviceObjective(data, xp=xp)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 30))
    matrix, right = rows @ rows.T, rng.normal(size=(20, 2))
    assert_close(there.inverse(matrix), here.inverse(matrix))
    for side in (right, right[:, 0]):
        assert_close(there.factorise(matrix)(side), here.factorise(matrix)(side))
    matrix[3, 3] = -1.0
    for objective in (here, there):
        with pytest.raises(np.linalg.LinAlgError):
            objective.factorise(matrix)


def test_a_residual_is_sent_once(data):
    uploads = Uploads()
    there = DeviceObjective(data, xp=uploads)
    _, theta = draw(there)
    counts = []
    for residual in (there.target, there.target, (there.target[0] * 2, there.target[1])):
        before = uploads.sent
        there.correlations(theta, residual)
        counts.append(uploads.sent - before)
    assert counts[1] == counts[0] - 2
    assert counts[2] == counts[0]


def test_another_target(pair):
    target = tuple(np.random.default_rng(0).normal(size=(2, 700)))
    here, there = (objective.with_target(target) for objective in pair)
    weights, theta = draw(here)
    assert_close(there.cost_gradient(weights, theta), here.cost_gradient(weights, theta))


@pytest.fixture(scope="module")
def mixture_sketch():
    truth = random_mixture(n_components=3, n_features=2, seed=4)
    return partial_sketch(truth.sample(20_000, seed=5), FeatureMap(2, 300, scale=1.0, seed=6))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "cl-ompr"},
        {"method": "splitting", "model": "isotropic"},
        {"refine": "efficient"},
        {"model": "known", "covariance": [1.0, 1.0]},
    ],
    ids=str,
)
@pytest.mark.few_cases(3)
def test_models_are_the_same(mixture_sketch, xp, options, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", xp)
    here = decode(mixture_sketch, n_components=3, **options)
    there = decode(mixture_sketch, n_components=3, device="cuda", **options)
    assert there.decoding.cost == pytest.approx(here.decoding.cost, rel=1e-4)
    np.testing.assert_allclose(there.means, here.means, atol=1e-3)
    np.testing.assert_allclose(there.weights, here.weights, atol=1e-3)


def test_refuses_other_and_missing_devices(mixture_sketch, monkeypatch):
    with pytest.raises(DecodeError, match=r"device='gpu'.*cuda"):
        decode(mixture_sketch, n_components=3, device="gpu")
    with pytest.raises(DecodeError, match="device='cuda' with method='density'"):
        decode(mixture_sketch, n_components=3, method="density", device="cuda")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="device='cuda'"):
        decode(mixture_sketch, n_components=3, device="cuda")
