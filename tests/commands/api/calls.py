"""A build of the golden text by the Python API, and what it must be."""

import dsindex
from tests.support.golden import OWN
from tests.support.published import read_pair

TOKENIZER = OWN.plain_tokenizer
EOD = "<|endoftext|>"


def build(prefix="out/docs", **options):
    defaults = {"tokenizer": TOKENIZER, "append_eod": True, "shard_size": "8KiB", "workers": 2}
    return dsindex.build(OWN.docs, output_prefix=prefix, **{**defaults, **options})


def assert_golden(prefix):
    assert read_pair(prefix) == read_pair(OWN.run("eod").prefixes["text"])
