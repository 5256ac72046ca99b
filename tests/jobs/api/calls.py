"""The same job as a function and as a command, and what it publishes."""

import contextlib
import io
import json
from pathlib import Path

import dsindex
from dsindex.cli.main import main
from tests.support.golden import OWN

RUN = OWN.run("eod")

TOKENIZER = OWN.plain_tokenizer

EOD = "<|endoftext|>"


def build(prefix="out/docs", **options):
    defaults = {
        "tokenizer": TOKENIZER, "append_eod": True, "output_prefix": prefix, "shard_size": "8KiB", "workers": 2,
    }  # fmt: skip
    return dsindex.build(OWN.docs, **{**defaults, **options})


def command(*words):
    """Run the command line in a folder of its own; return what it prints."""
    printed = io.StringIO()
    folder = Path("by-command")
    folder.mkdir(exist_ok=True)
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        assert main([str(word) for word in words]) in {0, 1}
    return printed.getvalue()


def published(folder):
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


def without_times(text):
    return [line for line in text.splitlines() if not line.startswith("done in")]


def assert_golden(prefix):
    for suffix in ("bin", "idx"):
        assert Path(f"{prefix}.{suffix}").read_bytes() == Path(f"{RUN.prefixes['text']}.{suffix}").read_bytes()


WORDS = ("--tokenizer-model", TOKENIZER, "--shard-size", "8KiB", "--workers", 2)
