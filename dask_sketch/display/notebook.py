"""Whether somebody looks on in a notebook."""

from __future__ import annotations

import sys


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
