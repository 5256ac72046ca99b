"""64 bytes at once in compiled loops: marked, copied, counted. LLVM turns each into the widest instructions there are.

A mark is bit k of a uint64 for byte k of the 64. Whoever calls sees to it that all 64 bytes are there. After a change
in this file SIMD_DIGEST has to be written anew in json_scanner and code_points.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

LANES = 64
"""Bytes that are looked at in one step."""

_BYTE, _MARKS = ir.IntType(8), ir.IntType(LANES)
_VECTOR = ir.VectorType(_BYTE, LANES)
_QUOTE, _BACKSLASH, _SPACE, _NEWLINE = (ir.Constant(_VECTOR, [ord(byte)] * LANES) for byte in '"\\ \n')


@intrinsic  # type: ignore[untyped-decorator]
def mark_newlines(_context: Any, data: Any, position: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Mark the newlines among data[position : position + 64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        found = builder.icmp_unsigned("==", builder.load(address, align=1), _NEWLINE)
        return builder.bitcast(found, _MARKS)

    return types.uint64(data, position), generate


@intrinsic  # type: ignore[untyped-decorator]
def mark_special(_context: Any, data: Any, position: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Mark the quotes, backslashes and bytes below 0x20 among data[position : position + 64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        return _mark_special(builder, builder.load(address, align=1))

    return types.uint64(data, position), generate


@intrinsic  # type: ignore[untyped-decorator]
def mark_from(_context: Any, data: Any, position: Any, lowest: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Mark the bytes of at least `lowest`, a uint8, among data[position : position + 64]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        octets = builder.load(_address(context, builder, signature.args[0], arguments[0], arguments[1]), align=1)
        single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), arguments[2], ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        bound = builder.shuffle_vector(single, ir.Constant(_VECTOR, ir.Undefined), lanes)
        return builder.bitcast(builder.icmp_unsigned(">=", octets, bound), _MARKS)

    return types.uint64(data, position, lowest), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_and_mark_special(_context: Any, data: Any, position: Any, texts: Any, written: Any) -> Any:  # noqa: ANN401
    """Copy data[position : position + 64] to texts[written : written + 64], and mark as `mark_special` does."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        source = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        target = _address(context, builder, signature.args[2], arguments[2], arguments[3])
        octets = builder.load(source, align=1)
        builder.store(octets, target, align=1)
        return _mark_special(builder, octets)

    return types.uint64(data, position, texts, written), generate


@intrinsic  # type: ignore[untyped-decorator]
def count_before(_context: Any, marks: Any) -> Any:  # noqa: ANN401 - numba's own types
    """Count the bytes before the first mark; there is one."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - as above
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(marks), generate


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:  # noqa: ANN401 - as above
    items = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(items, [index]), _VECTOR.as_pointer())


def _mark_special(builder: Any, octets: Any) -> Any:  # noqa: ANN401 - as above
    is_quote = builder.icmp_unsigned("==", octets, _QUOTE)
    is_backslash = builder.icmp_unsigned("==", octets, _BACKSLASH)
    is_control = builder.icmp_unsigned("<", octets, _SPACE)
    return builder.bitcast(builder.or_(builder.or_(is_quote, is_backslash), is_control), _MARKS)
