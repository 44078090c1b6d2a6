"""False alarms and delays of tests of drift over years of nights: ``make distributions``.

Each night has one sketch. Three clusters move from night to night by an autoregressive offset, with
weekends or seasons. Every night the last ones are compared with those of a year before, at the
level of one false alarm a year: by permuted nights, by shifts of the two sides (``serial=True``),
and by NEWMA (Keriven, Garreau, Poli 2020), whose averages here run over the sketches of nights and
whose threshold is the largest value of the year before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np
from numpy.typing import NDArray

from dask_sketch import design, partial_sketch
from dask_sketch.display.text import text_table
from dask_sketch.distributions import compare
from dask_sketch.sketching.group import SketchGroup

Array = NDArray[np.float64]
YEAR, WINDOW, REFERENCE = 365, 14, 380
LEVEL = 1.0 / YEAR
N_ROWS = 60
FORGETTING = (2.0 / 8.0, 2.0 / 61.0)  # of the averages of NEWMA: about 7 and 60 nights
CENTERS = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])


@dataclass(frozen=True)
class Nights:
    """Data of many nights.

    Attributes
    ----------
    correlation
        Autocorrelation of the offsets of successive nights, in [0, 1).
    weekend, season
        Shift of the first feature at weekends, and amplitude of the season in the second one, in
        standard deviations of a cluster.
    change
        Size of the change, and number of nights that it takes.
    """

    correlation: float = 0.0
    weekend: float = 0.0
    season: float = 0.0
    change: tuple[float, int] = (0.0, 1)
    offset: float = 0.1

    def draw(self, rng: np.random.Generator, n: int, changed: int) -> Array:
        """Rows of ``n`` nights, shape (n, N_ROWS, 2), which change from night ``changed`` on."""
        night = np.arange(n)
        offset = self.offset * rng.normal(size=(n, 2))
        for t in range(1, n):
            new = np.sqrt(1.0 - self.correlation**2) * offset[t]
            offset[t] = self.correlation * offset[t - 1] + new
        offset[:, 0] += self.weekend * (night % 7 >= 5)
        offset[:, 1] += self.season * np.sin(2.0 * np.pi * night / 365.25)
        size, length = self.change
        offset[:, 0] += size * np.clip((night - changed + 1) / length, 0.0, 1.0)
        clusters = CENTERS[rng.integers(0, len(CENTERS), (n, N_ROWS))]
        return np.asarray(clusters + rng.normal(size=clusters.shape) + offset[:, None, :])


def sketches(data: Array) -> SketchGroup:
    """Sketch of each night, by a map of the first month."""
    feature_map = design(data[:30].reshape(-1, 2), n_components=3, seed=0)
    night = np.repeat(np.arange(len(data)), N_ROWS)
    return partial_sketch(data.reshape(-1, 2), feature_map, groups=night, dim="night")


def newma(nights: SketchGroup) -> NDArray[np.bool_]:
    """Alarms of NEWMA, one for each night."""
    vectors = np.array([nights[label].z for label in nights.labels])
    fast = slow = vectors[0]
    distance = np.empty(len(vectors))
    for t, vector in enumerate(vectors):
        fast = (1.0 - FORGETTING[0]) * fast + FORGETTING[0] * vector
        slow = (1.0 - FORGETTING[1]) * slow + FORGETTING[1] * vector
        distance[t] = np.linalg.norm(fast - slow)
    return np.array(
        [t >= YEAR and value > distance[t - YEAR : t].max() for t, value in enumerate(distance)]
    )


def tested(nights: SketchGroup, *, serial: bool) -> Iterator[bool]:
    """Alarms of the test, for each night from that on that has enough nights before it."""
    for end in range(WINDOW + REFERENCE, len(nights) + 1):
        place = np.arange(len(nights))
        newest = nights.select((place >= end - WINDOW) & (place < end))
        before = nights.select((place >= end - WINDOW - REFERENCE) & (place < end - WINDOW))
        weekdays = np.concatenate([newest.labels, before.labels]) % 7
        found = compare(newest, before, strata=weekdays, serial=serial, level=LEVEL, seed=0)
        yield found.is_different


def alarms(data: Array, method: str) -> NDArray[np.bool_]:
    """Alarms of a method, one for each night after those that all need before."""
    nights = sketches(data)
    if method == "NEWMA":
        return newma(nights)[WINDOW + REFERENCE - 1 :]
    return np.fromiter(tested(nights, serial=method == "shifts"), dtype=bool)


STILL = {
    "independent nights": Nights(),
    "weekends 0.5 apart": Nights(weekend=0.5),
    "AR(1) nights (0.5)": Nights(correlation=0.5),
    "AR(1) nights (0.8)": Nights(correlation=0.8),
    "AR(1) nights (0.5), weekends 0.5 apart, season of 0.3": Nights(0.5, 0.5, 0.3),
}
CHANGES = {
    "sudden change of 0.3": Nights(0.5, 0.5, change=(0.3, 1)),
    "change of 0.3 in 60 nights": Nights(0.5, 0.5, change=(0.3, 60)),
}
METHODS = ("permutations", "shifts", "NEWMA")


def false_alarms(case: Nights, method: str, years: int) -> str:
    """Nights with an alarm a year, and number of times that alarms begin."""
    rng = np.random.default_rng(0)
    n = WINDOW + REFERENCE - 1 + years * YEAR
    found = alarms(case.draw(rng, n, n), method)
    begins = found & ~np.concatenate([[False], found[:-1]])
    return f"{found.sum() / years:.2f} ({begins.sum() / years:.2f})"


def delay(case: Nights, method: str, repeats: int, horizon: int = 90) -> str:
    """Median number of nights until the first alarm, and share of draws with one."""
    first = []
    for seed in range(repeats):
        before = WINDOW + REFERENCE - 1
        data = case.draw(np.random.default_rng(seed), before + horizon, before)
        found = np.flatnonzero(alarms(data, method))
        first.append(found[0] + 1 if len(found) else np.inf)
    shown = np.median(first)
    return f"{shown:.0f} ({np.isfinite(first).mean():.0%})"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--years", type=int, default=20, help="simulated years")
    parser.add_argument("--repeats", type=int, default=20, help="draws of each change")
    options = parser.parse_args()
    rows = []
    for name, case in STILL.items():
        rows.append((name, *(false_alarms(case, one, options.years) for one in METHODS)))
        click.echo(", ".join(rows[-1]), err=True)
    click.echo(text_table(rows, header=("nights with an alarm a year (episodes)", *METHODS)))
    rows = []
    for name, case in CHANGES.items():
        rows.append((name, *(delay(case, one, options.repeats) for one in METHODS)))
        click.echo(", ".join(rows[-1]), err=True)
    click.echo(text_table(rows, header=("nights until an alarm (found)", *METHODS)))


if __name__ == "__main__":
    main()
