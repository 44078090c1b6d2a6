"""Fits to the real data sets: every method on every split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from numpy.typing import NDArray

from tests.benchmarks.real.cells import Cell
from tests.benchmarks.real.methods import METHODS, Fit, fit, polish_available
from tests.benchmarks.real.sets import SETS, Missing, loaded, split

MIN_ROWS = 50  # training rows for each component, below which a fit is skipped


def real_cells(
    names: Sequence[str],
    folder: Path | None,
    sizes: Sequence[int],
    n_splits: int,
    methods: Sequence[str],
    max_rows: int | None,
    say: Callable[[str], object] = print,
) -> Iterator[Cell]:
    """Cells of the named data sets; one that is not on this machine is skipped, with the reason.

    Parameters
    ----------
    names
        Names of the data sets.
    folder
        Folder of shared data.
    sizes
        Numbers of components.
    n_splits
        Number of random splits.
    methods
        Names of the methods.
    max_rows
        Number of rows of each split at most, training and held-out rows together.
    say
        Function that receives a line for each skipped set.
    """
    for name in names:

        @cache
        def rows(name: str = name) -> NDArray:
            return loaded(SETS[name], folder)

        try:
            n_train = 0.8 * min(len(rows()), max_rows or len(rows()))
        except Missing as reason:
            say(f"{name}: skipped ({reason})")
            continue
        for seed in range(n_splits):
            parts = cache(lambda rows=rows, seed=seed: split(rows(), seed, max_rows))
            for n_components in sizes:
                if n_train < MIN_ROWS * n_components:
                    say(f"{name}, K={n_components}: skipped ({n_train:.0f} training rows)")
                    continue
                for method in methods:
                    if method == "polish" and not polish_available():
                        continue
                    yield Cell(
                        "real", name, n_components, seed, method,
                        partial(_fit, parts, n_components, seed, method), max_rows,
                        METHODS[method].depends,
                    )  # fmt: skip


def _fit(parts: Callable[[], tuple], n_components: int, seed: int, method: str) -> Fit:
    train, test = parts()
    return fit(METHODS[method], train, test, n_components, seed)
