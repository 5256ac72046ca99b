"""What manifests say of options that only one kind of job has: the pattern and era of a packing, instruction data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dsindex.errors import FormatError
from workflows.state.manifest import manifest_path


class PackedOptions(BaseModel):
    """The options of a packing that the dataset depends on."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    jq_pattern: str
    pbin_era: Literal["spec", "2024-01-30", "2024-04", "current"]


def read_packed_options(prefix: str, manifest: dict[str, Any]) -> PackedOptions:
    """Return the options of a packing typed.

    Args:
        prefix: Of the packed data, for the message.
        manifest: What `read_manifest` gave.

    Raises:
        FormatError: At the first option that is missing or not of its type.
    """
    try:
        return PackedOptions.model_validate(_options(manifest))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("content.options", *first["loc"]))
        msg = (
            f"{manifest_path(prefix)}: expected another {place}: {first['msg']}; the manifest is damaged, restore it, "
            f"or pack again with --fresh"
        )
        raise FormatError(msg) from error


def is_instruction_data(manifest: dict[str, Any]) -> bool:
    """Tell whether `dsindex instruct` wrote a manifest."""
    return "instruction" in _options(manifest)


def _options(manifest: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = manifest.get("content", {}).get("options", {})
    return options
