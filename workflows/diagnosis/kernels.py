"""The cache of compiled kernels: its folder, whether it can be used, and what it holds for this version and CPU."""

from __future__ import annotations

import os

import dsindex
from dsindex.amounts import format_size
from workflows.diagnosis.report import Finding, Group

KERNEL_MODULES = (
    "indices/greedy.py",
    "indices/mersenne.py",
    "indices/sample.py",
    "instruction/best_fit.py",
    "kernels/characters.py",
    "kernels/json_reader.py",
    "kernels/json_scanner.py",
    "kernels/json_strings.py",
    "kernels/sample_assembly.py",
    "kernels/token_counts.py",
    "kernels/tokens.py",
)
"""The modules that compile kernels, under the package."""


def examine_kernels() -> Group:
    """Return the state of the cache; nothing is compiled, and no folder is made."""
    try:
        from dsindex.kernels.cache import kernel_folder, why_unusable

        package = os.path.dirname(os.path.abspath(dsindex.__file__))
        folders = [kernel_folder(os.path.join(package, module)) for module in KERNEL_MODULES]
        base = os.path.dirname(folders[0])
        problem = why_unusable(base) or next(filter(None, map(why_unusable, folders)), None)
    except (ImportError, OSError, RuntimeError) as error:
        return _unusable("none", str(error) or type(error).__name__)
    compiled = sum(any(name.endswith(".nbc") for name in _names(folder)) for folder in folders)
    facts = (
        ("folder", base),
        ("size", format_size(_size(base))),
        ("compiled", f"{compiled} of {len(folders)} modules, for this version and CPU; others when first used"),
    )
    if problem is None:
        return Group(name="kernels", facts=facts)
    return Group(name="kernels", facts=facts, findings=_unusable(base, problem).findings)


def _unusable(folder: str, problem: str) -> Group:
    message = (
        f"compiled kernels cannot be kept ({problem}): every process compiles for some seconds; set NUMBA_CACHE_DIR to "
        f"a folder that only you can write"
    )
    return Group(name="kernels", facts=(("folder", folder),), findings=(Finding(message=message),))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _size(base: str) -> int:
    total = 0
    for folder, _, names in os.walk(base):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # removed meanwhile
    return total
