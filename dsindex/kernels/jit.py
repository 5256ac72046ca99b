"""Compile index loops to machine code once per machine: numba, with its compile cache on wherever it can be written.

Loops take only contiguous arrays and 64-bit integers, so that each is compiled for one or two combinations of types.
They release the GIL and start no threads of their own: numba's thread pools must not be entered from several threads.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, entrypoints
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        with _COMPILING, _without_extensions():
            return compile_it(*args, **kws)

    result._compile_for_args = compile_alone
    return cast("F", result)


@contextlib.contextmanager
def _without_extensions() -> Iterator[None]:
    """Keep numba from importing, before its first loop, every installed package that extends it.

    Our loops need none of them; awkward, which comes with gigatoken, takes 0.3 s. Whoever compiles loops of his own in
    this process has them loaded then.
    """
    before = entrypoints._already_initialized
    entrypoints._already_initialized = True
    try:
        yield
    finally:
        entrypoints._already_initialized = before


def inlined(function: F) -> F:
    """Compile as `compiled` does, into every loop that calls it: a call with an array in it costs some 20 ns."""
    return compiled(function, forceinline=True)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, index: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Ask the processor to fetch an item of a one-dimensional array, which will be written; only in compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        items = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(items, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(instruction, [address, number(1), number(3), number(1)])  # for writing, to all caches, data
        return context.get_dummy_value()

    return numba.types.void(array, index), generate


@intrinsic  # type: ignore[untyped-decorator]
def borrowed(_context: Any, array: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Return an array that is an argument without a claim on its memory, which the caller has; only in compiled loops.

    Otherwise references are counted, by atomic instructions, around each slice and each call that an array is passed
    to: for short lines of JSON that took ten times as long as reading them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        kind = context.make_array(signature.args[0])
        same = kind(context, builder, arguments[0])
        same.meminfo = ir.Constant(same.meminfo.type, None)
        same.parent = ir.Constant(same.parent.type, None)
        return same._getvalue()

    return array(array), generate
