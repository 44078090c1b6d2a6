"""The cost after each iteration: kept as a trace, and passed on to whoever watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from dask_sketch.display.progress import progress_bar

Progress = Callable[[int, int, float], None]


@contextlib.contextmanager
def watched(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What to call with done, total and cost: what was given, or a bar for ``True``."""
    if not isinstance(progress, bool):
        yield progress
        return
    with progress_bar(progress) as show:
        yield lambda done, total, cost: show(done, total, f"decoded, cost {cost:.3e}")


class Reporter:
    """What decoders call with the cost after each iteration.

    Parameters
    ----------
    progress
        Called as ``progress(done, total, cost)``, if there is anyone to call.
    total
        Number of iterations to come, at most.

    Attributes
    ----------
    trace
        Costs since the last :meth:`begin`.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.trace: list[float] = []
        self._progress, self._total, self._done = progress, total, 0

    def begin(self) -> None:
        """A new trace, for the next replicate."""
        self.trace = []

    def __call__(self, cost: float) -> None:
        """Take note of a cost."""
        self.trace.append(cost)
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total, cost)
