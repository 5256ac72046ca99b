"""Compile index kernels to machine code once per machine: numba, with its compile cache on wherever it can be written.

Kernels take only contiguous arrays and 64-bit integers, so that each is compiled for one or two combinations of types.
They release the GIL and start no threads of their own: numba's thread pools must not be entered from several threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

_COMPILING = threading.RLock()


def compiled(function: F, *, forceinline: bool = False) -> F:
    """Compile at the first call, or load what an earlier process compiled.

    Numba refuses to cache where neither the package's folder, NUMBA_CACHE_DIR nor the user's cache can be written (a
    read-only container without a home): then every process compiles for itself, a second or so, instead of failing.

    One thread compiles at a time: of two that need the same third function numba 0.66 lets one fail with a KeyError.
    """
    try:
        result = numba.njit(cache=True, nogil=True, forceinline=forceinline)(function)
    except RuntimeError:
        result = numba.njit(nogil=True, forceinline=forceinline)(function)
    compile_it = result._compile_for_args

    def compile_alone(*args: Any, **kws: Any) -> Any:  # noqa: ANN401 - numba's own types
        with _COMPILING:
            return compile_it(*args, **kws)

    result._compile_for_args = compile_alone
    return cast("F", result)


def inlined(function: F) -> F:
    """Compile as `compiled` does, into every loop that calls it: a call with an array in it costs some 20 ns."""
    return compiled(function, forceinline=True)
