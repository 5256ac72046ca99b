"""Jobs that read and write buckets: the bytes of a disk, whatever fails on the way and whenever they are killed."""

import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("obstore")

from dsindex.cli.main import main
from dsindex.errors import InputError
from dsindex.runtime.input_paths import find_paths
from tests.faults.corpus import TOKENIZER, write_corpus
from tests.support.buckets import SECRET_KEY
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN, ROOT
from tests.support.published import published, read_pair

KINDS = ("build", "merge", "pack", "shuffled", "instruct")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_corpus(folder / "text.jsonl", num_lines=50, broken={})
    (folder / "c").mkdir()
    (folder / "c" / "chat.jsonl").write_bytes(b"".join(CONVERSATIONS.read_bytes().splitlines(keepends=True)[:12]))
    (folder / "chat.yaml").write_text(json.dumps(SPEC))
    return folder


def words_of(kind, prefix, texts, *, source=None, shard_size="6KiB"):
    """Return the words of a job over a folder with JSONL, which may lie elsewhere; for `merge`, over a dataset."""
    source = source or str(texts)
    shared = ["--on-bad-record", "quarantine", "--workers", "2", "--shard-size", shard_size, "--executor", "local"]
    lines = ["--input", f"{source}/*.jsonl", *shared]
    output = ["--output-prefix", prefix]
    return {
        "build": ["build", *TOKENIZER, *lines, "--json-keys", "text", "title", *output],
        "merge": ["merge", "--input", source, source, "--executor", "local", *output],
        "pack": ["pack", *TOKENIZER[:2], *lines, "--output", f"{prefix}.pbin"],
        "shuffled": ["pack", *TOKENIZER[:2], *lines, "--output", f"{prefix}.pbin", "--shuffle-documents", "3"],
        "instruct": ["instruct", f"{texts}/chat.yaml", *TOKENIZER[:2], "--input", f"{source}/c/*", *shared,
                     "--split", "8,1,1", "--seq-length", "768", *output],
    }[kind]  # fmt: skip


def objects(store, folder):
    """What a bucket has below a folder, as `published` tells it of a disk."""
    files = {}
    start = f"{folder}/" if folder else ""
    for key in store.names("out", start):
        content = store.content(f"out/{key}")
        name = key.removeprefix(start)
        files[name] = json.dumps(json.loads(content)["content"]).encode() if "manifest" in name else content
    return files


@pytest.fixture(scope="module")
def expected(texts, tmp_path_factory):
    """What each kind of job writes to a disk."""

    @functools.cache
    def of_kind(kind):
        folder = tmp_path_factory.mktemp(kind)
        source = str(OWN.run("eod").prefixes["text"]) if kind == "merge" else None
        assert main(words_of(kind, f"{folder}/x", texts, source=source, shard_size="1MiB")) == 0
        return published(folder)

    return of_kind


def source_of(kind, store, texts):
    if kind == "merge":
        prefix = OWN.run("eod").prefixes["text"]
        for suffix in ("bin", "idx"):
            store.put(f"src/m.{suffix}", prefix.with_name(f"{prefix.name}.{suffix}").read_bytes())
        return "s3://src/m"
    store.put("src", texts)
    return "s3://src"


@pytest.mark.quick(3)
@pytest.mark.parametrize("way", ["bucket to bucket", "work on a disk", "output on a disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_bucket_to_bucket_is_disk_to_disk(kind, way, store, texts, expected, tmp_path, cli):
    output, more = "s3://out/data/x", []
    if way == "work on a disk":
        more = ["--work-dir", str(tmp_path / "work")]
    if way == "output on a disk":
        output, more = str(tmp_path / "data" / "x"), ["--work-dir", "s3://out/data/x.build"]
    words = [*words_of(kind, output, texts, source=source_of(kind, store, texts)), *more]
    cli(words)
    files = published(tmp_path / "data") if way == "output on a disk" else objects(store, "data")
    excluded = ("manifest", "quarantine")  # which name the inputs
    shared = {name: content for name, content in files.items() if not any(word in name for word in excluded)}
    assert shared == {name: data for name, data in expected(kind).items() if not any(word in name for word in excluded)}
    assert files.keys() == expected(kind).keys()
    assert not (tmp_path / "work").exists()
    assert cli(words).out.startswith("already complete")


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(6))
def test_killed_build_continues(seed, store, texts, expected):
    """SIGKILL before or after a drawn request; no .idx stands beside another .bin, and the next run ends the same."""
    store.put("src", texts)
    expected_files = {name: data for name, data in expected("build").items() if "manifest" not in name}
    words = words_of("build", "s3://out/k/x", texts, source="s3://src")
    rng, lock = random.Random(seed), threading.Lock()
    num_remaining, moment, process = rng.randint(20, 80), rng.choice(["arrived", "done"]), None

    def watch(event, *_):
        nonlocal num_remaining
        with lock:
            num_remaining -= event == moment
            if num_remaining == 0 and process is not None:
                os.kill(process.pid, signal.SIGKILL)

    store.watch = watch
    process = subprocess.Popen([sys.executable, "-m", "dsindex", *words], cwd=ROOT)
    process.wait(timeout=120)
    store.watch = None
    assert process.returncode in {0, -9}
    remaining_files = objects(store, "k")
    for key in ("text", "title"):
        if f"x_{key}_document.idx" in remaining_files:
            for name in (f"x_{key}_document.bin", f"x_{key}_document.idx"):
                assert remaining_files[name] == expected_files[name]
    assert main(words) == 0
    assert {name: data for name, data in objects(store, "k").items() if "manifest" not in name} == expected_files


def test_disturbed_requests_change_nothing(store, texts, expected):
    """Throttling, cut answers, and answers that are lost after the store has done what was asked."""
    store.put("src", texts)
    store.rate = 0.1
    assert main(words_of("build", "s3://out/k/x", texts, source="s3://src")) == 0
    store.rate = 0.0
    assert objects(store, "k").keys() == expected("build").keys()
    for name, content in expected("build").items():
        assert "manifest" in name or objects(store, "k")[name] == content


def test_refusals_while_publishing_are_one_sentence(store, texts, cli):
    store.put("src", texts)
    store.fail(r"(PUT|POST) /out/k/x_text_document\.idx", 403, times=99, code="AccessDenied")
    errors = cli(words_of("build", "s3://out/k/x", texts, source="s3://src"), 1).err
    assert "s3://out/k/x_text_document.idx: cannot be written (" in errors
    assert "check what this node's credentials may do" in errors
    assert SECRET_KEY not in errors
    assert "Traceback" not in errors
    assert "k/x_text_document.idx" not in store.names("out")
    store.faults.clear()
    cli(words_of("build", "s3://out/k/x", texts, source="s3://src"))


@pytest.mark.parametrize(("source", "words"), [
    ("s3://src/*.nothing", "nothing matches this pattern"),
    ("s3://src/nothing/", "no file with records"),
    ("s3://gone/", "there is no such bucket"),
])  # fmt: skip
@pytest.mark.usefixtures("store")
def test_what_is_not_there_is_a_sentence(source, words):
    with pytest.raises(InputError, match=words):
        find_paths([source])


@pytest.mark.parametrize(("pattern", "names"), [
    ("s3://src/d/*.jsonl", ["d/a.jsonl", "d/b c.jsonl"]),
    ("s3://src/d/[b]*", ["d/b c.jsonl"]),
    ("s3://src/**/*.jsonl", ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl"]),
    ("s3://src/d/", ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl"]),
])  # fmt: skip
def test_patterns_and_folders_are_listed_once(store, pattern, names):
    for name in ["d/a.jsonl", "d/b c.jsonl", "d/e/f.jsonl", "d/e/é#%.jsonl", "d/.hidden.jsonl", "d/notes.md"]:
        store.put(f"src/{name}", b"{}")
    store.put("src/d/", b"")
    files = find_paths([pattern])
    assert [file.path for file in files] == [f"s3://src/{name}" for name in names]
    assert all(file.status is not None for file in files)  # sizes and ETags come with the listing
    assert len(store.requests) == 1


def test_nothing_secret_is_written_or_shown(store, texts, tmp_path, capfd):
    store.put("src", texts)
    signed = store.client.generate_presigned_url("get_object", Params={"Bucket": "src", "Key": "text.jsonl"})
    (tmp_path / "one").write_text(f"{signed}\n")
    (tmp_path / "list").write_text(f"{signed}\n{signed.replace('text.jsonl', 'gone.jsonl')}\n")
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--on-bad-record", "quarantine", "--keep-shards"]
    assert main([*words, "--input-list", str(tmp_path / "one"), "--output-prefix", str(tmp_path / "out" / "x")]) == 0
    assert main([*words, "--input-list", str(tmp_path / "list"), "--output-prefix", str(tmp_path / "out" / "y")]) == 1
    output = "".join(capfd.readouterr()).encode()
    written = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) > 4
    for secret in (SECRET_KEY.encode(), re.search(rb"Signature=([^&]+)", signed.encode())[1]):
        assert not any(secret in text for text in [output, *written])


def test_driver_that_lost_its_lease_does_not_publish(store, texts, monkeypatch, cli):
    monkeypatch.setattr("dsindex.store.lock.RENEWAL_SECONDS", 0.05)
    store.put("src", texts)

    def watch(event, method, path):
        if event == "done" and method == "PUT" and "/shards/" in path:
            store.watch = None
            store.put("out/k/x.build/owner.json", b'{"host": "other", "pid": 1, "token": "x", "lease": true}')
            time.sleep(1)

    store.watch = watch
    errors = cli(words_of("build", "s3://out/k/x", texts, source="s3://src"), 1).err
    assert "the lock of the work folder s3://out/k/x.build was removed" in errors
    assert not [name for name in store.names("out") if re.search(r"^(?!.*build/).*(\.idx|\.manifest\.json)$", name)]


def test_google_is_read_and_listed(store, texts, tmp_path, monkeypatch):
    """Google's XML interface has the reads of S3."""
    key = {"gcs_base_url": store.url, "disable_oauth": True}
    key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    source = texts / "text.jsonl"
    store.put("src/d/text.jsonl", source.read_bytes())
    store.client.put_object_acl(Bucket="src", Key="d/text.jsonl", ACL="public-read")
    words = ["build", "--executor", "local", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix"]
    assert main([*words, str(tmp_path / "gs" / "x"), "--input", "gs://src/d/*.jsonl"]) == 0
    assert main([*words, str(tmp_path / "disk" / "x"), "--input", str(source)]) == 0
    assert read_pair(tmp_path / "gs/x_text_document") == read_pair(tmp_path / "disk/x_text_document")
