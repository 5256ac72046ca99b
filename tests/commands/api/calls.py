"""A build of the golden text by the Python API, and what it must be."""

from pathlib import Path

import dsindex
from tests.support.golden import OWN

RUN = OWN.run("eod")

TOKENIZER = OWN.plain_tokenizer

EOD = "<|endoftext|>"


def build(prefix="out/docs", **options):
    defaults = {
        "tokenizer": TOKENIZER, "append_eod": True, "output_prefix": prefix, "shard_size": "8KiB", "workers": 2,
    }  # fmt: skip
    return dsindex.build(OWN.docs, **{**defaults, **options})


def assert_golden(prefix):
    for suffix in ("bin", "idx"):
        assert Path(f"{prefix}.{suffix}").read_bytes() == Path(f"{RUN.prefixes['text']}.{suffix}").read_bytes()
