"""`dsindex --version --verbose`: versions for a bug report; no variables, addresses or paths, which may be secret."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re

from dsindex._version import __version__
from dsindex.messages import format_size
from dsindex.store.machine import available_cpus, available_memory


def describe_installation() -> list[str]:
    """Return the versions of dsindex, Python, the system and all dependencies, and the available CPUs and memory."""
    libc = " ".join(filter(None, platform.libc_ver()))
    lines = [
        f"dsindex {__version__}",
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}, {libc}",
        f"{available_cpus()} of {os.cpu_count()} CPUs, {format_size(available_memory() or 0)} of memory for jobs",
    ]
    requirements = [spec for spec in importlib.metadata.requires("dsindex") or () if "extra ==" not in spec]
    for name in [*(re.split(r"[^\w.-]", spec)[0] for spec in requirements), "obstore", "torch", "megatron-core"]:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
    return lines
