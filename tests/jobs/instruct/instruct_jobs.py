"""Instruction jobs of the tests, and what they publish."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsindex.instruction.config import check_config
from dsindex.options.instruct import InstructConfig
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.jobs import config_of

if TYPE_CHECKING:
    from pathlib import Path


SPLIT_IN_PARTS = check_config({**SPEC, "max_length": 768, "too_long": "split"}, source="test")

CHATML = """\
{%- for message in messages %}{% if message.role == 'assistant' %}
{{- 'ASSISTANT: ' }}{% generation %}{{ message.content + '<|endoftext|>' }}{% endgeneration %}
{%- else %}{{ message.role | upper + ': ' + message.content + '\\n' }}{% endif %}{% endfor %}"""


def job(prefix: Path, **options: Any) -> InstructConfig:
    own = {"output_prefix": str(prefix), "shard_size": "16KiB", "seq_length": 768, "split": "8,1,1"}
    return config_of(InstructConfig, CONVERSATIONS, **{**own, "on_bad_record": "quarantine", **options})


def published(folder: Path) -> dict[str, bytes]:
    """All published files; of the manifests, the part that is under the law."""
    return {
        path.name: json.dumps(json.loads(path.read_bytes())["content"]).encode()
        if path.name.endswith("manifest.json")
        else path.read_bytes()
        for path in sorted(folder.iterdir())
        # A killed driver leaves its lock; the progress file tells of the run.
        if path.is_file() and not path.name.endswith((".dsindex-lock", ".progress.json"))
    }
