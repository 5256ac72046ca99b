"""Many small inputs share shards, and the output is that of a shard for each."""

import gzip
import json

import pytest

from dsindex.store.local import make_folder
from tests.support.jobs import run_config
from tests.support.published import published

NUM_FILES = 200
BAD = (90, 91, 150)


def write_inputs(folder):
    """Write files of one to three records, of which some are compressed, have a byte order mark, or a bad record."""
    make_folder(str(folder))
    paths = []
    for number in range(NUM_FILES):
        texts = [f"text {number} {part}" for part in range(1 + number % 3)]
        lines = [json.dumps({"text": text, "n": number}).encode() for text in texts]
        if number in BAD:
            lines.insert(1, b"bad")
        content = b"\n".join(lines) + b"\n" * (number % 4)
        if number % 50 == 7:
            content = b"\xef\xbb\xbf" + content
        path = folder / f"{number:04d}.jsonl"
        if number % 20 == 11:
            content, path = gzip.compress(content, mtime=0), path.with_suffix(".jsonl.gz")
        path.write_bytes(content)
        paths.append(path)
    (folder / "0100.jsonl").write_bytes(b'{"text": "' + 3000 * b"large " + b'"}\n')
    return paths


def build(make_config, source, folder, **options):
    defaults = {"shard_size": "64KiB", "on_bad_record": "quarantine", "input": (str(source),)}
    return run_config(make_config(output_prefix=str(folder / "x"), **{**defaults, **options}))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    write_inputs(folder)
    return folder


@pytest.mark.quick(3)
@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
@pytest.mark.parametrize("options", [{}, {"shard_size": "4MiB", "where": ".n % 7 != 3", "sample": 0.7}], ids=str)
def test_outputs_are_those_of_a_shard_for_each(options, executor, source, tmp_path, make_config, monkeypatch):
    result = build(make_config, source, tmp_path / "joined", executor=executor, **options)
    assert result.run.shards < NUM_FILES / 2
    monkeypatch.setattr("dsindex.runtime.plan.SMALL_PART", 1 << 60)
    alone = build(make_config, source, tmp_path / "alone", **options)
    assert alone.run.shards == NUM_FILES
    files = published(tmp_path / "joined")
    assert "x_text_document.quarantine.jsonl.zst" in files
    assert files == published(tmp_path / "alone")


def test_kept_shards_are_used_again(tmp_path, make_config):
    """A damaged shard is made again, and so are those alone that share one with a changed input."""
    source_folder = tmp_path / "source"
    paths = write_inputs(source_folder)
    shards = tmp_path / "x.build" / "shards"

    def build_again():
        """Return how many shards were made."""
        before = {path.name for path in shards.rglob("*.prov")}
        for path in tmp_path.glob("x_text_document.*"):
            path.unlink()
        build(make_config, source_folder, tmp_path, keep_shards=True)
        return len({path.name for path in shards.rglob("*.prov")} - before)

    build_again()
    expected = published(tmp_path)
    first = min(shards.rglob("*.prov"))
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    assert build_again() == 1
    assert published(tmp_path) == expected
    paths[60].write_bytes(paths[60].read_bytes().replace(b"text 60", b"text 61"))
    assert build_again() == 1
    paths[50].unlink()
    assert build_again() <= 3  # two lists are cut anew if it was the end of the first, by the hash of its path
    files = published(tmp_path)
    build(make_config, source_folder, tmp_path / "fresh")
    assert published(tmp_path / "fresh") == files
