"""Jobs other than a plain build that work in a bucket: killed at drawn requests, they end with the same objects."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")

from tests.faults.corpus import BROKEN, TOKENIZER, write_corpus
from tests.faults.object_kills import CHAT, count_moments, kill_at, objects
from tests.support.conversations import CONVERSATIONS
from tests.support.object_server import ObjectServer, serving_objects
from tests.support.published import published

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.zygote import Ended, Zygote

pytestmark = pytest.mark.timeout(1800)

SHORT, LONG = 4, 60
"""Points at which drivers of a kind of job are killed."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    broken = dict(zip(range(9, 200, 41), BROKEN.values(), strict=False))
    write_corpus(folder / "a.jsonl", num_lines=200, broken=broken)
    (folder / "c").mkdir()
    shutil.copy(CONVERSATIONS, folder / "c" / "chat.jsonl")
    return folder


@pytest.fixture(scope="module")
def store(texts: Path) -> Iterator[ObjectServer]:
    with serving_objects(min_part_bytes=1, equal_parts=True, buckets={"out"}) as server:
        server.put("in", texts)
        yield server


SHARED = ("--on-bad-record", "quarantine", "--workers", "2", "--shard-size", "6KiB", "--executor", "local")
PARTS = ("--split", "8,1,1", "--seq-length", "768")
ORDER = ("--shuffle-documents", "3", "--json-keys", "text", "title")
JOBS = {
    "piped": ("build", *TOKENIZER, "--input", "-", *SHARED, "--output-prefix", "{prefix}"),
    "shuffle": ("build", *TOKENIZER, "--input", "s3://in/*.jsonl", *SHARED, *ORDER, "--output-prefix", "{prefix}"),
    "pack": ("pack", *TOKENIZER[:2], "--input", "s3://in/*.jsonl", *SHARED, "--output", "{prefix}.pbin"),
    "instruct": (
        *("instruct", "{chat}", *TOKENIZER[:2], "--input", "s3://in/c/*", *SHARED, *PARTS),
        *("--output-prefix", "{prefix}"),
    ),
}


@pytest.mark.parametrize("words", JOBS.values(), ids=JOBS)
def test_killed_at_drawn_requests(
    words: tuple[str, ...],
    texts: Path,
    store: ObjectServer,
    signed_zygote: Zygote,
    tmp_path: Path,
    is_long: bool,
    request: pytest.FixtureRequest,
) -> None:
    """The first point is where standard input is stored, the last where the work folder is removed."""
    (tmp_path / "chat.yaml").write_text(CHAT)

    def command(prefix: str) -> list[str]:
        given = {"{prefix}": prefix, "{chat}": str(tmp_path / "chat.yaml")}
        named = [word.replace("{prefix}", prefix) for word in words]
        return [*(given.get(word, word) for word in named), "--endpoint-url", store.url]

    def start(words: list[str]) -> Ended:
        return signed_zygote.run(tmp_path / "run", words, piped=texts / "a.jsonl")

    (tmp_path / "disk").mkdir()
    ended = start(command(str(tmp_path / "disk" / "x")))
    assert ended.code == 0, ended.errors
    expected = published(tmp_path / "disk")
    name = request.node.callspec.id
    whole = f"{name}-whole"
    total = count_moments(store, lambda: start(command(f"s3://out/{whole}/x")))
    assert objects(store, whole) == expected
    rng = random.Random(20)
    num_killed = 0
    count = LONG if is_long else SHORT
    for number in range(count):
        moment = ("arrived", "done")[number % 2]
        folder = f"{name}-{number}"
        at = {0: 18, count - 1: total[moment] - 5}.get(number) or rng.randint(1, total[moment])
        kill_at(store, tmp_path / "run" / "pid", at, moment)
        killed = start(command(f"s3://out/{folder}/x"))
        store.watch = None
        assert killed.code in {0, -9}, killed.errors  # the number of requests varies a little
        num_killed += killed.code == -9
        more = []
        if number % 3 == 2 and store.names("out", f"{folder}/x.build/"):
            cleaned = start(["clean", f"s3://out/{folder}/x", "--yes", "--endpoint-url", store.url])
            assert cleaned.code == 0, cleaned.errors
            assert not store.names("out", f"{folder}/x.build/")
            assert not store.uploads
            more = ["--fresh"]  # nothing tells any more who wrote what was published before the kill
        again = start([*command(f"s3://out/{folder}/x"), *more])
        assert again.code == 0, again.errors
        assert objects(store, folder) == expected, (number, at)
        assert not store.uploads, (number, at)
    assert num_killed >= count / 2
