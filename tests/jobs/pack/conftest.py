"""A job that packs, and the shards that it tokenizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import dsindex.engine.tokenize
from dsindex.engine.shards.tokenize import tokenize_shard
from dsindex.options.pack import PackConfig
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.jobs.pack.packing import MakeConfig
    from tests.jobs.pack.verifying import Pack


@pytest.fixture
def make_pack(tmp_path: Path) -> MakeConfig:
    def make(**options: object) -> PackConfig:
        own = {"output": str(tmp_path / "out" / "docs.pbin"), "shard_size": "16KiB"}
        return config_of(PackConfig, OWN.docs, **{**own, **options})

    return make


@pytest.fixture
def pack(make_pack: MakeConfig) -> Pack:
    """Pack with these options, and return the path of the file."""
    return lambda **options: run_config(make_pack(**options)).path


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that are tokenized from here on."""
    shards: list[int] = []

    def spy(task: Any, settings: Any) -> Any:
        shards.append(task.shard)
        return tokenize_shard(task, settings)

    monkeypatch.setattr(dsindex.engine.tokenize, "tokenize_shard", spy)
    return shards
