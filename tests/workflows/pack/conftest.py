"""A job that packs, and the shards that it tokenizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import workflows.stages.tokenize
from dsindex.shards.tokenize import tokenize_shard
from tests.support.golden import OWN
from workflows.jobs.pack import run_pack
from workflows.options.pack import PackConfig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.workflows.pack.packing import MakeConfig
    from tests.workflows.pack.verifying import Pack
    from workflows.progress.reporter import Reporter


@pytest.fixture
def make_pack(tmp_path: Path) -> MakeConfig:
    def make(**options: object) -> PackConfig:
        defaults: dict[str, object] = {
            "input": (str(OWN.docs),),
            "tokenizer_model": str(OWN.plain_tokenizer),
            "output": str(tmp_path / "out" / "docs.pbin"),
            "executor": "local",
            "workers": 2,
            "shard_size": "16KiB",
        }
        return PackConfig(**{**defaults, **options})

    return make


@pytest.fixture
def pack(make_pack: MakeConfig, quiet: Reporter) -> Pack:
    """Pack with these options, and return the path of the file."""
    return lambda **options: run_pack(make_pack(**options), reporter=quiet).path


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that are tokenized from here on."""
    shards: list[int] = []

    def spy(task: Any, settings: Any) -> Any:
        shards.append(task.shard)
        return tokenize_shard(task, settings)

    monkeypatch.setattr(workflows.stages.tokenize, "tokenize_shard", spy)
    return shards
