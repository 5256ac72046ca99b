"""`dsindex pack`."""

from __future__ import annotations

import sys
from typing import Any

from dsindex.amounts import count
from dsindex.cli.render import show
from dsindex.engine.standard_streams import show_lines, write_lines
from dsindex.options.pack import (
    MODALITIES_PARTS,
    JoinConfig,
    PackCommand,
    PackConfig,
    is_modalities_config,
    read_modalities_config,
)
from dsindex.store.config_files import option_names, read_yaml

DESCRIPTION = """\
Tokenize text into packed data for Modalities, FILE.pbin, byte for byte what its own command
`data pack_encoded_data` writes, with a manifest and the provenance of every document beside it.

A text without tokens makes no document; it is counted. Run the same command again to continue an
interrupted job. CONFIG is a file of options, or Modalities' own configuration file: settings that
cannot be honoured are refused by name.

--merge joins .pbin files of any version, in the order given, with correct offsets."""
EXAMPLES = (
    r"""dsindex pack --input docs.jsonl --tokenizer-model FOLDER \
  --eod-token '<|endoftext|>' --output out/docs.pbin""",
    "dsindex pack --merge out/a.pbin out/b.pbin --output out/all.pbin",
)
OPTIONS = (PackCommand, PackConfig)


def run(values: dict[str, Any]) -> int:
    """Pack or join, and print a summary."""
    from dsindex import functions  # loads what a help text does not need

    path = values.pop("config", None)
    if path is not None:
        values = option_names(read_yaml(path), source=path) | values
    if is_modalities_config(values):
        theirs = {name: values.pop(name) for name in MODALITIES_PARTS if name in values}
        translated, ignored = read_modalities_config(path or "--config", theirs)
        if ignored:
            sys.stderr.write(show_lines([f"dsindex: ignored, since dsindex works in shards: {', '.join(ignored)}"]))
        values = translated | values
    if "merge" not in values:
        return show(functions.pack(**values, progress=True))
    paths = values.pop("merge")
    header = functions.join_packed(JoinConfig(merge=paths, **values))
    tokens = f"{count(header.num_tokens, 'token')} of {count(header.token_bytes, 'byte')}"
    write_lines([f"{values['output']}: {tokens}, from {count(len(paths), 'file')}"])
    return 0
