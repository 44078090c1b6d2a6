"""Principal components from second moments, or from their products with a test matrix.

From the products ``Y = A Omega`` of a covariance matrix with a test matrix, the Nystroem
approximation ``Y (Omega' Y)^-1 Y'`` has the leading eigenvectors of ``A``, nearly; a small multiple
of the test matrix is added and subtracted again, against rounding (Tropp, Yurtsever, Udell and
Cevher 2017, Algorithm 3). Its eigenvalues are too small. In expectation, nearly, it is
``A**2 (A + kappa)**-1``, where ``kappa`` is the variance that it misses for each column of the test
matrix (Derezinski, Liang, Liao and Mahoney 2020), so that each eigenvalue can be corrected.

References
----------
Tropp, Yurtsever, Udell, Cevher (2017), Fixed-rank approximation of a positive-semidefinite matrix
from streaming data, Advances in Neural Information Processing Systems 30.

Dereziński, Liang, Liao, Mahoney (2020), Precise expressions for random projections, Advances in
Neural Information Processing Systems 33.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dask_sketch.errors import DecodeError, InputError
from dask_sketch.models.principal_components import PrincipalComponents
from dask_sketch.sketching.moment_grid import default_n_columns
from dask_sketch.sketching.second_moments import SecondMoments
from dask_sketch.validation.arrays import require_integer, require_number
from dask_sketch.validation.threads import one_blas_thread
from dask_sketch.validation.warn import warn_user

Array = NDArray[np.float64]
# shifts of the products against rounding, relative to the size of the products
_ROUNDING = 2.0 ** np.arange(-30, -9, 4)
_MAX_NEGATIVE = 0.01  # largest sum of negative eigenvalues, as a fraction of the sum of all sizes
_MAX_EXCESS = 0.02  # excess risk that warns; the estimate is often two times too large


def principal_components(
    moments: SecondMoments, n_components: float | int | None = None
) -> PrincipalComponents:
    """Leading principal components, from second moments.

    Parameters
    ----------
    moments
        Second moments of at least two samples.
    n_components
        Number of components; or a fraction of the variance, above 0 and below 1, that they explain
        together at least. All by default. With products of a test matrix, a number is needed.

    Returns
    -------
    components
        Components with their variances.

    Raises
    ------
    InputError
        If ``n_components`` is out of range.
    DecodeError
        If no covariance matrix has these products with the test matrix.

    Warns
    -----
    UserWarning
        If the test matrix has too few columns for the spectrum.

    Examples
    --------
    >>> from dask_sketch.sketching.partial_moments import partial_moments
    >>> from dask_sketch.sketching.moment_grid import MomentGrid
    >>> x = np.random.default_rng(0).normal(size=(1000, 2)) * [3.0, 1.0]
    >>> found = principal_components(partial_moments(x, MomentGrid.of_rows(x)), 1)
    >>> found.components.round(1), found.explained_variance.round()
    (array([[ 1., -0.]]), array([9.]))
    """
    if not isinstance(moments, SecondMoments):
        raise InputError(
            f"moments of type {type(moments).__name__}: give second moments; call .compute() on "
            "lazy ones."
        )
    if not moments.effective_count > 1.0:
        raise InputError(
            f"the second moments are of {moments.effective_count:.3g} samples: give at least 2."
        )
    largest = min(moments.count, moments.n_features)
    fraction = None
    if isinstance(n_components, (float, np.floating)):
        fraction = require_number("n_components", n_components, 0.0, 1.0, strict=True)
    elif n_components is not None:
        number = require_integer("n_components", n_components, 1)
        if number > largest:
            raise InputError(
                f"n_components={number} must be between 1 and min(n_samples, n_features)={largest}."
            )
    with one_blas_thread():
        if moments.grid.n_columns is not None:
            if n_components is None or fraction is not None:
                raise InputError(
                    f"n_components={n_components!r}: give a number of components, since only "
                    f"{moments.grid.n_columns} columns of the second moments are held."
                )
            return _of_products(moments, int(n_components))
        return _of_covariance(moments, fraction, largest if n_components is None else n_components)


def _of_covariance(
    moments: SecondMoments, fraction: float | None, n_components: Any
) -> PrincipalComponents:
    covariance, d = moments.covariance, moments.n_features
    total = float(np.trace(covariance))
    # pairwise all of them, since some may be negative
    whole = fraction is not None or moments.grid.pairwise
    chosen = None if whole else (d - int(n_components), d - 1)
    values, vectors = scipy.linalg.eigh(
        covariance, subset_by_index=chosen, overwrite_a=True, check_finite=False
    )
    if moments.grid.pairwise:
        _warn_of_negative(values)
        if fraction is None:
            values, vectors = values[-int(n_components) :], vectors[:, -int(n_components) :]
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    if fraction is not None:
        # as in scikit-learn: the first number that explains more
        reached = np.cumsum(values[: min(moments.count, d)]) / (total or 1.0)
        k = min(int(np.searchsorted(reached, fraction, side="right")) + 1, len(reached))
        values, vectors = values[:k], vectors[:, :k]
    return _components(moments, vectors, values, total, 0.0)


def _warn_of_negative(values: Array) -> None:
    """Warn if pairwise covariances are far from what any samples can have."""
    negative = -float(values[values < 0.0].sum()) / (float(np.abs(values).sum()) or 1.0)
    if negative > _MAX_NEGATIVE:
        warn_user(
            f"{negative:.1%} of the eigenvalues of the covariances by pairs of features is "
            "negative: too many values are missing, or not at random. Leave out features with few "
            "values, or fit rows without missing values, nan_policy='omit'."
        )


def _of_products(moments: SecondMoments, k: int) -> PrincipalComponents:
    products, test = moments.covariance_products()
    d, r = products.shape
    if r < k:
        raise InputError(
            f"n_columns={r} is less than n_components={k}: give at least {default_n_columns(d, k)}."
        )
    total = float(moments.variance.sum())
    vectors, values = _nystroem(products, test)
    half, _ = _nystroem(products[:, : r // 2], test[:, : r // 2]) if r // 2 >= k else (None, None)
    # the variance that is missed, for each column; less where the spectrum ends
    missed = max(total - float(values.sum()), 0.0) / r
    # an eigenvalue below it is hidden among those of the tail, and its correction is too large
    hidden = int((values[:k] < missed).sum()) if r < d else 0
    ridge = np.minimum(missed, values)
    values = 0.5 * (values + np.sqrt(values * (values + 4.0 * ridge)))
    rest = max(total - float(values[:k].sum()), 0.0)
    excess = np.nan
    if half is not None:
        # the components of half of the columns, seen by all: what the other half has gained
        overlap = half[:, :k].T @ vectors
        gain = float(values[:k].sum() - np.square(overlap).sum(axis=0) @ values)
        excess = max(gain, 0.0) / rest if rest > 1e-9 * total else 0.0
    if r < d and (hidden or not excess <= _MAX_EXCESS):
        _warn(r, d, k, hidden, excess, rest / total)
    return _components(moments, vectors[:, :k], values[:k], total, excess)


def _warn(r: int, d: int, k: int, hidden: int, excess: float, rest: float) -> None:
    if hidden:
        state = (
            f"{hidden} of {k} components are hidden in the rest of the spectrum, {rest:.0%} of the "
            "variance, so that their explained variances are uncertain by half"
        )
    elif np.isnan(excess):
        state = f"there are fewer than two columns for each of the {k} components"
    else:
        state = (
            f"the components miss about {excess:.1%} of the variance that they do not explain, and "
            "better ones would explain it"
        )
    larger = min(max(2 * r, default_n_columns(d, k)), d)
    warn_user(
        f"n_columns={r}: {state}. Give n_columns={larger}"
        + ("." if larger < d else ", or all second moments, n_columns=None.")
    )


def _nystroem(products: Array, test: Array) -> tuple[Array, Array]:
    """Eigenvectors and eigenvalues of the Nystroem approximation, by decreasing eigenvalue."""
    size = np.linalg.norm(products)
    if not size > 0.0:
        return np.eye(*products.shape), np.zeros(products.shape[1])
    for shift in _ROUNDING * size / np.linalg.norm(test):
        shifted = products + shift * test
        core = test.T @ shifted
        try:
            factor = np.linalg.cholesky(0.5 * (core + core.T))
        except np.linalg.LinAlgError:
            continue
        root = scipy.linalg.solve_triangular(factor, shifted.T, lower=True, check_finite=False)
        vectors, singular, _ = np.linalg.svd(root.T, full_matrices=False)
        return vectors, np.maximum(singular**2 - shift, 0.0)
    raise DecodeError(
        "moments: their products with the test matrix are not those of a covariance matrix, "
        "because parts were subtracted that had not been added, or the file is damaged. Compute "
        "them again."
    )


def _components(
    moments: SecondMoments, vectors: Array, values: Array, total: float, excess: float
) -> PrincipalComponents:
    """Components with the signs and the noise variance of scikit-learn."""
    rows = vectors.T
    largest = np.abs(rows).argmax(axis=1)
    rows = rows * np.sign(rows[np.arange(len(rows)), largest])[:, None]
    left = min(moments.count, moments.n_features) - len(values)
    rest = max(total - float(values.sum()), 0.0)
    return PrincipalComponents(
        moments.mean, rows, values, total, rest / left if left > 0 else 0.0, excess,
        moments.count, moments.grid.feature_names,
    )  # fmt: skip
