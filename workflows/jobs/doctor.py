"""Examine this machine, for a job or a bug report. Nothing is built, and only temporary files are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workflows.diagnosis.folders import examine_folders
from workflows.diagnosis.kernels import examine_kernels
from workflows.diagnosis.machine import examine_machine
from workflows.diagnosis.ray import examine_ray
from workflows.diagnosis.report import Diagnosis, Finding, Group, without_secrets
from workflows.diagnosis.software import examine_software
from workflows.diagnosis.tokenizer import examine_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig:
    """What to examine beside the machine."""

    tokenizer_model: str | None = None
    path: tuple[str, ...] = ()
    """Folders in which jobs are to write."""
    address: str | None = None
    """The cluster whose head is asked."""


def run_doctor(config: DoctorConfig) -> Diagnosis:
    """Examine everything; what cannot be examined is a finding, so that one fault does not hide the rest."""
    parts: dict[str, Callable[[], Group]] = {
        "software": examine_software,
        "machine": examine_machine,
        "storage": lambda: examine_folders(config.path),
        "tokenizer": lambda: examine_tokenizer(config.tokenizer_model),
        "ray": lambda: examine_ray(config.address),
        "kernels": examine_kernels,
    }
    return Diagnosis(groups=tuple(without_secrets(_examined(name, examine)) for name, examine in parts.items()))


def _examined(name: str, examine: Callable[[], Group]) -> Group:
    """Return a group, or a finding that it could not be examined."""
    try:
        return examine()
    except Exception as error:  # noqa: BLE001 - of a broken installation anything can come
        message = f"{name}: cannot be examined ({type(error).__name__}: {error}); report it with the lines above"
        return Group(name=name, facts=(), findings=(Finding(message=message),))
