"""Compile functions, with a cache on disk that may be read-only, full or damaged.

numba chooses the folder of its cache when a function is decorated, and raises if it may write to
none. It also raises if a file of its cache is cut off, or if the disk is full. Compiled code can
always be made again, so that no state of a cache is an error here.

numba numbers the files of a cache in an index. Two processes that compile at the same time may give
one number to different code, and a third process then runs the wrong code. Here, the name of a file
is a digest of what it was compiled for, which it also contains: any number of processes, such as
the workers of a cluster with one home, can share a folder.

numba also numbers the symbols of compiled functions, in each process from one. Two closures of one
function, compiled by two processes, may thus have one symbol, and a third process that loads both
runs the last one in place of the first where compiled code is an argument of compiled code. Here,
the symbols of a closure contain a digest of its variables.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import stat
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numba
from numba.core.serialize import dumps

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SILENT_SECONDS = 1.0  # time of compilation after which it is stated that there will be more
# seconds of compilation, by folder of its code
_seconds: defaultdict[str, float] = defaultdict(float)
_warned: set[tuple[str, str]] = set()
_COMPILING = threading.RLock()


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
        status = folder.lstat()
    except OSError:  # no temporary folder either
        return None
    safe = (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
    return str(folder) if safe else None


class _KeyedFiles:
    """Files of the compiled code of a function, one for each signature, closure and processor.

    These are the methods of ``numba.core.caching.IndexDataCacheFile`` that numba's cache calls.

    Parameters
    ----------
    folder
        Path of the folder of the files.
    name
        Name of the function, with which the names of its files begin.
    source_stamp
        Time and size of the source file. Code of another source is not loaded.
    """

    def __init__(self, folder: str, name: str, source_stamp: Any):
        self._folder = Path(folder)
        self._name = name
        self._version = (numba.__version__, source_stamp)

    def _path(self, key: Any) -> Path:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return self._folder / f"{self._name}.{digest[:32]}.nbc"

    def load(self, key: Any) -> Any:
        """Load the code of a key; return None if there is none, or it is of another version."""
        try:
            file = self._path(key).open("rb")
        except FileNotFoundError:
            return None
        with file:
            if pickle.load(file) != self._version or pickle.load(file) != key:
                return None
            return pickle.load(file)

    def save(self, key: Any, data: Any) -> None:
        """Store the code of a key, in place of what another process may store meanwhile."""
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.tmp")
        try:
            temporary.write_bytes(b"".join(dumps(part) for part in (self._version, key, data)))
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class _LenientCache:
    """Cache of a numba function whose files may be missing, damaged or impossible to write."""

    def __init__(self, cache: Any):
        self._cache = cache
        self._begun = 0.0
        implementation = cache._impl
        cache._cache_file = _KeyedFiles(
            cache.cache_path,
            implementation.filename_base,
            implementation.locator.get_source_stamp(),
        )

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
        overload = self._load(signature, context)
        if overload is None:
            self._state_compilation()
            self._begun = time.perf_counter()
        return overload

    def _state_compilation(self) -> None:
        """Log once that kernels are compiled: on the first use of a machine that takes a while."""
        if _seconds[self._place] > _SILENT_SECONDS:
            _warn(
                "empty",
                self._place,
                "dask_sketch compiles kernels that this machine has not used before, which takes "
                f"about ten seconds; they are stored in {self._place}",
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


def _distinguish(function: Callable[..., Any]) -> None:
    """Append a digest of the variables of a closure to its qualified name and its symbols."""
    if function.__closure__ is not None:
        variables = tuple(cell.cell_contents for cell in function.__closure__)
        digest = hashlib.sha256(dumps(variables)).hexdigest()
        function.__qualname__ += f"_{digest[:16]}"


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
        _distinguish(function)
        dispatcher = numba.njit(**options)(function)
        if dispatcher is function:  # NUMBA_DISABLE_JIT
            return function
        _enable_cache(dispatcher)
        if signature:
            dispatcher.compile(*signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def compiled_once(make: Callable[[*Ts], T]) -> Callable[[*Ts], T]:
    """Let a function that compiles do so once for each combination of its arguments.

    Parameters
    ----------
    make
        Function of hashable positional arguments that returns compiled code.

    Returns
    -------
    compiled
        The same function. Threads that need other code wait while one of them compiles.

    Examples
    --------
    >>> @compiled_once
    ... def power(n):
    ...     return cached_njit(nogil=True)(lambda x: x**n)
    >>> power(2) is power(2)
    True
    """
    functions: dict[Any, T] = {}

    @wraps(make)
    def compiled(*arguments: *Ts) -> T:
        if arguments not in functions:
            with _COMPILING:
                if arguments not in functions:
                    functions[arguments] = make(*arguments)
        return functions[arguments]

    return compiled
