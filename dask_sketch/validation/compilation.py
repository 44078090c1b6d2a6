"""Compile functions, with a cache on disk that may be read-only, full or damaged.

numba chooses the folder of its cache when a function is decorated, and raises if it may write to
none. It also raises if a file of its cache is cut off, or if the disk is full. Compiled code can
always be made again, so that no state of a cache is an error here.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

logger = logging.getLogger(__name__)

_SILENT_SECONDS = 1.0  # of compilation, after which it is stated that there will be more
_seconds: defaultdict[str, float] = defaultdict(float)  # of compilation, by folder of its code
_warned: set[tuple[str, str]] = set()


def _warn(state: str, folder: str, message: str) -> None:
    """Log a line once for each state of a folder: it has the compiled code of all kernels."""
    if (state, folder) not in _warned:
        _warned.add((state, folder))
        logger.warning(message)


def _temporary_folder() -> str | None:
    """Make a folder for compiled code that only this user can write to, if there may be one.

    Code in it is run. A folder that another user has made in advance is therefore refused.
    """
    if not hasattr(os, "geteuid"):
        return None
    try:
        folder = Path(tempfile.gettempdir()) / f"dask-sketch-numba-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:  # no temporary folder either
        return None
    safe = (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
    return str(folder) if safe else None


class _LenientCache:
    """Cache of a numba function whose files may be missing, damaged or impossible to write."""

    def __init__(self, cache: Any):
        self._cache = cache
        self._begun = 0.0

    @property
    def _place(self) -> str:
        """Folder of the caches of all modules: the package, or that of NUMBA_CACHE_DIR."""
        folder, package = Path(self._cache.cache_path), Path(__file__).parents[1]
        return str(package if folder.is_relative_to(package) else folder.parent)

    def __getattr__(self, name: str) -> Any:
        if name == "_cache":  # not set yet, while this is copied
            raise AttributeError(name)
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load compiled code; return None, as for code that is not stored, if that fails."""
        found = self._load(signature, context)
        if found is None:
            self._state_compilation()
            self._begun = time.perf_counter()
        return found

    def _state_compilation(self) -> None:
        """Log once that kernels are compiled: on the first use of a machine that takes a while."""
        if _seconds[self._place] > _SILENT_SECONDS:
            _warn(
                "empty",
                self._place,
                "dask_sketch compiles its kernels for this machine, which takes about ten seconds, "
                f"once: they are stored in {self._place}",
            )

    def _load(self, signature: Any, context: Any) -> Any:
        try:
            return self._cache.load_overload(signature, context)
        except Exception as error:  # damaged pickles raise errors of any type
            _warn(
                "damaged",
                self._place,
                f"compiled kernels in {self._place} could not be read and are compiled "
                f"again: {type(error).__name__}: {error}",
            )
            try:
                self._cache.flush()  # a damaged index would be read once more when code is stored
            except Exception:
                self._cache.disable()
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store compiled code, if the disk takes it."""
        _seconds[self._place] += time.perf_counter() - self._begun
        try:
            self._cache.save_overload(signature, result)
        except Exception as error:
            self._cache.disable()
            _warn(
                "full",
                self._place,
                f"compiled kernels could not be stored in {self._place}, so that every "
                f"process compiles them: {type(error).__name__}: {error}; set NUMBA_CACHE_DIR to a "
                "folder with free space",
            )


def _enable_cache(dispatcher: Any) -> None:
    """Let a numba function keep its compiled code: beside its source, or where that is possible."""
    try:
        dispatcher.enable_caching()
    except RuntimeError:  # neither the package nor the home is writable
        folder = _temporary_folder()
        try:
            if folder is None:
                raise
            config: Any = numba.config
            config.CACHE_DIR = folder
            dispatcher.enable_caching()
        except RuntimeError:
            _warn(
                "read-only",
                "",
                "no folder is writable, so that every process compiles its kernels, which takes "
                "about a minute; set NUMBA_CACHE_DIR to a writable folder",
            )
            return
        _warn(
            "read-only",
            folder,
            f"compiled kernels are stored in {folder}, since neither the package nor the home is "
            "writable; set NUMBA_CACHE_DIR to choose another folder",
        )
    # numba has no public way to replace the cache; tests/validation/test_compilation.py fails if
    # this changes
    if hasattr(dispatcher, "_cache"):
        dispatcher._cache = _LenientCache(dispatcher._cache)


def cached_njit(*signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function as ``numba.njit(..., cache=True)`` does, without errors of its cache.

    Where neither the package nor the home is writable, the cache is in a temporary folder of the
    user. If that is not possible, there is none. Damaged files are compiled again. A warning is
    logged once in each process.

    Parameters
    ----------
    *signature
        Types of the arguments, for a function that is compiled at once. By default, a function is
        compiled at its first call.
    **options
        Options of ``numba.njit``.

    Examples
    --------
    >>> @cached_njit(nogil=True)
    ... def twice(x):
    ...     return 2 * x
    >>> twice(3)
    6
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if dispatcher is function:  # NUMBA_DISABLE_JIT
            return function
        _enable_cache(dispatcher)
        if signature:
            dispatcher.compile(*signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate
