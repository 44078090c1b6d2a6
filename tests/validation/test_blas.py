import scipy.linalg  # noqa: F401 - it loads its BLAS
from threadpoolctl import threadpool_info

from dask_sketch.validation.blas import one_blas_thread


def n_threads():
    return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]


def test_one_thread_inside_and_as_many_as_before_outside():
    before = n_threads()
    with one_blas_thread():
        assert set(n_threads()) == {1}
        with one_blas_thread():
            pass
        assert set(n_threads()) == {1}
    assert n_threads() == before
