"""The same job as a function and as a command, and what it publishes."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dsindex
from dsindex.cli.main import main
from tests.support.golden import OWN

if TYPE_CHECKING:
    from dsindex import BuildResult

RUN = OWN.run("eod")

TOKENIZER = OWN.plain_tokenizer

EOD = "<|endoftext|>"


def build(prefix: str = "out/docs", **options: Any) -> BuildResult:
    defaults: dict[str, Any] = {
        "tokenizer": TOKENIZER, "append_eod": True, "output_prefix": prefix, "shard_size": "8KiB", "workers": 2,
    }  # fmt: skip
    return dsindex.build(OWN.docs, **{**defaults, **options})


def command(*words: object) -> str:
    """Run the command line in a folder of its own; return what it prints."""
    printed = io.StringIO()
    folder = Path("by-command")
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        assert main([str(word) for word in words]) in {0, 1}
    return printed.getvalue()


def published(folder: str | Path) -> dict[str, bytes]:
    """All files below a folder; of manifests, the part that is under the law."""
    return {
        str(path.relative_to(folder)): (
            json.dumps(json.loads(path.read_bytes())["content"]).encode()
            if path.name.endswith("manifest.json")
            else path.read_bytes()
        )
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not path.name.endswith(".progress.json")
    }


def without_times(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("done in")]


def assert_golden(prefix: str) -> None:
    for suffix in ("bin", "idx"):
        assert Path(f"{prefix}.{suffix}").read_bytes() == Path(f"{RUN.prefixes['text']}.{suffix}").read_bytes()


WORDS = ("--tokenizer-model", TOKENIZER, "--shard-size", "8KiB", "--workers", 2)
