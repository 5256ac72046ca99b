"""Compile the kernels of a build to a file of machine code: `python -m dsindex.kernels.compile FILE`.

A process of its own keeps numba, and what it does to the interpreter, out of the process that builds.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import re
import sys

import numba
import numpy as np
from llvmlite import binding
from numba import types

from dsindex.kernels.loader import MAX_DEPTH
from dsindex.kernels.machine_code import DECLARATIONS, Kernels, read_machine_code, this_machine, write_machine_code


def compile_kernels() -> bytes:
    """Return an object file for this machine with all kernels, under their names."""
    target = this_machine()
    whole = binding.parse_assembly("")
    for name, declared in DECLARATIONS.items():
        kernel = getattr(importlib.import_module(f"dsindex.kernels.{declared.module}"), declared.function)
        results = types.int64 if declared.num_results == 1 else types.UniTuple(types.int64, declared.num_results)
        arguments = [
            types.Array(numba.from_dtype(np.dtype(dtype)), dimensions, "C") if dimensions else types.int64
            for dtype, dimensions in declared.arguments
        ]
        own = numba.njit(nogil=True)(kernel.py_func)
        own.compile(results(*arguments))
        [signature] = own.signatures
        module = binding.parse_assembly(_COUNTING.sub("", own.inspect_llvm(signature)))
        function = module.get_function(own.overloads[signature].fndesc.llvm_func_name)
        function.name = name
        for other in module.functions:
            if not other.is_declaration and other.name != name:
                other.linkage = "internal"
        whole.link_in(module)
    _optimize(whole, target)
    missing = {each.name for each in whole.functions if each.is_declaration} - _OF_THE_C_LIBRARY
    missing = {name for name in missing if not name.startswith("llvm.")}
    if missing:
        sys.exit(f"expected kernels that need nothing else, but they need {', '.join(sorted(missing))}")
    return bytes(target.emit_object(whole))


_COUNTING = re.compile(r"^.*call void @NRT_(incref|decref)\(.*\n", re.MULTILINE)
"""Lines of LLVM's code that count references to arrays: the caller owns all, and nothing is allocated."""
_OF_THE_C_LIBRARY = {"memset", "memcpy", "memmove"}


def _optimize(module: binding.ModuleRef, target: binding.TargetMachine) -> None:
    """Remove what numba adds for calls from Python, and optimize the rest once more."""
    builder = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)


def check(kernels: Kernels) -> None:
    """Call each kernel and compare what it does, or exit: called in a wrong way it would do anything, or crash."""
    line = np.frombuffer(b'{"a": {"b": "\\u00e9x"}, "c": [7, 8]}\n' + bytes(64), np.uint8)
    starts, ends, places = np.zeros(1, np.int64), np.array([36]), np.zeros(4, np.int64)
    closings, one = np.empty(MAX_DEPTH + 1, np.int64), np.ones(1, np.int64)
    done = [kernels.find_newlines(line, len(line), places), int(places[0])]
    texts, text_ends = np.zeros(256, np.uint8), np.array([[1, 0]])
    nested = np.frombuffer(b"ab", np.uint8), np.array([1, 2]), np.array([-1, 0]), np.array([-1, 0])
    done += [kernels.read_objects(line, starts, ends, *nested, texts, text_ends, closings, np.full(2, -1))]
    done += texts[1 : text_ends[0, 1]].tolist()
    ids, flat = np.zeros(9, np.uint32), (np.frombuffer(b"c", np.uint8), one, -one, starts)
    done += [kernels.read_id_lists(line, starts, ends, *flat, 9, ids, places, closings, np.full(1, -1))]
    done += [*ids[:2].tolist(), int(places[0])]
    pairs = np.zeros(1 << 16, np.uint8)
    pairs[0xC3A9] = 1
    text = np.frombuffer("aé".encode() + bytes(64), np.uint8)
    done += [kernels.find_characters(text, 0, len(text), 0x80, pairs, places), int(places[0])]
    for dtype in (np.uint8, np.uint16, np.int32):
        result = np.zeros(4, dtype)
        done += [*kernels.insert_token(np.array([5, 9, 6], np.uint32), one, 9, result), *result.tolist()]
    wanted = [1, 36, 1, *"éx".encode(), 1, 7, 8, 2, 1, 1, *([9, 1, 5, 9, 9, 6] * 3)]
    if done != wanted:
        sys.exit(f"expected kernels that return {wanted}, got {done}")


def main() -> None:
    """Compile, check and write; processes that need the same wait for the first."""
    path = sys.argv[1]
    with open(os.path.dirname(path) + "/lock", "a") as lock:
        with contextlib.suppress(OSError):  # some network file systems have no locks; then several compile
            fcntl.flock(lock, fcntl.LOCK_EX)
        if read_machine_code(path) is None:
            code = compile_kernels()
            check(Kernels(code))
            write_machine_code(path, code)


if __name__ == "__main__":
    main()
