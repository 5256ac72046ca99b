"""Compare 64 bytes at once, in LLVM vector code that compiles to the widest instructions of the machine.

LLVM does not vectorise equivalent loops, which take twice the time. Imports numba, so import it where it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 64
"""Bytes compared in one step, all within the array. A mark is bit k of a uint64, for byte k."""

NOTHING, ONE = np.uint64(0), np.uint64(1)

_BYTE, _MARKS = ir.IntType(8), ir.IntType(LANES)
_VECTOR = ir.VectorType(_BYTE, LANES)
_QUOTE, _BACKSLASH, _BLANK, _NEWLINE = (ir.Constant(_VECTOR, [ord(byte)] * LANES) for byte in '"\\ \n')


@intrinsic
def mark_newlines(_context: Any, data: Any, position: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Return marks of the newlines in data[position : position + 64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        found = builder.icmp_unsigned("==", builder.load(address, align=1), _NEWLINE)
        return builder.bitcast(found, _MARKS)

    return types.uint64(data, position), generate


@intrinsic
def mark_special(_context: Any, data: Any, position: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Return marks of the quotes, backslashes and bytes below 0x20 in data[position : position + 64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        return _is_special(builder, builder.load(address, align=1))

    return types.uint64(data, position), generate


@intrinsic
def copy_and_mark_special(_context: Any, data: Any, position: Any, texts: Any, written: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Copy data[position : position + 64] to texts[written : written + 64], and return marks like `mark_special`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        source = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        target = _address(context, builder, signature.args[2], arguments[2], arguments[3])
        octets = builder.load(source, align=1)
        builder.store(octets, target, align=1)
        return _is_special(builder, octets)

    return types.uint64(data, position, texts, written), generate


@intrinsic
def count_before(_context: Any, marks: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Return the number of bytes before the first mark; at least one mark must be set."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(marks), generate


@intrinsic
def mark_from(_context: Any, data: Any, position: Any, lowest: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Return marks of the bytes of at least `lowest` in data[position : position + 64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        nothing, numbers = ir.Constant(_VECTOR, ir.Undefined), ir.VectorType(ir.IntType(32), LANES)
        one = builder.insert_element(nothing, builder.trunc(arguments[2], _BYTE), ir.Constant(ir.IntType(32), 0))
        bounds = builder.shuffle_vector(one, nothing, ir.Constant(numbers, [0] * LANES))
        return builder.bitcast(builder.icmp_unsigned(">=", builder.load(address, align=1), bounds), _MARKS)

    return types.uint64(data, position, lowest), generate


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:  # noqa: ANN401 - as above
    items = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(items, [index]), _VECTOR.as_pointer())


def _is_special(builder: Any, octets: Any) -> Any:  # noqa: ANN401 - as above
    is_quote = builder.icmp_unsigned("==", octets, _QUOTE)
    is_backslash = builder.icmp_unsigned("==", octets, _BACKSLASH)
    is_control = builder.icmp_unsigned("<", octets, _BLANK)
    return builder.bitcast(builder.or_(builder.or_(is_quote, is_backslash), is_control), _MARKS)
