"""A job that packs, and the shards that it tokenizes."""

import pytest

from dsindex.options.pack import PackConfig
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config


@pytest.fixture
def make_pack(tmp_path):
    def make(**options):
        defaults = {"output": str(tmp_path / "out" / "docs.pbin"), "shard_size": "16KiB"}
        return config_of(PackConfig, OWN.docs, **{**defaults, **options})

    return make


@pytest.fixture
def pack(make_pack):
    """Pack with these options, and return the path of the file."""
    return lambda **options: run_config(make_pack(**options)).prefixes[0]
