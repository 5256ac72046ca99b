"""Versions of dsindex, Python, the system and the packages that matter, beside the ranges that were tried."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tomllib
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement  # ray depends on it
from packaging.specifiers import SpecifierSet

import dsindex
from workflows.diagnosis.report import Finding, Group

if TYPE_CHECKING:
    from collections.abc import Iterable

_OPTIONAL = ("torch", "transformers", "megatron-core", "huggingface-hub")
"""Packages that are named if they are installed."""
_VARIABLES = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "NUMBA_CACHE_DIR",
    "NUMBA_DISABLE_JIT",
    "OMP_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "RAY_TMPDIR",
    "TMPDIR",
    "TOKENIZERS_PARALLELISM",
    "XDG_CACHE_HOME",
)
"""Variables of the environment that change how jobs run, and hold no secrets."""


def examine_software() -> Group:
    """Return the versions, and a finding for what is missing or was not tried."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(dsindex.__file__)))
    python_range, requirements = _tried(source)
    facts = [
        ("dsindex", f"{dsindex.__version__} in {source}"),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"),
        ("system", f"{_distribution()}, Linux {platform.release()}, {platform.machine()}, {' '.join(_libc())}"),
    ]
    findings = []
    if platform.python_version() not in python_range:
        message = f"Python {platform.python_version()} is not in the tried range {python_range}; use one that is"
        findings.append(Finding(message=message, breaks_builds=True))
    for requirement in requirements:
        fact, finding = examine_package(requirement)
        facts.append((requirement.name, fact))
        findings += [] if finding is None else [finding]
    for name in _OPTIONAL:
        version = _version(name)
        facts += [] if version is None else [(name, f"{version}, optional")]
    variables = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    facts.append(("environment", " ".join(variables) or "no variable that changes how jobs run"))
    return Group(name="software", facts=tuple(facts), findings=tuple(findings))


def examine_package(requirement: Requirement) -> tuple[str, Finding | None]:
    """Return the version of a required package as text, and a finding if it is missing or was not tried."""
    version, tried = _version(requirement.name), _in_order(requirement.specifier)
    install = f"pip install '{requirement.name}{tried}'"
    if version is None:
        message = f"{requirement.name}: expected a version {tried}, found none; install it: {install}"
        return "missing", Finding(message=message, breaks_builds=True)
    if requirement.specifier.contains(version, prereleases=True):
        return version, None
    message = f"{requirement.name} {version} was not tried (what was: {tried}); if builds fail: {install}"
    return f"{version}, outside {tried}", Finding(message=message)


def _tried(source: str) -> tuple[SpecifierSet, list[Requirement]]:
    """Return the ranges of Python and of the required packages, from the source tree or else the installed package."""
    try:
        with open(os.path.join(source, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)["project"]
        if project["name"] == "dsindex":
            return SpecifierSet(project["requires-python"]), _requirements(project["dependencies"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # installed, not a source tree
    try:
        installed = importlib.metadata.distribution("dsindex")
    except importlib.metadata.PackageNotFoundError:
        return SpecifierSet(), []
    return SpecifierSet(installed.metadata["Requires-Python"] or ""), _requirements(installed.requires or ())


def _requirements(texts: Iterable[str]) -> list[Requirement]:
    found = []
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(requirement)
    return found


def _in_order(specifier: SpecifierSet) -> str:
    """Return a range with its lower bound first."""
    return ",".join(sorted(map(str, specifier), key=lambda text: (text.startswith("<"), text)))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "unknown distribution"


def _libc() -> tuple[str, ...]:
    return tuple(part for part in platform.libc_ver() if part) or ("unknown C library",)
