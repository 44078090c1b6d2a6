import numpy as np
import pytest
from scipy.special import gamma

from dask_sketch.distributions.nearest_neighbors import neighbor_divergence
from dask_sketch.errors import InputError


def by_all_distances(x, y, kind, alpha, k):
    """Formulas of Wang et al. (2009) and of Póczos et al. (2012), from all distances."""
    (n, d), m = x.shape, len(y)
    own = np.sort(np.linalg.norm(x[:, None] - x, axis=2), axis=1)[:, k]
    other = np.sort(np.linalg.norm(x[:, None] - y, axis=2), axis=1)[:, k - 1]
    if kind == "kl":
        return d * np.mean(np.log(other / own)) + np.log(m / (n - 1))
    a, b = alpha - 1, 1 - alpha
    factor = gamma(k) ** 2 / (gamma(k - a) * gamma(k - b))
    integral = factor * (n - 1.0) ** -a * float(m) ** -b
    integral *= np.mean(own ** (-d * a) * other ** (-d * b))
    return (1 - integral) / (alpha * (1 - alpha))


@pytest.mark.parametrize(("kind", "alpha"), [("kl", 0.5), ("alpha", 0.3), ("alpha", 2.5)])
def test_formulas(kind, alpha):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)), 1.5 * rng.normal(size=(60, 3))
    found = neighbor_divergence(x, y, kind, alpha, 4, seed=0)
    assert found.value == pytest.approx(by_all_distances(x, y, kind, alpha, 4))


def test_standard_errors():
    rng = np.random.default_rng(1)
    found = [
        neighbor_divergence(
            rng.normal(size=(400, 1)), 0.5 + rng.normal(size=(400, 1)), "kl", 0.5, 5, seed=0
        )
        for _ in range(60)
    ]
    ratio = np.mean([one.standard_error for one in found]) / np.std([one.value for one in found])
    assert 0.7 < ratio < 1.5
    assert np.mean([one.value for one in found]) == pytest.approx(0.125, abs=0.03)


def test_jensen_shannon_with_sides_of_unlike_sizes():
    rng = np.random.default_rng(2)
    x, y = rng.uniform(size=(4000, 1)), 0.5 + rng.uniform(size=(1000, 1))
    found = neighbor_divergence(x, y, "js", 0.5, 5, seed=0)  # half of each has density alone
    assert found.value == pytest.approx(0.5 * np.log(2), abs=0.05)


def test_the_bias_of_few_rows_is_seen():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(2000, 4)), 1.5 + rng.normal(size=(2000, 4))
    found = neighbor_divergence(x, y, "kl", 0.5, 5, seed=0)
    error = found.value - 0.5 * 4 * 1.5**2
    assert error < -4 * found.standard_error
    assert 0.4 < found.bias / error < 1.6
    assert np.isnan(neighbor_divergence(x[:50], y[:50], "kl", 0.5, 5, seed=0).bias)


def test_bad_rows():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 50, 2))
    with pytest.raises(InputError, match="n_neighbors=1: 2 rows"):
        neighbor_divergence(np.vstack([x, x[:1]]), y, "kl", 0.5, 1, seed=0)
    with pytest.raises(InputError, match="n_neighbors=60"):
        neighbor_divergence(x, y, "kl", 0.5, 60, seed=0)
    with pytest.raises(InputError, match="alpha=3"):
        neighbor_divergence(x, y, "renyi", 3.0, 2, seed=0)
    with pytest.raises(InputError, match="first has 2 features"):
        neighbor_divergence(x, y[:, :1], "kl", 0.5, 2, seed=0)
