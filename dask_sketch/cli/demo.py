"""Demonstration of all steps on simulated data: speech-like frames to a mixture and a report.

The :class:`Pipeline` from a store to a mixture is shared with the benchmark on recordings.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray

from dask_sketch.cluster.connect import connect
from dask_sketch.cluster.dashboard import address
from dask_sketch.cluster.settings import ClusterSettings
from dask_sketch.decoders.decode import decode
from dask_sketch.diagnostics.comparison import Comparison, Contender, fit_reference, require_extras
from dask_sketch.diagnostics.report import write_report
from dask_sketch.errors import ArtifactError
from dask_sketch.features.design import default_n_frequencies
from dask_sketch.features.feature_map import FeatureMap
from dask_sketch.graph.compute import compute_together
from dask_sketch.graph.design import design
from dask_sketch.graph.plan import Plan, plan
from dask_sketch.graph.sketch import sketch
from dask_sketch.graph.telemetry import TaskStatistics, task_statistics
from dask_sketch.models.gaussian_mixture import GaussianMixture
from dask_sketch.models.simulation import random_mixture
from dask_sketch.sketching.partial import partial_sketch
from dask_sketch.sketching.sketch import Sketch
from dask_sketch.storage.overwrite import resolve_parents

if TYPE_CHECKING:
    from distributed import Client

N_COMPONENTS = 64
N_FEATURES = 12
CHUNK_FRAMES = 62_500  # 3 MB in float32
N_HELDOUT = 100_000
N_REFERENCE = 100_000  # frames for scikit-learn, which takes minutes for more
N_SHOWN = 20_000  # frames in the figures of the report
NAMES = tuple(f"c{k}" for k in range(1, N_FEATURES + 1))
_HELDOUT_KEY = 2**31  # key of the random stream of held-out frames; keys of chunks are smaller


@dataclass(frozen=True)
class Fitted:
    """Results of a pipeline.

    Attributes
    ----------
    feature_map, plan, sketch, model
        Results of its steps.
    observed
        Statistics of the tasks of the pass.
    """

    feature_map: FeatureMap
    plan: Plan
    observed: TaskStatistics
    sketch: Sketch
    model: GaussianMixture


@dataclass
class Pipeline:
    """Steps from a Zarr store to a mixture, with the time that each took.

    Attributes
    ----------
    folder
        Folder of data, sketch and model.
    seed
        Seed of frequencies and decoder.
    progress
        Whether to show progress on the standard error stream.
    log
        Function that is called with each line of the log.
    seconds
        Time of each step in seconds, by name.
    """

    folder: Path
    seed: int = 0
    progress: bool = False
    log: Callable[[str], object] = lambda text: None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """Log a step and measure its time."""
        self.log(f"{text} ...")
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def fit(
        self,
        store: Path,
        n_components: int,
        n_frequencies: int,
        *,
        client: Client | None = None,
        chunk_size: int | None = None,
        is_mixture: bool = False,
    ) -> Fitted:
        """Design, plan, sketch and decode, and store sketch and model in the folder.

        Parameters
        ----------
        store
            Zarr store of features of different scales.
        n_components
            Number of components of the mixture.
        n_frequencies
            Number of frequencies of the feature map.
        client
            Client of the cluster to use; the threads of this process by default.
        chunk_size
            Number of bytes that one task reads.
        is_mixture
            Whether the data is known to be a mixture of Gaussians, for which sums suffice.

        Returns
        -------
        fitted
            Feature map, plan, sketch and mixture.
        """
        with self.step("design", "designing a feature map from a few chunks"):
            feature_map = design(
                str(store),
                n_frequencies=n_frequencies,
                n_components=n_components,
                seed=self.seed,
                chunk_size=chunk_size,
            )
        deviations = np.sqrt(feature_map.mean_variances)
        self.log(f"components are about {deviations.min():.3g} to {deviations.max():.3g} wide")
        planned = plan(str(store), feature_map, chunk_size=chunk_size, calibrate=True)
        self.log(f"\nthe plan\n{planned}\n")
        with self.step("sketch", f"sketching with {n_frequencies:,} frequencies"):
            lazy = sketch(str(store), feature_map, chunk_size=chunk_size, sample=not is_mixture)
            with task_statistics(client) as observed:
                summary = lazy.compute(progress=self.progress)
        summary.to_zarr(self.folder / "sketch.zarr")
        method = "by splitting, refined" if is_mixture else "by maximum likelihood"
        with self.step("decode", f"decoding {n_components} components {method}"):
            model = decode(
                summary,
                n_components,
                method="splitting" if is_mixture else None,
                refine="efficient" if is_mixture else None,
                seed=self.seed,
                progress=self.progress,
            )
        assert isinstance(model, GaussianMixture)  # no method here decodes centroids by default
        model.to_zarr(self.folder / "model.zarr")
        return Fitted(feature_map, planned, observed, summary, model)

    @property
    def fit_seconds(self) -> float:
        """Time from the store to the mixture, in seconds."""
        return sum(self.seconds[name] for name in ("design", "sketch", "decode"))


@contextlib.contextmanager
def working_folder(directory: str | Path | None, *data: str) -> Iterator[Path]:
    """Provide a folder for the files of a pipeline.

    Parameters
    ----------
    directory
        Path of a folder to keep; by default a temporary folder.
    data
        Names of the data that will be written beside the sketch and the model.

    Raises
    ------
    ArtifactError
        If the folder holds files with these names.
    """
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="dask-sketch-") as fresh:
            yield Path(fresh)
        return
    folder = resolve_parents(Path(directory))
    for name in (*data, "sketch.zarr", "model.zarr"):
        if (folder / name).exists():
            raise ArtifactError(
                f"directory={str(directory)!r} holds {name} of an earlier run: choose another."
            )
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def bytes_of(path: str | Path) -> int:
    """Count the bytes of all files of a local store."""
    return sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())


def speech_like_mixture(n_components: int, seed: int = 0) -> GaussianMixture:
    """Simulate a mixture whose features have the different scales of cepstral coefficients.

    Parameters
    ----------
    n_components
        Number of components.
    seed
        Seed of the simulation.

    Returns
    -------
    mixture
        Mixture of 12 features, the first five times as wide as the last. The weights differ by a
        factor of about three, and the components are nearer to each other than the components of
        :func:`random_mixture`.

    Examples
    --------
    >>> mixture = speech_like_mixture(64)
    >>> mixture.means.shape
    (64, 12)
    """
    plain = random_mixture(n_components, N_FEATURES, seed=seed)
    rng = np.random.default_rng((seed, n_components))
    size = 25.0 / np.arange(1, N_FEATURES + 1) ** 0.65  # dB
    offset = rng.normal(scale=2.0, size=N_FEATURES) * size
    return GaussianMixture(
        weights=rng.dirichlet(np.full(n_components, 20.0)),
        means=0.8 * plain.means * size + offset,
        covariances=plain.covariances * size**2,
    )


def write_frames(path: str | Path, mixture: GaussianMixture, n_frames: int, seed: int = 0) -> Any:
    """Lazily write samples of a mixture to a Zarr array, chunk by chunk.

    Every chunk is sampled and written by one task, with a seed of its own. The data therefore
    depends neither on the scheduler nor on the order, and is never in memory as a whole.

    Parameters
    ----------
    path
        Path of the Zarr array.
    mixture
        Mixture to sample from.
    n_frames
        Number of rows.
    seed
        Seed of all chunks.

    Returns
    -------
    written : dask.delayed.Delayed
        Lazy object whose ``compute`` writes.
    """
    frames = da.map_blocks(
        _sample_chunk,
        chunks=(da.core.normalize_chunks(CHUNK_FRAMES, (n_frames,))[0], (mixture.n_features,)),
        dtype=np.float32,
        meta=np.empty((0, 0), dtype=np.float32),
        token="frames",
        mixture=mixture,
        seed=seed,
    )
    target: Any = zarr.create_array(
        str(path),
        shape=frames.shape,
        chunks=(CHUNK_FRAMES, mixture.n_features),
        dtype=np.float32,
        attributes={"meaning": "frames of a known mixture of Gaussians, in dB"},
    )
    return da.store(frames, target, lock=False, compute=False)


def _sample_chunk(mixture: GaussianMixture, seed: int, block_info: Any = None) -> NDArray[Any]:
    block = block_info[None]
    return sample_frames(mixture, block["chunk-shape"][0], (seed, block["chunk-location"][0]))


def sample_frames(
    mixture: GaussianMixture, n_frames: int, key: tuple[int, int]
) -> NDArray[np.float32]:
    """Sample frames with the random stream ``key``, shape (n_frames, n_features), float32."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return mixture.sample(n_frames, seed=seed).astype(np.float32)


def run_demo(
    *,
    directory: str | Path | None = None,
    report: str | Path = ".demo/report.html",
    n_frames: int = 2_000_000,
    n_components: int = N_COMPONENTS,
    n_frequencies: int | None = None,
    seed: int = 0,
    progress: bool = False,
    log: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Simulate data, plan, sketch, decode, compare with scikit-learn, and write a report.

    Parameters
    ----------
    directory
        Folder in which data, sketch and model are kept; by default they are deleted at the end.
    report
        Path of the report.
    n_frames
        Number of frames of the data.
    n_components
        Number of components of the mixture.
    n_frequencies
        Number of frequencies of the feature map; ``5 (2 d + 1) K`` by default.
    seed
        Seed of data, frequencies and decoder.
    progress
        Whether to show progress on the standard error stream.
    log
        Function that is called with each line of the log.

    Returns
    -------
    comparison
        Comparison of the true mixture, the decoded one and scikit-learn's on held-out frames.

    Raises
    ------
    InputError
        If scikit-learn or matplotlib is missing.
    ArtifactError
        If ``directory`` holds data of an earlier run.
    """
    require_extras()
    m = n_frequencies or default_n_frequencies(N_FEATURES, n_components)
    truth = speech_like_mixture(n_components, seed)
    here = ClusterSettings("local")
    with working_folder(directory, "frames.zarr") as folder, connect(here) as client:
        pipeline = Pipeline(folder, seed, progress, log)
        log(f"dashboard: {address(client)}")
        store = folder / "frames.zarr"
        with pipeline.step("write data", f"writing {n_frames:,} frames to {store}"):
            compute_together(
                [write_frames(store, truth, n_frames, seed)], client, progress, "write"
            )
        one_chunk = CHUNK_FRAMES * N_FEATURES * 4  # a task for each stored chunk
        fitted = pipeline.fit(
            store, n_components, m, client=client, chunk_size=one_chunk, is_mixture=True
        )
        heldout = sample_frames(truth, N_HELDOUT, (seed, _HELDOUT_KEY))
        # the rows are independent, so the first ones are a random sample
        some = da.from_zarr(str(store))[: min(N_REFERENCE, n_frames)].compute()
        with pipeline.step("scikit-learn", f"fitting scikit-learn to {len(some):,} of the frames"):
            reference, seconds, n_iter = fit_reference(some, n_components, seed)
        with pipeline.step("score", f"scoring on {N_HELDOUT:,} fresh frames"):
            contenders = (
                Contender("the truth", truth.score(heldout), None, "generated the data"),
                Contender(
                    "ours",
                    fitted.model.score(heldout),
                    pipeline.fit_seconds,
                    f"one pass over {fitted.sketch.count:,} frames, then the sketch alone",
                ),
                Contender(
                    "scikit-learn",
                    reference.score(heldout),
                    seconds,
                    f"{n_iter} passes over {len(some):,} frames in memory",
                ),
            )
        comparison = Comparison(
            contenders=contenders,
            n_heldout=N_HELDOUT,
            store_bytes=bytes_of(store),
            sketch_bytes=bytes_of(folder / "sketch.zarr"),
            seconds=pipeline.seconds,
            report=str(report),
        )
        with pipeline.step("report", "writing the report"):
            write_report(
                report,
                fitted.sketch,
                fitted.model,
                title=f"{n_frames:,} speech-like frames to {n_components} Gaussians",
                source={
                    "source": f"a known mixture of {n_components} Gaussians, seed {seed}",
                    "store": "Zarr, float32, one task for each stored chunk",
                    "features": N_FEATURES,
                },
                feature_map=fitted.feature_map,
                plan=fitted.plan,
                observed=fitted.observed,
                comparison=comparison,
                heldout=partial_sketch(heldout, fitted.feature_map),
                sample=heldout[:N_SHOWN],
                names=NAMES,
                command=_command(directory, report, n_frames, n_components, n_frequencies, seed),
            )
        log("")
    return comparison


def _command(
    directory: str | Path | None,
    report: str | Path,
    n_frames: int,
    n_components: int,
    n_frequencies: int | None,
    seed: int,
) -> str:
    """Command line that repeats a demonstration."""
    words = ["dask-sketch", "demo", "--n-frames", str(n_frames), "--seed", str(seed)]
    words += ["--report", str(report)]
    words += [] if directory is None else ["--directory", str(directory)]
    words += [] if n_components == N_COMPONENTS else ["--n-components", str(n_components)]
    words += [] if n_frequencies is None else ["--n-frequencies", str(n_frequencies)]
    return shlex.join(words)
