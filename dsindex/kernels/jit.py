"""Compile kernels with numba, once per machine if its compile cache can be written.

Kernels take only contiguous arrays and 64-bit integers, so each is compiled for one or two combinations of types. They
release the GIL and start no threads, since numba's thread pools must not be entered from several threads.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
from numba.core import config, entrypoints, errors
from numba.core.runtime import rtsys

from dsindex.kernels.cache import LOCATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F = TypeVar("F", bound="Callable[..., Any]")

NUMBA_LOCATORS = ("InTreeCacheLocator", "UserWideCacheLocator")
"""numba's own places: beside the source, and in the user's cache folder by the source's path."""

_COMPILING = threading.RLock()


def compiled(function: F, *, forceinline: bool = False) -> F:
    """Return a kernel that is compiled on the first call, or loaded from the cache (dsindex.kernels.cache).

    numba raises RuntimeError if no cache folder can be written, as in a read-only container without a home. Then every
    process compiles for itself, which takes some seconds.

    One thread compiles at a time: in numba 0.66, one of two that need the same third function fails with a KeyError.
    """
    try:
        with _own_cache():
            result = numba.njit(cache=True, nogil=True, forceinline=forceinline)(function)
    except RuntimeError:
        result = numba.njit(nogil=True, forceinline=forceinline)(function)
    _load_without_registries(result._cache)
    compile_it = result._compile_for_args

    def compile_alone(*args: Any, **kws: Any) -> Any:  # noqa: ANN401 - numba's own types
        with _COMPILING, _no_extensions(), _standard_streams_in_place():
            return compile_it(*args, **kws)

    result._compile_for_args = compile_alone
    return cast("F", result)


def _load_without_registries(cache: Any) -> None:  # noqa: ANN401 - numba has no types
    """Load cached kernels without numba's implementations of functions, whose import takes 0.1 s of CPU time.

    numba imports them before it looks into the cache, and again before it compiles, where alone they are needed.
    """
    load = getattr(cache, "_load_overload", None)
    if load is None:  # no cache, or another version of numba
        return

    def load_alone(signature: Any, context: Any) -> Any:  # noqa: ANN401 - as above
        rtsys.initialize(context)  # a kernel may allocate
        return load(signature, context)

    cache.load_overload = load_alone


@contextlib.contextmanager
def _no_extensions() -> Iterator[None]:
    """Keep numba from importing other packages' extensions, which no kernel uses; awkward's takes 0.2 s.

    They are imported when somebody else's function is compiled, as numba notes in this flag.
    """
    before = getattr(entrypoints, "_already_initialized", None)
    if before is None:  # another version of numba
        yield
        return
    entrypoints._already_initialized = True
    try:
        yield
    finally:
        entrypoints._already_initialized = before


@contextlib.contextmanager
def _standard_streams_in_place() -> Iterator[None]:
    """Keep numba from replacing standard output and standard error of the process, to colour each of its messages.

    It puts back what it has found, thousands of times while it compiles. If another thread has put a stream of its own
    there meanwhile, as a progress bar or a test runner does, what is printed next would go to the former stream.
    """
    before = getattr(errors, "ColorShell", None)
    if before is None:  # numba colours nothing: colorama is not installed
        yield
        return
    errors.ColorShell = contextlib.nullcontext  # type: ignore[attr-defined]  # is there if colorama is
    try:
        yield
    finally:
        errors.ColorShell = before  # type: ignore[attr-defined]  # as above


@contextlib.contextmanager
def _own_cache() -> Iterator[None]:
    """Let numba ask our locator first, then its own, for a function that is decorated in the block."""
    with _COMPILING:
        before = config.CACHE_LOCATOR_CLASSES
        config.CACHE_LOCATOR_CLASSES = ",".join([LOCATOR, *(before.split(",") if before else NUMBA_LOCATORS)])
        try:
            yield
        finally:
            config.CACHE_LOCATOR_CLASSES = before


def inlined(function: F) -> F:
    """Return a kernel that is inlined into its callers, since a call with an array argument takes about 20 ns."""
    return compiled(function, forceinline=True)
