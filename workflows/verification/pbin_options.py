"""Read the options of `dsindex pack` from the manifest of a `.pbin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import FormatError
from workflows.state.manifest import manifest_path

if TYPE_CHECKING:
    from workflows.state.manifest import Content


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinOptions:
    """The options of `dsindex pack` that the dataset depends on."""

    jq_pattern: str
    pbin_era: str


def read_pbin_options(prefix: str, content: Content) -> PbinOptions:
    """Return the options with which a `.pbin` was packed.

    Args:
        prefix: Path of the `.pbin` without suffix, for messages.
        content: The manifest's content.

    Raises:
        FormatError: If one is missing.
    """
    options = content.options
    if options.jq_pattern is None or options.pbin_era is None:
        missing = "jq_pattern" if options.jq_pattern is None else "pbin_era"
        msg = (
            f"{manifest_path(prefix)}: expected a valid content.options.{missing}, got a damaged manifest (Field "
            f"required); restore the file, or pack again with --fresh"
        )
        raise FormatError(msg)
    return PbinOptions(jq_pattern=options.jq_pattern, pbin_era=options.pbin_era)
