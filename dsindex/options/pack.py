"""The options of `dsindex pack`."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar

from dsindex.datasets.arguments import PBIN_SUFFIX, AnyPath
from dsindex.errors import UsageError
from dsindex.options.common import Output, Path, Paths, TextConfig
from dsindex.options.datasets import PbinEra
from dsindex.options.model import Options, option
from dsindex.store.urls import locate_output, refuse_url


def _parse_pbin_path(value: AnyPath) -> str:
    path = locate_output(os.fspath(value))
    if not path.endswith(PBIN_SUFFIX) or not os.path.basename(path).removesuffix(PBIN_SUFFIX):
        raise ValueError(f"{path!r} is not the name of a {PBIN_SUFFIX} file")
    return path


class JoinConfig(Options):
    """The options of `dsindex pack --merge`."""

    merge: Paths = option(default=...)
    output: Annotated[Path, _parse_pbin_path, refuse_url] = option(default=...)
    pbin_era: PbinEra = option(default="current")
    shuffle_documents: int | None = option("SEED", default=None)


class PackConfig(TextConfig):
    """The options of `dsindex.pack`."""

    group: ClassVar = "input and output"
    output_prefix: Output = option()
    output: Annotated[Path, _parse_pbin_path] = option("FILE.pbin")
    """File to write, on a disk or in a bucket (s3://, gs://, az://)."""
    jq_pattern: str = option("JQ", default=".text")
    """jq expression for the text of a record; anything but a single key runs jq, which is slower (default: .text)."""
    pbin_era: PbinEra = option(default="current")
    """Version of the .pbin to write (default: current)."""
    shuffle_documents: int | None = option("SEED", default=None)
    """Write the documents in a random order, for readers that keep the order."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Derive the prefix of the other files from the name of the `.pbin`."""
        if "output_prefix" in values:
            raise UsageError("there is no option 'output_prefix'", hint="use --output FILE.pbin")
        return {**values, "output_prefix": str(values.get("output") or "out").removesuffix(PBIN_SUFFIX)}


class PackFlags(PackConfig):
    r"""Tokenize text into a .pbin file for Modalities, or join .pbin files.

    FILE.pbin is byte for byte what Modalities' `data pack_encoded_data` writes. A manifest and the provenance of every
    document are written with it.

    A text without tokens makes no document, but is counted. Rerun the command to continue after an interruption.

    --merge joins .pbin files of any version in the order given.

    Examples:
        dsindex pack --input docs.jsonl --tokenizer-model FOLDER \
          --eod-token '<|endoftext|>' --output out/docs.pbin
        dsindex pack --merge out/a.pbin out/b.pbin --output out/all.pbin
    """

    merge: Paths = option("FILE.pbin", default=(), group="input and output")
    """Join these files instead of packing text."""
