"""Instruction jobs of the tests."""

from dsindex.chat.config import check_config
from dsindex.options.instruct import InstructConfig
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.jobs import config_of

SPLIT_IN_PARTS = check_config({**SPEC, "max_length": 768, "too_long": "split"}, source="test")

CHATML = """\
{%- for message in messages %}{% if message.role == 'assistant' %}
{{- 'ASSISTANT: ' }}{% generation %}{{ message.content + '<|endoftext|>' }}{% endgeneration %}
{%- else %}{{ message.role | upper + ': ' + message.content + '\\n' }}{% endif %}{% endfor %}"""


def job(prefix, **options):
    defaults = {"output_prefix": str(prefix), "shard_size": "16KiB", "seq_length": 768, "split": "8,1,1"}
    return config_of(InstructConfig, CONVERSATIONS, **{**defaults, "on_bad_record": "quarantine", **options})
