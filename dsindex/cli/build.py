"""`dsindex build`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show
from dsindex.options.build import BuildCommand

DESCRIPTION = """\
Tokenize text (JSONL, compressed files, Parquet and more) in parallel into shards, merge them, and
publish one dataset per key: PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's
preprocess_data.py writes, with a manifest (record counts and digests) and the provenance of every
document.

Run the same command again to continue an interrupted build. Every option can also be set in a YAML
file (--config), with underscores for dashes. A command of preprocess_data.py works as it stands:
its other flags are accepted, and those without effect are named."""
EXAMPLES = (
    r"""dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod \
  --output-prefix out/docs""",
    r"""dsindex build --input data/ --json-keys text title --tokenizer-model gpt2 \
  --output-prefix out/web --address auto --workers 64""",
    r"""dsindex build --config build.yaml --seq-length 4096 --epochs 2 \
  --data-cache-path out/cache""",
)
OPTIONS = (BuildCommand,)
IGNORED = {
    **dict.fromkeys(("--partitions", "--log-interval", "--dataset-impl", "--chat-template", "--vocab-extra-ids"), 1),
    **dict.fromkeys(("--padded-vocab-size", "--max-documents", "--lang"), 1),
    **dict.fromkeys(("--keep-sequential-samples", "--keep-newlines", "--use-gigatoken", "--trust-remote-code"), 0),
    **dict.fromkeys(("--no-pad-vocab-size", "--disable-pad-vocab-size"), 0),
}
"""Flags of Megatron's preprocess_data.py that change no output here."""


def run(values: dict[str, Any]) -> int:
    """Build, or say what a build would take."""
    from dsindex import functions  # loads what a help text does not need

    if values.get("dry_run"):
        from dsindex.tools.estimate import estimate_build

        return show(estimate_build(BuildCommand(**values)))
    return show(functions.build(**values, progress=True))
