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


def _new_pbin(value: AnyPath) -> str:
    path = locate_output(os.fspath(value))
    if not path.endswith(PBIN_SUFFIX) or not os.path.basename(path).removesuffix(PBIN_SUFFIX):
        raise ValueError(f"expected the name of a {PBIN_SUFFIX} file, got {path!r}")
    return path


class JoinConfig(Options):
    """`dsindex pack --merge`: `.pbin` files joined to one."""

    merge: Paths = option(default=...)
    output: Annotated[Path, _new_pbin, refuse_url] = option(default=...)
    pbin_era: PbinEra = option(default="current")


class PackConfig(TextConfig):
    """The options of `dsindex.pack`."""

    group: ClassVar = "input and output"
    output_prefix: Output = option()
    output: Annotated[Path, _new_pbin] = option("FILE.pbin")
    """The packed data, here or in a bucket (s3://, gs://)."""
    jq_pattern: str = option("JQ", default=".text")
    """Selects the text of a record (default: .text); anything but a single key is slower, as it runs jq."""
    pbin_era: PbinEra = option(default="current")
    """Version of the .pbin to write (default: current)."""

    @classmethod
    def prepare(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Name the files beside the `.pbin` after it."""
        if "output_prefix" in values:
            raise UsageError("there is no option 'output_prefix'; use --output FILE.pbin")
        return {**values, "output_prefix": str(values.get("output") or "out").removesuffix(PBIN_SUFFIX)}


class PackFlags(PackConfig):
    r"""Tokenize text into a .pbin of Modalities, or join .pbin files.

    FILE.pbin is byte for byte what Modalities' own `data pack_encoded_data` writes, with a manifest and the provenance
    of every document beside it.

    A text without tokens makes no document; it is counted. Run the same command again to continue an interrupted job.

    --merge joins .pbin files of any version, in the order given, with correct offsets.

    Examples:
        dsindex pack --input docs.jsonl --tokenizer-model FOLDER \
          --eod-token '<|endoftext|>' --output out/docs.pbin
        dsindex pack --merge out/a.pbin out/b.pbin --output out/all.pbin
    """

    merge: Paths = option("FILE.pbin", default=(), group="input and output")
    """Join these files instead of packing text."""
