"""Show progress bars in terminals and notebooks."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Show = Callable[[int, int, str], None]  # arguments: number done, number in all, description


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML and figures.

    Examples
    --------
    >>> in_notebook()
    False
    """
    # a notebook has imported IPython, so that the check need not import it
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def progress_bar(enabled: bool | Show) -> Iterator[Show]:
    """Show the progress of a computation until the context ends; the last state stays visible.

    Parameters
    ----------
    enabled
        Whether to show a bar; or a function that shows the progress in its place.

    Yields
    ------
    show
        Function to be called as ``show(done, total, description)``, as often as convenient.

    Examples
    --------
    >>> with progress_bar(False) as show:
    ...     show(1, 10, "chunks")
    """
    if callable(enabled):
        yield enabled
        return
    if not enabled:
        yield lambda done, total, description: None
        return
    bar: Any = None

    def show(done: int, total: int, description: str) -> None:
        nonlocal bar
        if bar is None:
            bar = _bar_type()(total=total, desc=description, file=sys.stderr, dynamic_ncols=True)
        bar.total = total
        bar.set_description_str(description, refresh=False)
        bar.update(done - bar.n)

    try:
        yield show
        if bar is not None:  # the total may have been an overestimate
            bar.total = bar.n = max(bar.n, 1)
            bar.refresh()
    finally:
        if bar is not None:
            bar.close()


def _bar_type() -> Any:
    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        # tqdm falls back to text in a notebook without widgets, and warns
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.auto import tqdm
    return tqdm
