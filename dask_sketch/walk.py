"""The walk from a store to a mixture, timed and told step by step; demo and recordings share it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dask_sketch.decoders import decode
from dask_sketch.diagnostics.watch import Watch, watch
from dask_sketch.errors import ArtifactError
from dask_sketch.features import FeatureMap
from dask_sketch.graph import Plan, design, plan, sketch
from dask_sketch.models import GaussianMixture
from dask_sketch.sketching import Sketch
from dask_sketch.terminal import decoding_progress

# Where many components overlap, the estimated scale lies nearer to that of all the data than to
# theirs. On 64 speech-like components this share of it ends 0.03 to 0.09 nats per frame below the
# truth, the whole of it 0.1 to 0.2; on FSDD it gains 0.1.
_SCALE_SHARE = 0.65


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
        replicates: int = 1,
        variance_floor: float | None = None,
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
        replicates, variance_floor
            As for :func:`dask_sketch.decode`.
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
                str(store),
                n_frequencies,
                n_components,
                whitening="diagonal",  # one scale fits all features once each has its own unit
                seed=self.seed,
                chunk_size=chunk_size,
            )
            assert feature_map.scale is not None  # estimated
            feature_map = replace(feature_map, scale=round(_SCALE_SHARE * feature_map.scale, 4))
        self.say(
            f"scale {feature_map.scale:.3g} of a feature's deviation: {_SCALE_SHARE} of the "
            "estimate, which overlapping components bias upward"
        )
        planned = plan(str(store), feature_map, chunk_size=chunk_size)
        self.say(f"\nthe plan\n{planned}\n")
        with self.step("sketch", f"sketching with {n_frequencies:,} frequencies"):
            lazy = sketch(str(store), feature_map, chunk_size=chunk_size)
            with watch(client) as happened:
                summary = lazy.compute(progress=self.progress)
        summary.to_zarr(self.folder / "sketch.zarr")
        floor: dict[str, Any] = {}
        if variance_floor is not None:
            floor["variance_floor"] = variance_floor
        with self.step("decode", f"decoding {n_components} components by splitting"):
            model = decode(
                summary,
                n_components,
                method="splitting",
                seed=self.seed,
                replicates=replicates,
                progress=decoding_progress(self.progress),
                **floor,
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
