"""The kernels of a build as machine code, which numba compiles in a process of its own, once per machine.

To import numba takes 0.3 s of CPU time and 100 MB in each process of a build; to load the machine code, a sixth of the
time and half the memory. What is compiled is checked before it is kept, since it is called as numba happens to call
it: an array is seven arguments, of which the address, the length and the strides count, and more for further
dimensions.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from llvmlite import binding

from dsindex.kernels.cache import kernel_folder, make_private

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_BYTES, _IDS, _NUMBERS, _TABLE, _NUMBER = ("u1", 1), ("u4", 1), ("i8", 1), ("i8", 2), ("i8", 0)

COMPILE_SECONDS = 900
"""Time after which compiling, which takes some seconds, has failed."""


class Declaration(NamedTuple):
    """What a kernel is called with."""

    module: str
    function: str
    num_results: int
    """Number of int64 returned."""
    arguments: Sequence[tuple[str, int]]
    """Type and number of dimensions of each argument; a number has none."""


DECLARATIONS = {
    "find_newlines": Declaration("json_scanner", "find_newlines", 1, (_BYTES, _NUMBER, _NUMBERS)),
    "read_objects": Declaration(
        "json_reader",
        "read_objects",
        1,
        (_BYTES, _NUMBERS, _NUMBERS, _BYTES, _NUMBERS, _NUMBERS, _NUMBERS, _BYTES, _TABLE, _NUMBERS, _NUMBERS),
    ),
    "read_id_lists": Declaration(
        "json_reader",
        "read_id_lists",
        1,
        (
            *(_BYTES, _NUMBERS, _NUMBERS, _BYTES, _NUMBERS, _NUMBERS, _NUMBERS),
            *(_NUMBER, _IDS, _NUMBERS, _NUMBERS, _NUMBERS),
        ),
    ),
    "find_characters": Declaration(
        "tokens", "find_characters", 1, (_BYTES, _NUMBER, _NUMBER, _NUMBER, _BYTES, _NUMBERS)
    ),
    **{
        f"insert_token_{size}": Declaration("tokens", "insert_token", 2, (_IDS, _NUMBERS, _NUMBER, (f"u{size}", 1)))
        for size in (1, 2, 4)
    },
}
"""The kernels by name."""


class Kernels:
    """The kernels; what they do is said where they are written. They release the GIL."""

    def __init__(self, machine_code: bytes) -> None:
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), this_machine())
        engine.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        engine.finalize_object()
        own = {name: _Kernel(engine.get_function_address(name), declared) for name, declared in DECLARATIONS.items()}
        engine.detach()  # the code is never freed: as the process ends, a thread may still run it
        self.find_newlines = own["find_newlines"]
        self.read_objects = own["read_objects"]
        self.read_id_lists = own["read_id_lists"]
        self.find_characters = own["find_characters"]
        self._insert_token = {size: own[f"insert_token_{size}"] for size in (1, 2, 4)}

    def insert_token(
        self, tokens: NDArray[np.uint32], places: NDArray[np.int64], token: int, result: NDArray[Any]
    ) -> tuple[int, int]:
        """Insert a token id; the result may have any type of integers of up to 32 bits."""
        size = result.itemsize
        largest, count = self._insert_token[size].call(tokens, places, token, result.view(f"u{size}"))
        return largest, count


def this_machine() -> binding.TargetMachine:
    """Return LLVM's target: the CPU of this machine, with all that it can."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    cpu, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return binding.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


class _Kernel:
    """A compiled function."""

    def __init__(self, address: int, declared: Declaration) -> None:
        self._arguments = [(np.dtype(name), dimensions) for name, dimensions in declared.arguments]
        self._num_results = declared.num_results
        kinds: list[Any] = [ctypes.c_void_p, ctypes.c_void_p]
        for _, dimensions in declared.arguments:
            array = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
            kinds += [*array, *[ctypes.c_int64] * (2 * dimensions)] if dimensions else [ctypes.c_int64]
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)

    def __call__(self, *arguments: NDArray[Any] | int) -> int:
        """Call it, and return its first integer; the errors are those of `call`."""
        return self.call(*arguments)[0]

    def call(self, *arguments: NDArray[Any] | int) -> list[int]:
        """Call it, and return its integers.

        Raises:
            TypeError: If an argument is not as declared.
            RuntimeError: If it fails.
        """
        results = (ctypes.c_int64 * (self._num_results + 1))()
        begin = ctypes.addressof(results)
        words: list[int | None] = [begin, begin + 8 * self._num_results]
        for given, (dtype, dimensions) in zip(arguments, self._arguments, strict=True):
            if not isinstance(given, np.ndarray):
                words.append(int(given))
                continue
            flags = given.flags
            if given.dtype != dtype or given.ndim != dimensions or not (flags.c_contiguous and flags.aligned):
                raise TypeError(f"expected {dtype} of {dimensions} dimensions, got {given.dtype} {given.shape}")
            address = given.__array_interface__["data"][0]
            words += [None, None, given.size, dtype.itemsize, address, *given.shape, *given.strides]
        if self._call(*words):
            raise RuntimeError("a kernel fails")
        return results[: self._num_results]


class KernelError(ImportError):
    """Why the kernels cannot be compiled."""


@functools.cache
def import_kernels() -> Kernels:
    """Return the kernels of this process, after compiling them if that was not done on this machine.

    Raises:
        KernelError: If they cannot be compiled.
    """
    package = Path(__file__).parent
    try:
        folder = kernel_folder(str(package / "compile.py"))
        make_private(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        try:
            with tempfile.TemporaryDirectory() as temporary:
                return Kernels(_compiled(os.path.join(temporary, "kernels"), package))
        except OSError as error:
            raise KernelError(f"the kernels cannot be kept: {error}") from error
    return Kernels(_compiled(os.path.join(folder, "kernels"), package))


def _compiled(path: str, package: Path) -> bytes:
    content = read_machine_code(path)
    if content is None:
        command = [sys.executable, "-P", "-m", "dsindex.kernels.compile", path]
        places = [str(package.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        try:
            ended = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=COMPILE_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelError(f"the kernels cannot be compiled: {error}") from error
        content = read_machine_code(path)
        if content is None:
            last = ended.stderr.strip().rpartition("\n")[2] or f"exit code {ended.returncode}"
            raise KernelError(f"the kernels cannot be compiled: {last}")
    return content


# A file of machine code: the digest of what follows, then an object file of the machine.

_DIGEST_BYTES = 16


def read_machine_code(path: str) -> bytes | None:
    """Return the machine code in a file; None if there is none, or not all of it."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    code = content[_DIGEST_BYTES:]
    return code if content[:_DIGEST_BYTES] == xxhash.xxh3_128_digest(code) else None


def write_machine_code(path: str, code: bytes) -> None:
    """Write a file of machine code, whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    partial = f"{path}.{os.getpid()}"
    Path(partial).write_bytes(xxhash.xxh3_128_digest(code) + code)
    os.replace(partial, path)
