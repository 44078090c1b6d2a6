"""``sketch``: one pass over any input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import dask
import dask.threaded
from dask.base import DaskMethodsMixin

from dask_sketch.announcing import report_rows
from dask_sketch.errors import InputError
from dask_sketch.features import FeatureMap
from dask_sketch.graph.opening import opened
from dask_sketch.graph.tree import reduce_samples, unwrap
from dask_sketch.sketching.partial import NAN_POLICIES, partial_sketch, prepare, require_device
from dask_sketch.sketching.sketch import Sketch, merge
from dask_sketch.sources import Samples

SMALL_MAP = 1024  # bytes; a larger specification is sent as a task of its own, once for a worker


class LazySketch(DaskMethodsMixin):
    """A sketch that has not been computed: a Dask collection with one result.

    ``.compute()`` gives the :class:`Sketch`, ``.persist()`` starts it on a cluster,
    ``.visualize()`` draws the graph, and ``dask.compute(a, b)`` of two sketches of one source reads
    the source once. Only ``.compute()`` can run in batches, which it does above
    ``sketch.task-limit``; as a collection it is one graph, built when it is asked for.

    Attributes
    ----------
    samples
        The input.
    feature_map
        What is averaged.
    split_every
        Fan-in of the merges.
    nan_policy
        What is done with rows that are not finite.
    device
        Where chunks are sketched; where they lie if it is None.
    """

    _result: type = Sketch

    def __init__(
        self,
        samples: Samples,
        feature_map: FeatureMap,
        split_every: int,
        nan_policy: str,
        device: str | None = None,
        chosen: range | None = None,
    ):
        self.samples = samples
        self.feature_map = feature_map
        self.split_every = split_every
        self.nan_policy = nan_policy
        self.device = device
        self._chosen = chosen
        self.rebuilt = False  # by persist or optimize: then there is a graph already

    @cached_property
    def _inner(self) -> Any:
        return reduce_samples(
            self.samples, _sketch_chunk, merge, name="sketch", arguments=self._arguments,
            split_every=self.split_every, chosen=self._chosen,
        )  # fmt: skip

    @property
    def _arguments(self) -> dict[str, Any]:
        sent: Any = self.feature_map
        if len(sent.spec) > SMALL_MAP:
            sent = dask.delayed(sent, name=f"feature-map-{sent.digest}", traverse=False)
        return {"feature_map": sent, "nan_policy": self.nan_policy, "device": self.device}

    def part(self, chosen: range) -> LazySketch:
        """The sketch of some chunks alone, by their numbers; it may turn out to be empty."""
        return type(self)(
            self.samples, self.feature_map, self.split_every, self.nan_policy, self.device, chosen
        )

    def merge(self, parts: list[Any]) -> Any:
        """What :meth:`part` gave for different chunks, together; of no chunks, what is neutral."""
        return merge([Sketch.empty(self.feature_map), *parts])

    @property
    def complete(self) -> Callable[[Any], Any]:
        """Makes the result of what was found: in all chunks, unless this is a part."""
        return partial(_complete, feature_map=self.feature_map, label=self._whole_label)

    @property
    def prepare(self) -> Callable[[], None]:
        """Draws the frequencies and compiles, wherever chunks will be sketched."""
        return partial(prepare, self.feature_map, self.samples.dtype, self.device)

    def compute(self, *, progress: bool = False, **kwargs: Any) -> Any:
        """Run the pass.

        With more tasks than ``sketch.task-limit`` it runs in batches of
        ``sketch.batch-tasks`` chunks, each a graph of its own, and merges their sketches here. The
        bits are those of a pass in one graph.

        Parameters
        ----------
        progress
            Show a bar, in a notebook or on the standard error stream.
        kwargs
            As for ``dask.compute`` or, with a client, ``Client.compute``.

        Raises
        ------
        PlanError
            If the largest chunk cannot fit in the memory of a thread.
        InputError
            If there were no samples at all.
        ChunkError
            If a chunk cannot be read or holds refused values; the message names it.
        """
        from dask_sketch.graph.run import run

        return run(self, progress=progress, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._result, name) and not name.startswith("_"):
            raise AttributeError(
                f"this sketch is lazy and has no {name} yet: call .compute() first."
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __dask_graph__(self) -> Any:
        return self._inner.__dask_graph__()

    def __dask_keys__(self) -> Any:
        return self._inner.__dask_keys__()

    def __dask_layers__(self) -> Any:
        return self._inner.__dask_layers__()

    def __dask_tokenize__(self) -> Any:
        return (f"dask_sketch.{type(self).__name__}", self._inner.__dask_tokenize__())

    @property
    def __dask_optimize__(self) -> Any:
        return self._inner.__dask_optimize__

    # threads for bags too: the kernel releases the interpreter lock, and a bag's own default, new
    # processes, fails in a script without a main guard
    __dask_scheduler__ = staticmethod(dask.threaded.get)

    def __dask_postcompute__(self) -> Any:
        finish, arguments = self._inner.__dask_postcompute__()
        return _finish, (finish, arguments, self.complete)

    def __dask_postpersist__(self) -> Any:
        rebuild, arguments = self._inner.__dask_postpersist__()
        return _rebuild, (rebuild, arguments, self)

    @property
    def _whole_label(self) -> str | None:
        return self.samples.label if self._chosen is None else None

    def _fields(self) -> dict[str, str]:
        return {
            "source": self.samples.label,
            "chunks": f"{self.samples.n_chunks:,}",
            "state": "lazy: .compute() runs one pass",
        }

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.samples.label}: {self.samples.n_chunks:,} chunks, "
            f"{self.feature_map!r}>"
        )

    def _repr_html_(self) -> str:
        from dask_sketch.display.passes import lazy_card

        return lazy_card(
            type(self).__name__,
            self._fields(),
            "not computed yet",
            self.samples.chunk_rows,
            self.feature_map,
        )


def sketch(
    x: Any,
    feature_map: FeatureMap,
    weights: Any = None,
    *,
    groups: Any = None,
    split_every: int | None = None,
    nan_policy: str = "raise",
    device: str | None = None,
    **options: Any,
) -> Any:
    """Sketch any input in one pass, eq. (13) and section 2.7.

    Each chunk is read, checked, projected and summed by one task, in blocks of rows; the partial
    sketches are merged in a tree whose shape is fixed by the chunks, so that the result has the
    same bits however often workers are lost.

    Parameters
    ----------
    x
        Anything that :func:`open_samples` takes: (n_samples, n_features).
    feature_map
        What to average; see :func:`design`.
    weights
        Non-negative weight of each sample; an array-like or a name, see :func:`open_samples`.
    groups
        Label of the group of each sample; an array-like or a name, see :func:`open_samples`. There
        is then one sketch for each group, with the bits of a pass over its samples alone.
    split_every
        Most partial sketches that one task merges, ``>= 2``; the setting ``sketch.split-every``
        (16) by default, and for groups, whose partial sketches are large, 4.
    nan_policy
        ``"raise"`` stops at a row with NaN or infinite values and names it; ``"omit"`` leaves such
        rows out and counts them.
    device
        ``"cuda"``: every task copies its chunk to the GPU of its worker and sketches it there.
        When not given, chunks are sketched where they lie, so that a Dask array of CuPy blocks
        needs nothing. Sketches and merges are on the host in any case.
    options
        Keyword arguments of :func:`open_samples`.

    Returns
    -------
    sketch
        A :class:`Sketch` for input in memory, a :class:`LazySketch` for anything lazy; with groups
        a :class:`SketchGroup`, and for anything lazy a :class:`LazySketchGroup`.

    Raises
    ------
    InputError
        If the input cannot be opened, or has another number of features than the map.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> feature_map = FeatureMap(2, 100, scale=1.0)
    >>> sketch(x, feature_map).count
    1000
    >>> import dask.array as da
    >>> lazy = sketch(da.from_array(x, chunks=(100, 2)), feature_map)
    >>> bool(abs(lazy.compute().z - sketch(x, feature_map).z).max() < 1e-6)
    True
    >>> by_sign = sketch(x, feature_map, groups=x[:, 0] > 0)
    >>> by_sign.labels, by_sign.merged().identical(sketch(x, feature_map))
    (array([False,  True]), True)
    """
    if nan_policy not in NAN_POLICIES:
        raise InputError(f"nan_policy={nan_policy!r}: choose 'raise' or 'omit'.")
    require_device(device)
    if device is not None and groups is not None:
        raise InputError(
            f"device={device!r}: groups are summed on the processor; leave it out with groups."
        )
    samples, fan_in = opened(
        "sketch", x, feature_map, split_every, weights=weights, groups=groups, options=options
    )
    kind = LazySketch
    if samples.groups is not None:
        from dask_sketch.graph.group_pass import LazySketchGroup as kind  # a LazySketch itself
    lazy = kind(samples, feature_map, fan_in, nan_policy, device)
    if device is None:
        # compiled while the graph is built: local threads and workers of this machine find it
        # cached
        lazy.prepare()
    return lazy if samples.lazy else lazy.compute(scheduler="threads")


def _sketch_chunk(
    block: Any,
    weights: Any,
    label: str,
    feature_map: FeatureMap,
    nan_policy: str,
    device: str | None,
) -> Sketch:
    part = partial_sketch(
        block, feature_map, weights, nan_policy=nan_policy, label=label, device=device
    )
    report_rows(part.count, feature_map.n_frequencies)
    return part


def _finish(results: Any, finish: Any, arguments: Any, complete: Callable[[Any], Any]) -> Any:
    return complete(unwrap(finish(results, *arguments)))


def _complete(found: Sketch | None, feature_map: FeatureMap, label: str | None) -> Sketch:
    result: Sketch = Sketch.empty(feature_map) if found is None else found
    if label is not None:  # of all samples, not of a part
        require_samples(result.count, result.omitted, label)
    return result


def require_samples(
    count: int, omitted: int, label: str, lacking: str = "have NaN or infinite values"
) -> None:
    """Raise if a pass over ``label`` found nothing to average."""
    if count == 0:
        reason = (
            f"all of its {omitted:,} rows {lacking}"
            if omitted
            else "it has no rows (check the path, the filter and the credentials)"
        )
        raise InputError(f"{label} gave no samples: {reason}.")


def _rebuild(
    graph: Any, rebuild: Any, arguments: Any, lazy: LazySketch, *, rename: Any = None
) -> LazySketch:
    rebuilt = copy.copy(lazy)
    rebuilt._inner = rebuild(graph, *arguments, rename=rename)
    rebuilt.rebuilt = True
    return rebuilt
