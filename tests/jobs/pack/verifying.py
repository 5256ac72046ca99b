"""What `verify` says of packed files, and damage to them."""

import json
from pathlib import Path

import numpy as np

from dsindex.engine.manifest import manifest_path
from dsindex.engine.progress import Reporter
from dsindex.formats.pbin import read_document_lengths, read_pbin_header
from dsindex.options.datasets import VerifyConfig
from dsindex.tools.verify import verify_dataset
from tests.support.golden import OWN

TOKENIZER = str(OWN.plain_tokenizer)


def verify(path, **options):
    defaults = {"executor": "local", "workers": 2, "tokenizer_model": TOKENIZER}
    return verify_dataset(path, VerifyConfig(path, **{**defaults, **options}), reporter=Reporter())


def all_findings(report):
    return "\n".join(report.findings)


def change_tokens(path, changes):
    header = read_pbin_header(path)
    stored = np.memmap(path, header.dtype, mode="r+", offset=header.version.header_bytes, shape=(header.num_tokens,))
    for token, value in changes.items():
        stored[token] = value
    stored.flush()


def document_ends(path):
    """The token after each document."""
    lengths = read_document_lengths(path, read_pbin_header(path))
    return [int(end) for end in np.cumsum(lengths)]


def edit_manifest(path, edit):
    manifest = Path(manifest_path(path.removesuffix(".pbin")))
    content = json.loads(manifest.read_bytes())
    edit(content)
    manifest.write_bytes(json.dumps(content).encode())


def passed(report):
    """The names of the checks that found nothing."""
    return "\n".join(check.name for check in report.checks if not check.findings)
