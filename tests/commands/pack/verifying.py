"""What `verify` says of packed files, and damage to them."""

import json
from pathlib import Path

from dsindex.commands.verify import verify_dataset
from dsindex.formats.manifest import manifest_path
from dsindex.options.datasets import VerifyConfig
from dsindex.runtime.progress import Reporter
from tests.support.golden import OWN

TOKENIZER = str(OWN.plain_tokenizer)


def verify(path, **options):
    defaults = {"executor": "local", "workers": 2, "tokenizer_model": TOKENIZER}
    return verify_dataset(path, VerifyConfig(path, **{**defaults, **options}), reporter=Reporter())


def all_findings(report):
    return "\n".join(report.findings)


def edit_manifest(path, edit):
    manifest = Path(manifest_path(path.removesuffix(".pbin")))
    content = json.loads(manifest.read_bytes())
    edit(content)
    manifest.write_bytes(json.dumps(content).encode())


def passed(report):
    """The names of the checks that found nothing."""
    return "\n".join(check.name for check in report.checks if not check.findings)
