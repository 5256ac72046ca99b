"""Outputs and work folders in buckets have the bytes that they have on a disk."""

import pytest

pytest.importorskip("boto3")
pytest.importorskip("obstore")


from dsindex.cli.main import main
from dsindex.jobs import pack as pbin_ends
from tests.faults.corpus import write_corpus
from tests.faults.object_kills import CHAT, KINDS, name_job, objects
from tests.jobs.objects.conftest import make_ranges_small
from tests.jobs.objects.object_builds import build
from tests.support.conversations import CONVERSATIONS
from tests.support.golden import OWN
from tests.support.published import published


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_corpus(folder / "text.jsonl", num_lines=300, broken={})
    (folder / "c").mkdir()
    (folder / "c" / "chat.jsonl").write_bytes(b"".join(CONVERSATIONS.read_bytes().splitlines(keepends=True)[:60]))
    (folder / "chat.yaml").write_text(CHAT)
    return folder


def words_of(kind, prefix, texts, **options):
    source = str(OWN.run("eod").prefixes["text"]) if kind == "merge" else str(texts)
    return name_job(kind, prefix, source=source, chat=texts / "chat.yaml", **options)


@pytest.fixture(scope="module")
def expected(texts, tmp_path_factory):
    """What each kind of job writes to a disk."""
    made = {}

    def of_kind(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            with pytest.MonkeyPatch.context() as patched:
                make_ranges_small(patched)
                assert main(words_of(kind, f"{folder}/x", texts, shard_size="1MiB")) == 0
            made[kind] = published(folder)
        return made[kind]

    return of_kind


@pytest.mark.quick(8)
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("way", ["small shards", "one shard", "kept", "work on a disk", "output on a disk"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "piped"])
def test_objects_are_the_files_of_a_disk(kind, way, store, texts, expected, tmp_path, monkeypatch, cli):
    """What is packed is written in several pieces."""
    monkeypatch.setattr(pbin_ends, "INDEX_FILE_BYTES", 1000)
    more = {"kept": ["--keep-shards"], "work on a disk": ["--work-dir", str(tmp_path / "work")]}.get(way, [])
    output = "s3://out/data/x"
    if way == "output on a disk":
        output, more = str(tmp_path / "data" / "x"), ["--work-dir", "s3://out/data/x.build"]
    words = [*words_of(kind, output, texts, shard_size="1MiB" if way == "one shard" else "3KiB"), *more]
    cli(words)
    assert bool(store.names("out", "data/x.build/")) == (way == "kept")
    found = published(tmp_path / "data") if way == "output on a disk" else objects(store, "data")
    assert {name: found[name] for name in found if not name.startswith("x.build/")} == expected(kind)
    assert not store.uploads
    assert not (tmp_path / "work").exists()
    if way == "small shards":
        assert cli(words).out.startswith("already complete")


def test_empty_text_is_an_empty_object(store, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b'{"text": ""}\n')
    build(path, "s3://out/x", no_provenance=True)
    assert store.content("out/x_text_document.bin") == b""
    assert not store.uploads
