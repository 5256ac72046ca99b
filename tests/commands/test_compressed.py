"""Compressed inputs: the same records, the same files, however they are compressed, cut, and built."""

import contextlib
import gzip
import json
import random
import tracemalloc

import pytest

from dsindex.commands.api import verify
from dsindex.errors import BadRecordError, InputError
from dsindex.options.build import BuildConfig
from tests.faults.corpus import BROKEN, write_corpus
from tests.support.compressed import COMPRESSORS
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.published import published

NUM_LINES = 400
BROKEN_LINES = dict(zip(sorted(random.Random(5).sample(range(NUM_LINES), 8)), BROKEN.values(), strict=False))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "in.jsonl"
    write_corpus(path, num_lines=NUM_LINES, broken=BROKEN_LINES)
    return path.read_bytes()


def build(source, out, **options):
    defaults = {"json_keys": ("text", "title"), "append_eod": True, "on_bad_record": "quarantine"}
    defaults["output_prefix"] = str(out / "x")
    with contextlib.chdir(source.parent):  # the quarantine names inputs as they were given
        return run_config(config_of(BuildConfig, source.name, **{**defaults, **options}))


def outputs(folder):
    """All published files; of the manifests all but what the compression changes."""
    files = dict(published(folder))
    for name in files:
        if name.endswith("manifest.json"):
            content = json.loads(files[name])
            for entry in content["inputs"]:
                for key in ("size_bytes", "fingerprint", "compression", "text_bytes"):
                    entry.pop(key, None)
            files[name] = content
    return files


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    """What a build of the plain text publishes. Every input has the same name: it is told by its content."""
    source = write_input(tmp_path_factory.mktemp("plain"), text)
    build(source, source.parent / "out")
    return outputs(source.parent / "out")


def write_input(folder, content):
    source = folder / "text"
    source.write_bytes(content)
    (folder / "out").mkdir()
    return source


WAYS = [{}, {"shard_size": "1KiB", "workers": 3}, {"shard_size": "20KiB", "executor": "processes"}]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "way"), [(name, WAYS[n % 3]) for n, name in enumerate(COMPRESSORS)], ids=str)
def test_a_compressed_input_gives_the_files_of_its_text(text, expected, tmp_path, name, way):
    source = write_input(tmp_path, COMPRESSORS[name](text))
    report = build(source, tmp_path / "out", **way)
    assert outputs(tmp_path / "out") == expected
    assert not (tmp_path / "out" / "x.build").exists()
    assert report.run.shards == 1
    verified = verify(tmp_path / "out/x_text_document", against_source=True, tokenizer=OWN.plain_tokenizer)
    assert verified, verified.findings
    with pytest.raises(BadRecordError, match=rf"text, line {min(BROKEN_LINES) + 1}: "):
        build(source, tmp_path / "out", on_bad_record="fail", output_prefix=str(tmp_path / "out" / "y"))


def test_damage_is_told_before_the_bad_records_that_it_makes(text, tmp_path):
    lines = [line for number, line in enumerate(text.splitlines(keepends=True)) if number not in BROKEN_LINES]
    source = write_input(tmp_path, COMPRESSORS["frames.zst"](b"".join(lines)))
    content = source.read_bytes()
    for offset in range(len(content) // 3, len(content), len(content) // 3):
        source.write_bytes(content[:offset] + bytes([content[offset] ^ 0x11]) + content[offset + 1 :])
        with pytest.raises(InputError, match=r"text: the zstd frame that begins at byte \d+"):
            build(source, tmp_path / f"out{offset}", on_bad_record="fail")


def test_a_bomb_of_one_line_is_a_bad_record_and_takes_little_memory(tmp_path):
    source = write_input(tmp_path, gzip.compress(b'{"text": "a", "title": "b"}\n' + bytes(100 << 20)))
    tracemalloc.start()
    counts = build(source, tmp_path / "out", workers=1, max_record_size="8MiB").counts
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (counts.kept, counts.quarantined) == (1, 1)
    assert peak < 100 << 20, "the line was in memory"
