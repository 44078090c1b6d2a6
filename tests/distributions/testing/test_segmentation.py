import json

import numpy as np
import pytest

from dask_sketch import FeatureMap, partial_sketch
from dask_sketch.distributions import ChangePoints, change_points
from dask_sketch.errors import InputError

MAP = FeatureMap(2, 50, scale=1.0)


def nights(n: int, widths=lambda night: 1.0, seed: int = 0, offsets=lambda night: 0.0):
    """Autoregressive rows of each night, around a mean of that night."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(30, n, 2))
    x = noise.copy()
    for t in range(1, 30):
        x[t] = 0.9 * x[t - 1] + np.sqrt(1 - 0.81) * noise[t]
    night = np.arange(n)
    x = x * np.array([widths(k) for k in night])[:, None] + 0.3 * rng.normal(size=(n, 2))
    x[..., 0] += np.array([offsets(k) for k in night])
    labels = np.tile(night, 30)
    return partial_sketch(x.reshape(-1, 2), MAP, groups=labels, dim="night")


def test_changes_are_found_where_they_are():
    found = change_points(
        nights(80, lambda k: 1.0 if k < 30 else 2.0, offsets=lambda k: 3.0 * (k >= 60)),
        n_permutations=199,
    )
    positions = [one.position for one in found.points]
    assert len(positions) == 2
    assert np.abs(np.array(positions) - [30, 60]).max() <= 2
    assert found.p_value <= min(one.p_value for one in found.points) <= 0.05
    for one in found.points:
        assert one.label == one.position
        assert 0.0 < one.interval[0] < one.discrepancy < one.interval[1]
    assert f"with night {positions[-1]}" in repr(found)
    assert str(positions[0]) in found._repr_html_()


def test_seasons_are_strata():
    group = nights(70, offsets=lambda k: 2.0 * (k % 7 >= 5))
    found = change_points(group, strata=np.arange(70) % 7, n_permutations=99)
    assert found.points == ()
    assert found.n_strata == 7
    assert "No change" in found.sentence
    changed = nights(70, offsets=lambda k: 2.0 * (k % 7 >= 5) + 2.0 * (k >= 42))
    found = change_points(changed, strata=np.arange(70) % 7, n_permutations=99)
    assert [one.position for one in found.points] == [42]


@pytest.mark.slow
def test_nights_that_depend_on_their_neighbours():
    rng = np.random.default_rng(0)
    offsets = rng.normal(size=(8, 100))
    for t in range(1, 100):
        offsets[:, t] = 0.9 * offsets[:, t - 1] + 0.4 * offsets[:, t]
    still = {False: 0, True: 0}
    for k, offset in enumerate(offsets):
        group = nights(100, offsets=offset.__getitem__, seed=k)
        for serial in still:
            found = change_points(group, serial=serial, n_permutations=99, seed=k)
            still[serial] += bool(found.points)
    assert still[True] <= 2 < 6 <= still[False]
    offset = offsets[0] + 4.0 * (np.arange(100) >= 60)
    found = change_points(nights(100, offsets=offset.__getitem__), serial=True, n_permutations=99)
    assert any(abs(one.position - 60) <= 2 for one in found.points)


def test_changes_lie_between_times():
    group = nights(24, offsets=lambda k: 4.0 * (k >= 13))
    times = np.arange(24) // 4
    found = change_points(group, times=times, n_permutations=99)
    assert [(one.label, one.position) for one in found.points] == [(3, 12)]
    assert "with time 3 " in found.sentence
    # the order of the labels is not that of the times
    order = np.random.default_rng(0).permutation(24)
    mixed = nights(24, offsets=lambda k: 4.0 * (order[k] >= 12))
    again = change_points(mixed, times=order, n_permutations=99)
    assert [(one.label, one.position) for one in again.points] == [(12, 12)]
    assert ChangePoints.from_dict(json.loads(json.dumps(again.as_dict()))) == again
    with pytest.raises(InputError, match="times has no change"):
        change_points(group, times=np.zeros(24))
    with pytest.raises(InputError, match=r"times of shape \(3,\)"):
        change_points(group, times=[1, 2, 3])


def test_nights_without_samples_are_left_out_and_too_few_refused():
    group = nights(24, offsets=lambda k: 4.0 * (k >= 12))
    empty = partial_sketch(np.zeros((4, 2)), MAP, np.zeros(4), groups=np.arange(-1, 3), dim="night")
    whole = group + empty  # one night before the others
    assert len(whole) == 25
    assert [one.label for one in change_points(whole, n_permutations=99).points] == [12]
    with pytest.raises(InputError, match="units has 0 "):
        change_points(empty)
    with pytest.raises(InputError, match="units has 5 .*min_units=3"):
        change_points(nights(5))
    with pytest.raises(InputError, match="n_permutations=9"):
        change_points(group, n_permutations=9)
    with pytest.raises(InputError, match="units of type list"):
        change_points([group])


@pytest.mark.slow
def test_level_of_all_positions_together():
    found = [change_points(nights(40, seed=k), n_permutations=99, seed=k) for k in range(200)]
    assert 1 <= sum(one.p_value <= 0.05 for one in found) <= 20
    assert all(bool(one.points) == (one.p_value <= 0.05) for one in found)


@pytest.mark.filterwarnings("error")
def test_units_that_rounding_hides_are_no_change():
    rng, night = np.random.default_rng(0), np.repeat(np.arange(20), 5)
    weights = np.where(night == 5, 2.0**32, 2.0**-32)
    found = change_points(
        partial_sketch(rng.normal(size=(100, 2)), MAP, weights, groups=night), n_permutations=99
    )
    assert not found.points
    assert 0.0 < found.p_value <= 1.0


def test_a_scale_of_the_weights_is_no_change():
    rng, night = np.random.default_rng(0), np.repeat(np.arange(40), 20)
    x = rng.normal(size=(800, 2)) + 0.3 * rng.normal(size=(40, 2))[night]
    scale = np.where(night < 20, 1.0, 100.0)
    one, other = (
        change_points(partial_sketch(x, MAP, w, groups=night), n_permutations=99)
        for w in (np.ones(800), scale)
    )
    assert one.p_value == other.p_value > 0.05


def test_units_that_grow_keep_their_power():
    """Noise falls as units grow: differences of large ones stand out only beside their own."""
    night = np.repeat(np.arange(60), np.linspace(5, 100, 60).astype(int))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(night), 2)) + 0.3 * rng.normal(size=(60, 2))[night]
    still = partial_sketch(x, MAP, groups=night, dim="night")
    x[night >= 30] += 0.8
    changed = partial_sketch(x, MAP, groups=night, dim="night")
    assert not change_points(still, n_permutations=99).points
    (point,) = change_points(changed, n_permutations=99).points
    assert abs(point.position - 30) <= 2


def test_a_step_of_the_sizes_is_warned_of():
    night = np.repeat(np.arange(24), np.repeat([3, 300], [10, 14]))
    x = np.random.default_rng(0).normal(size=(len(night), 2))
    units = partial_sketch(x, MAP, groups=night, dim="night")
    with pytest.warns(UserWarning, match=r"night 10 have 3 rows, .* 300 "):
        change_points(units, n_permutations=19)


def test_a_unit_with_most_of_the_rows_is_warned_of():
    night = np.repeat(np.arange(20), np.r_[np.full(19, 5), 500])
    units = partial_sketch(np.random.default_rng(0).normal(size=(595, 2)), MAP, groups=night)
    with pytest.warns(UserWarning, match=r"19 has 84% .* level=0.05"):
        change_points(units, n_permutations=99)
