"""One bar for all that takes long: beneath the cell of a notebook, else on the standard error."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from dask_sketch.display.drawing import BLUE

# Whether somebody looks on in a notebook.


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML and figures.

    Examples
    --------
    >>> in_notebook()
    False
    """
    # nobody can be in a notebook without IPython, which therefore need not be imported to tell
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


REDRAW = 0.1  # seconds for which a bar is left as it is
_SIGNS = 40  # of a bar in a terminal, at most
_AROUND = 11  # letters beside these and the words, and one that stays free
Show = Callable[[int, int, str], None]  # done, in all, and what to say of it


@contextlib.contextmanager
def progress_bar(enabled: bool) -> Iterator[Show]:
    """Show how far something is, until the context ends; its last state stays.

    Parameters
    ----------
    enabled
        Whether there is anything to show.

    Returns
    -------
    show
        To be called as ``show(done, total, words)`` as often as one likes.

    Examples
    --------
    >>> with progress_bar(False) as show:
    ...     show(1, 10, "chunks")
    """
    if not enabled:
        yield lambda done, total, words: None
        return
    draw, end = _in_notebook() if in_notebook() else _in_terminal()
    start = time.monotonic()
    drawn, last = start - REDRAW, (0, 0, "")

    def put() -> None:
        done, total, words = last
        share = min(done / total, 1.0) if total > 0 else 0.0
        draw(share, f"{words}, {time.monotonic() - start:,.0f} s")

    def show(done: int, total: int, words: str) -> None:
        nonlocal drawn, last
        last = done, total, words
        if time.monotonic() >= drawn + REDRAW:
            drawn = time.monotonic()
            put()

    try:
        yield show
        last = (1, 1, last[2])  # there may be less to do than was thought
    finally:
        if last[2]:
            put()
            end()


def _in_terminal() -> tuple[Callable[[float, str], None], Callable[[], None]]:
    stream, width = sys.stderr, 0

    def draw(share: float, words: str) -> None:
        nonlocal width
        # a line that is too long for its window cannot be drawn over
        room = shutil.get_terminal_size().columns - len(words) - _AROUND
        signs = max(min(room, _SIGNS), 0)
        line = f"[{('#' * int(signs * share)).ljust(signs)}] | {share:4.0%} {words}"
        stream.write(f"\r{line.ljust(width)}")  # over what is left of a longer line
        width = len(line)
        stream.flush()

    def end() -> None:
        stream.write("\n")
        stream.flush()

    return draw, end


def _in_notebook() -> tuple[Callable[[float, str], None], Callable[[], None]]:
    from IPython.display import HTML, display

    shown: Any = None

    def draw(share: float, words: str) -> None:
        nonlocal shown
        page = HTML(bar_html(share, words))
        if shown is None:
            shown = display(page, display_id=True)
        else:
            shown.update(page)

    return draw, lambda: None


def bar_html(share: float, words: str) -> str:
    """A bar, filled up to a share, and words beneath it.

    Examples
    --------
    >>> "width:50%" in bar_html(0.5, "half of it")
    True
    """
    around = "max-width:30em;height:8px;border:1px solid currentColor;border-radius:4px"
    return (
        f'<div role="progressbar" aria-valuenow="{share:.0%}" style="{around}">'
        f'<div style="width:{share:.0%};height:100%;background:{BLUE}"></div></div>'
        f"<div>{share:.0%} {escape(words)}</div>"
    )
