import contextlib
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import dask_sketch as ds
from dask_sketch.validation.warn import collect_warnings, warn_user


def test_a_warning_points_at_the_line_that_called_the_package():
    x = np.random.default_rng(0).normal(size=(500, 2))
    with pytest.warns(UserWarning, match="n_frequencies=4") as designed:
        feature_map = ds.design(x, n_components=1, n_frequencies=4)
    sketch = ds.sketch(x, feature_map, sample=False)
    with pytest.warns(UserWarning, match="n_components=1") as decoded:
        ds.decode(sketch, n_components=1)
    assert {warning.filename for warning in [*designed, *decoded]} == {__file__}


def test_managers_of_contexts_are_skipped():
    @contextlib.contextmanager
    def manager():
        warn_user("from a manager")
        yield

    with pytest.warns(UserWarning, match="from a manager") as caught, manager():
        pass
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_is_issued_again_with_its_category():
    with pytest.warns(DeprecationWarning, match="again"):
        warn_user(DeprecationWarning("again"))


def test_each_thread_collects_its_own_warnings():
    barrier = Barrier(3, timeout=30)

    def collected_of(k):
        with collect_warnings() as outer:
            barrier.wait()
            warn_user(f"of thread {k}")
            with collect_warnings() as inner:
                warn_user(FutureWarning("of a call"))
            barrier.wait()
        return outer, inner

    with ThreadPoolExecutor(3) as executor:
        found = list(executor.map(collected_of, range(3)))
    for k, (outer, inner) in enumerate(found):
        assert [str(warning) for warning in outer] == [f"of thread {k}"]
        assert [type(warning) for warning in inner] == [FutureWarning]
