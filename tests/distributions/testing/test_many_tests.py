import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import compare, compare_each
from dask_sketch.errors import InputError

MAP = FeatureMap(2, 40, scale=1.0)


def files(n: int, shifted=(), seed: int = 0):
    """Forty rows of each file, around a mean of that file; every eighth file is of one machine."""
    rng = np.random.default_rng(seed)
    file = np.arange(40 * n) % n
    x = rng.normal(size=(40 * n, 2)) + 0.2 * rng.normal(size=(n, 2))[file]
    x[np.isin(file % 8, shifted)] += 1.0
    return partial_sketch(x, MAP, groups=file, dim="file"), np.arange(n) % 8


@pytest.mark.slow
def test_groups_that_differ_come_first_with_adjusted_p_values():
    units, machine = files(96, shifted=(2, 5))
    found = compare_each(units, machine)
    assert set(found.labels[:2]) == {2, 5}
    assert found.different == found.labels[:2]
    k = found.labels.index(0)
    alone = compare(
        units.select(machine == 0),
        units.select(~np.isin(machine, (0, 2, 5))),  # without those that were found
        n_permutations=found.tests[k].n_permutations - 1,
    )
    assert found.tests[k].p_value == alone.p_value
    p = [one.p_value for one in found.tests]
    assert p == sorted(p)
    assert np.allclose(found.adjusted_p_values, stats.false_discovery_control(p, method="by"))
    assert "2 of 8 groups differ" in repr(found)
    assert "2 of 8" in found._repr_html_()
    names = np.array([f"m{k}" for k in machine], dtype=object)
    names[machine == 5] = None
    assert compare_each(units, names, strata=machine % 1).different == ("m2",)


def test_what_cannot_be_found_is_refused():
    units, machine = files(16)
    with pytest.raises(InputError, match="rate=1e-07"):
        compare_each(units, machine, rate=1e-7)
    for rate in (1e-9, 5e-324):  # whose permutations fit into no memory
        with pytest.raises(InputError, match=f"rate={rate:g}"):
            compare_each(files(80)[0], np.arange(80) % 4, rate=rate)
        with pytest.raises(InputError, match=f"n_permutations=99: .*{rate:g}"):
            compare_each(units, machine, rate=rate, n_permutations=99)
    with pytest.raises(InputError, match="rate=0.05.* 2 units"):
        compare_each(units, machine, strata=np.arange(len(units)))
    with pytest.raises(InputError, match="n_permutations=9"):
        compare_each(units, machine, n_permutations=9)
    with pytest.raises(InputError, match="method='holm'"):
        compare_each(units, machine, method="holm")
    with pytest.raises(InputError, match=r"by has shape \(15,\)"):
        compare_each(units, machine[1:])
    with pytest.raises(InputError, match="by has 1 labels"):
        compare_each(units, machine * 0)
    with pytest.raises(InputError, match="units of type list"):
        compare_each([units], machine)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bh", "by"])
def test_share_of_false_discoveries(method):
    false, true = [], []
    for seed in range(60):
        units, machine = files(96, shifted=(2, 5), seed=seed)
        found = set(compare_each(units, machine, method=method, seed=seed).different)
        false.append(len(found - {2, 5}) / max(len(found), 1))
        true.append(len(found & {2, 5}) / 2)
    assert np.mean(false) < 0.08
    assert np.mean(true) > 0.9


def test_groups_and_strata_follow_the_labels_of_units():
    units, machine = files(48, shifted=(2,))
    order = np.random.default_rng(0).permutation(48)
    by = pd.Series(machine[order], index=order)
    day = pd.Series((np.arange(48) // 8 % 2)[order], index=order)
    settings = {"n_permutations": 99}
    expected = compare_each(units, machine, strata=day.sort_index().to_numpy(), **settings)
    for strata in (day, day.to_dict()):
        assert compare_each(units, by, strata=strata, **settings) == expected
    halves = units.select(machine % 2 == 0), units.select(machine % 2 == 1)
    both = day.loc[[*halves[0].labels, *halves[1].labels]]
    expected = compare(*halves, strata=both.to_numpy(), **settings)
    for strata in (day, both):
        assert compare(*halves, strata=strata, **settings).p_value == expected.p_value
    with pytest.raises(InputError, match=r"by .* 47"):
        compare_each(units, by.drop(47), **settings)
