"""The walk from a store to a mixture, timed and told step by step; demo and recordings share it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dask_sketch.decoders import decode
from dask_sketch.diagnostics.watch import Watch, watch
from dask_sketch.errors import ArtifactError
from dask_sketch.features import FeatureMap
from dask_sketch.graph import Plan, design, plan, sketch
from dask_sketch.models import GaussianMixture
from dask_sketch.sketching import Sketch


def _mute(text: str) -> None:
    pass


@dataclass(frozen=True)
class Fitted:
    """What a walk came to."""

    feature_map: FeatureMap
    plan: Plan
    happened: Watch
    sketch: Sketch
    model: GaussianMixture


@dataclass
class Walk:
    """Where a walk keeps its files and how it tells of itself.

    Attributes
    ----------
    folder
        Place of data, sketch and model.
    seed
        Seed of frequencies and decoder.
    progress
        Whether to show progress on the standard error stream.
    say
        Called with each line of the story.
    seconds
        Time of each step, by name.
    """

    folder: Path
    seed: int = 0
    progress: bool = False
    say: Callable[[str], object] = _mute
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """Tell of a step and time it."""
        self.say(f"{text} ...")
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def fit(
        self,
        store: Path,
        n_components: int,
        n_frequencies: int,
        *,
        client: Any = None,
        chunk_size: int | None = None,
    ) -> Fitted:
        """Design, plan, sketch and decode; sketch and model are stored in the folder.

        Parameters
        ----------
        store
            Zarr store of features of unlike size.
        n_components, n_frequencies
            Sizes.
        client
            Client of the cluster to use; the threads of this process by default.
        chunk_size
            Bytes that one task reads.

        Returns
        -------
        fitted
        """
        with self.step("design", "designing a feature map from a few chunks"):
            feature_map = design(
                str(store), n_frequencies, n_components, seed=self.seed, chunk_size=chunk_size
            )
        deviations = np.sqrt(feature_map.mean_variances)
        self.say(f"components are about {deviations.min():.3g} to {deviations.max():.3g} wide")
        planned = plan(str(store), feature_map, chunk_size=chunk_size, calibrate=True)
        self.say(f"\nthe plan\n{planned}\n")
        with self.step("sketch", f"sketching with {n_frequencies:,} frequencies"):
            lazy = sketch(str(store), feature_map, chunk_size=chunk_size)
            with watch(client) as happened:
                summary = lazy.compute(progress=self.progress)
        summary.to_zarr(self.folder / "sketch.zarr")
        with self.step("decode", f"decoding {n_components} components by splitting, refined"):
            model = decode(
                summary,
                n_components,
                method="splitting",
                refine="efficient",
                seed=self.seed,
                progress=self.progress,
            )
        assert isinstance(model, GaussianMixture)  # which is what the method makes
        model.to_zarr(self.folder / "model.zarr")
        return Fitted(feature_map, planned, happened, summary, model)

    @property
    def fit_seconds(self) -> float:
        """Time from the store to the mixture."""
        return sum(self.seconds[name] for name in ("design", "sketch", "decode"))


@contextlib.contextmanager
def walk_folder(directory: str | Path | None, *data: str) -> Iterator[Path]:
    """The folder given, which is kept, or a fresh one, which is not.

    Parameters
    ----------
    directory
        Path, or none.
    data
        Names of the data to come, beside the sketch and the model.

    Raises
    ------
    ArtifactError
        If the folder holds something of those names.
    """
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="dask-sketch-") as fresh:
            yield Path(fresh)
        return
    folder = Path(directory)
    for name in (*data, "sketch.zarr", "model.zarr"):
        if (folder / name).exists():
            raise ArtifactError(
                f"directory={str(directory)!r} holds {name} of an earlier run: choose another one."
            )
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def bytes_of(path: str | Path) -> int:
    """Bytes of all files of a local store."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
