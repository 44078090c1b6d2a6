"""Models of the windows of a ledger, as a table and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_sketch.decoders.decode import decode
from dask_sketch.decoders.names import TRANSFORMS
from dask_sketch.diagnostics.drift import component_changes
from dask_sketch.display.html import card, html_table
from dask_sketch.display.plots import HistoryPlots
from dask_sketch.display.text import fields_text, text_table
from dask_sketch.errors import LedgerError
from dask_sketch.jobs.ledger.ledger import open_ledger
from dask_sketch.jobs.ledger.reader import LedgerReader
from dask_sketch.jobs.ledger.sums import require_sketches
from dask_sketch.jobs.ledger.windows import RunTotals, Window, start_times, window_keys
from dask_sketch.models.centroids import Centroids
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.validation.arrays import require_integer
from dask_sketch.validation.warn import collect_warnings, warn_user

if TYPE_CHECKING:
    import os


Model = GaussianMixture | Centroids
Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class ModelHistory:
    """Models of windows that end at successive runs, component by component.

    Components of one window are matched to components of the window before, by the assignment with
    the smallest sum of distances of the means in standard deviations (Kuhn 1955). A component
    without a match begins a new track.

    Attributes
    ----------
    runs
        Number of the last run of each window.
    dates
        Date of the start of each of these runs; empty if it is unknown.
    models
        Model of each window.
    tracks
        Number of the track of each component, for each model.
    names
        Names of the features; None if they have none.
    """

    runs: tuple[int, ...]
    dates: tuple[str, ...]
    models: tuple[Model, ...]
    tracks: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] | None = None

    @property
    def weights(self) -> Array:
        """Weights by track, shape (n_windows, n_tracks); NaN where there is no such component."""
        return self._by_track([model.weights for model in self.models])

    @property
    def means(self) -> Array:
        """Means, or centroids, by track, shape (n_windows, n_tracks, n_features)."""
        return self._by_track([_means(model) for model in self.models])

    def _by_track(self, values: list[Array]) -> Array:
        n_tracks = 1 + max(max(tracks) for tracks in self.tracks)
        out = np.full((len(values), n_tracks, *values[0].shape[1:]), np.nan)
        for row, tracks, value in zip(out, self.tracks, values, strict=True):
            row[list(tracks)] = value
        return out

    @property
    def plot(self) -> HistoryPlots:
        """Plots (extra ``plot``): ``history.plot.weights()`` and ``history.plot.means(0)``."""
        return HistoryPlots(self.runs, self.weights, self.means, self.names)

    def __len__(self) -> int:
        return len(self.runs)

    def _fields(self) -> dict[str, str]:
        return {
            "windows": f"{len(self):,}",
            "runs": f"{self.runs[0]} to {self.runs[-1]}",
            "components": f"{self.models[-1].n_components} in the last window",
            "tracks": f"{self.weights.shape[1]}",
        }

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (str(run), date, *("" if np.isnan(w) else f"{w:.3f}" for w in weights))
            for run, date, weights in zip(self.runs, self.dates, self.weights, strict=True)
        ]

    def _header(self) -> tuple[str, ...]:
        return ("run", "date", *(f"weight {k}" for k in range(self.weights.shape[1])))

    def __repr__(self) -> str:
        table = text_table(self._rows(), header=self._header())
        return "\n\n".join([fields_text(self._fields()), table])

    def _repr_html_(self) -> str:
        table = html_table(self._header(), self._rows())
        return card("ModelHistory", self._fields(), below=table)


def model_history(
    ledger: LedgerReader | str | os.PathLike[str],
    n_components: int,
    *,
    window: Window = 7,
    max_windows: int = 60,
    **options: Any,
) -> ModelHistory:
    """Decode a model of each window of a ledger, and match their components.

    The first model is decoded from scratch, and each later model starts at the model before it
    (warm start). Sums of runs stay in memory, so that a window reads only the partitions of its
    last run. Random rows are left out. A partition belongs to the last run that has read it.

    Parameters
    ----------
    ledger
        Ledger of a job, or its path.
    n_components
        Number of components, ``>= 1``.
    window
        Length of the windows: a number of runs, or a span of time such as ``"30 days"``, as in
        ``ledger.window``.
    max_windows
        Maximum number of windows, the newest ones, ``>= 1``.
    options
        Keyword arguments of :func:`dask_sketch.decode`; ``start`` is used for the first model only.

    Returns
    -------
    history
        Models with their components in matched order.

    Raises
    ------
    LedgerError
        If there is no ledger, it holds no partitions, an argument is out of range, or the models
        are neither Gaussian mixtures nor centroids.

    References
    ----------
    Kuhn (1955), The Hungarian method for the assignment problem.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dask_sketch import FeatureMap, partial_sketch
    >>> from dask_sketch.jobs.ledger import Partition, RunRecord, create_ledger
    >>> feature_map = FeatureMap(1, 50, scale=1.0)
    >>> ledger = create_ledger(tempfile.mkdtemp() + "/ledger.zarr", feature_map)
    >>> rng = np.random.default_rng(0)
    >>> for run in (1, 2, 3):  # as a job does: 9 rows of 10 are near zero, later fewer
    ...     x = rng.normal(size=(4000, 1)) + 9.0 * (rng.random((4000, 1)) < 0.1 * run)
    ...     added = [(Partition(f"night {run}", "", 4000, 32000), partial_sketch(x, feature_map))]
    ...     day = f"2026-06-{run:02d}T03:00:00+00:00"
    ...     with ledger.lock():
    ...         ledger.commit(added=added, run=RunRecord(run, day, day, "done"))
    >>> history = model_history(ledger, 2, window=1)
    >>> history.weights.round(1)
    array([[0.9, 0.1],
           [0.8, 0.2],
           [0.7, 0.3]])
    """
    max_windows = require_integer("max_windows", max_windows, 1, LedgerError)
    opened = ledger if isinstance(ledger, LedgerReader) else open_ledger(ledger)
    feature_map = require_sketches(opened.feature_map, "model_history", opened.label)
    if options.get("model") in TRANSFORMS or feature_map.categories is not None:
        raise LedgerError(
            f"model={options.get('model')!r} of {opened.label}: components of Gaussian mixtures "
            "and of centroids are followed, without categories; choose one of these models.",
            parameter="model",
        )
    entries, records = opened.entries, opened.history()
    runs = sorted({entry.run for entry in entries.values()})[-max_windows:]
    if not runs:
        raise LedgerError(f"{opened.label} holds no partitions: run the job first.")
    totals = RunTotals(lambda keys, sample: opened.total(keys, sample=sample))
    started = start_times(records)
    models: list[Model] = []
    tracks: list[tuple[int, ...]] = []
    for run in runs:
        past = {key: entry for key, entry in entries.items() if entry.run <= run}
        keys = window_keys(past, records, window, "window")
        sketch = totals.merged(past, keys, sample=False)
        assert isinstance(sketch, Sketch)  # totals of a feature map are sketches
        if models:
            options["start"] = models[-1]
        with collect_warnings() as collected:
            model = decode(sketch, n_components, **options)
        for warning in collected:
            warn_user(f"window that ends with run {run}: {warning}", type(warning))
        assert isinstance(model, (GaussianMixture, Centroids))
        tracks.append(_tracks(models[-1], tracks, model, sketch) if models else _first(model))
        models.append(model)
    dates = tuple(started[run].date().isoformat() if run in started else "" for run in runs)
    names = feature_map.feature_names
    return ModelHistory(tuple(runs), dates, tuple(models), tuple(tracks), names)


def _first(model: Model) -> tuple[int, ...]:
    """Tracks of the first model, in descending order of the weights of its components."""
    ranks = np.empty(model.n_components, np.intp)
    ranks[np.argsort(-model.weights, kind="stable")] = np.arange(model.n_components)
    return tuple(map(int, ranks))


def _tracks(
    before: Model, earlier: list[tuple[int, ...]], model: Model, sketch: Sketch
) -> tuple[int, ...]:
    """Tracks of the components of a model: the tracks of their matches, or new ones."""
    fresh = 1 + max(max(tracks) for tracks in earlier)
    matched = []
    for change in component_changes(before, model, sketch)[: model.n_components]:
        matched.append(earlier[-1][change.earlier] if change.earlier >= 0 else fresh)
        fresh += change.earlier < 0
    return tuple(matched)


def _means(model: Model) -> Array:
    return model.means if isinstance(model, GaussianMixture) else model.centers
