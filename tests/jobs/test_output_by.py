"""One build with a dataset for each value of a key: --output-by, and hold-outs of whole groups."""

import contextlib
import gzip
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from dsindex.api.verify import verify
from dsindex.engine.shards import tokenize
from dsindex.errors import BadRecordError, InputError, OutputError, PlanError
from dsindex.execution.progress.reporter import Reporter
from dsindex.jobs.build import run_build, value_name
from dsindex.options.build import BuildConfig
from dsindex.text.sampling import HASH_SEED
from tests.faults.corpus import write_corpus
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.killed import kill_after
from tests.support.published import published

FILES = ("a.jsonl", "b.jsonl", "c.jsonl.gz")
SOURCES = ("web", "Common Crawl/de", "C++", "книги")
NAMES = {"web": "web", "Common Crawl/de": "Common_Crawl_de", "C++": "C++", "книги": "книги"}


def source_of(file, line):
    """Return the source of a line; that of the first file's beginning is nowhere else, and the last is rare."""
    if file == 0 and line < 30:
        return "web"
    return SOURCES[3] if line % 41 == 0 else SOURCES[1 + (line * 7 + file) % 2]


def write_inputs(folder, *, only=None):
    """Write the inputs; of all records but those of `only`, blank lines of the same size."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(FILES):
        plain = folder / "plain"
        write_corpus(plain, num_lines=120, broken={}, seed=number)
        lines = []
        for line, text in enumerate(plain.read_text().splitlines()):
            if text.strip():
                record = json.loads(text)
                source, url = source_of(number, line), f"site{line % 9}.org"
                text = json.dumps({**record, "meta": {"source": source, "url": url}})
                lines.append(text if only in (None, source) else " " * len(text))
        plain.unlink()
        data = "".join(f"{line}\n" for line in lines).encode()
        (folder / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)


def build(folder, out, **options):
    own = {"json_keys": ("text", "title"), "append_eod": True, "shard_size": "4KiB"}
    own |= {"output_prefix": str(out / "x"), "output_by": ".meta.source"}
    out.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return run_config(config_of(BuildConfig, FILES, **{**own, **options}))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def expected(texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected")
    build(texts, out)
    return published(out)


def test_each_dataset_has_the_bytes_of_a_build_of_its_records_alone(texts, expected, tmp_path):
    shown = str(build(texts, tmp_path / "out"))
    assert published(tmp_path / "out") == expected
    for source, name in NAMES.items():
        write_inputs(tmp_path / name, only=source)
        build(tmp_path / name, tmp_path / f"{name}.out", output_by=None)
        for key in ("text", "title"):
            prefix = f"x_{name}_{key}_document"
            assert prefix in shown
            for suffix in ("bin", "idx", "provenance.parquet"):
                alone = tmp_path / f"{name}.out" / f"x_{key}_document.{suffix}"
                assert expected[f"{prefix}.{suffix}"] == alone.read_bytes()
            content = json.loads(expected[f"{prefix}.manifest.json"])
            assert content["options"]["value"] == source
            assert content["options"]["outputs"][source] == [f"x_{name}_text_document", f"x_{name}_title_document"]
            counts = content["account"]
            assert counts["records"] == counts["kept"] + counts["filtered"]
            assert counts["kept"] == content["documents"] == sum(each["kept"] for each in content["inputs"])
    assert len([name for name in expected if name.endswith(".idx")]) == 2 * len(SOURCES)
    for source in ("web", "книги"):
        with contextlib.chdir(texts):
            path = tmp_path / "out" / f"x_{source}_text_document"
            report = verify(path, against_source=True, tokenizer=OWN.plain_tokenizer)
        assert report.is_whole, report.findings
        assert "against the source" in str(report)
    assert build(texts, tmp_path / "out").already_complete


WAYS = {
    "one shard": {"shard_size": "64MiB"},
    "small shards": {"shard_size": "700B", "workers": 3},
    "processes": {"executor": "processes", "workers": 2},
    "jq": {"output_by": '.meta | .source // "none"'},
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_datasets_do_not_depend_on_how_they_are_made(texts, expected, tmp_path, way):
    build(texts, tmp_path / "out", **way)
    made = published(tmp_path / "out")
    if "output_by" in way:
        key = json.dumps(way["output_by"])[1:-1].encode()
        made = {name: data.replace(key, b".meta.source") for name, data in made.items()}
    assert made == expected
    assert not (tmp_path / "out" / "x.build").exists()


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_ray_gives_the_same_datasets(texts, expected, tmp_path):
    build(texts, tmp_path / "out", executor="ray", address="auto", shard_size="2KiB")
    assert published(tmp_path / "out") == expected


def test_many_small_files_are_routed_together(texts, tmp_path):
    """Above 32 inputs, several share a shard, and their records are counted for each of them."""
    folder = tmp_path / "files"
    folder.mkdir()
    lines = [line for name in FILES[:2] for line in (texts / name).read_text().splitlines()]
    names = [f"{number:03d}" for number in range(60)]
    for number, name in enumerate(names):
        (folder / name).write_text("".join(f"{line}\n" for line in lines[number * 3 : number * 3 + 3]))
    (tmp_path / "many").mkdir()
    with contextlib.chdir(folder):
        own = {"output_prefix": str(tmp_path / "many" / "x"), "output_by": ".meta.source", "hold_out": 0.3}
        run_config(config_of(BuildConfig, tuple(names), shard_size="64KiB", **own))
    kept, num_bytes = [0] * len(names), [0] * len(names)
    for path in (tmp_path / "many").glob("*.manifest.json"):
        content = json.loads(path.read_bytes())["content"]
        assert content["documents"] == sum(each["kept"] for each in content["inputs"])
        kept = [before + each["kept"] for before, each in zip(kept, content["inputs"], strict=True)]
        num_bytes = [
            before + each["tokenized_bytes"] for before, each in zip(num_bytes, content["inputs"], strict=True)
        ]
        with contextlib.chdir(folder):
            report = verify(
                str(path).removesuffix(".manifest.json"), against_source=True, tokenizer=OWN.plain_tokenizer
            )
        assert report.is_whole, report.findings
    assert kept == [3] * len(names)
    sizes = [len(json.loads(line)["text"].encode()) for line in lines[: 3 * len(names)]]
    assert num_bytes == [sum(sizes[first : first + 3]) for first in range(0, len(sizes), 3)]


@pytest.mark.quick(1)
def test_a_killed_build_goes_on(texts, expected, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with contextlib.chdir(texts):
        words = ["build", "--input", *FILES, "--json-keys", "text", "title", "--append-eod", "--shard-size", "4KiB"]
        words += ["--output-prefix", str(out / "x"), "--output-by", ".meta.source", "--executor", "local"]
        kill_after("record_shard", 4, [*words, "--tokenizer-model", str(OWN.plain_tokenizer)], folder=texts)
    assert not list(out.glob("*.idx"))
    build(texts, out)
    assert published(out) == expected


class Stopped(BaseException):
    """In place of a kill, at a known point."""


@pytest.mark.parametrize("published_before", [0, 1, 3])
def test_a_build_that_was_stopped_while_it_published_goes_on(texts, expected, tmp_path, monkeypatch, published_before):
    from dsindex.engine import frame

    out, left = tmp_path / "out", [published_before]
    publish = frame.publish

    def publish_some(*arguments):
        if not left[0]:
            raise Stopped
        left[0] -= 1
        publish(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(frame, "publish", publish_some)
        with pytest.raises(Stopped):
            build(texts, out)
    assert len(list(out.glob("*.manifest.json"))) == published_before
    build(texts, out)
    assert published(out) == expected


def test_only_a_changed_input_is_made_again_and_a_value_that_is_gone_has_no_dataset(texts, tmp_path, monkeypatch):
    folder, out = tmp_path / "texts", tmp_path / "out"
    shutil.copytree(texts, folder)
    kept_there = {"keep_shards": True, "output_prefix": "../out/x"}
    build(folder, out, **kept_there)
    kept = (folder / "a.jsonl").read_text().splitlines()[30:]
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in kept))
    with pytest.raises(PlanError, match="replace it with --replace"):
        build(folder, out, **kept_there)
    read = []
    from dsindex.engine import tokenize as stage

    make = stage.tokenize_shard
    monkeypatch.setattr(stage, "tokenize_shard", lambda task, *rest: (read.append(task.path), make(task, *rest))[1])
    build(folder, out, **kept_there, replace=True, executor="local", workers=1)
    assert {path.rpartition("/")[2] for path in read} == {"a.jsonl"}
    build(folder, tmp_path / "new", keep_shards=True)
    assert published(out) == published(tmp_path / "new")
    assert not list(out.glob("x_web_*"))
    damaged = out / "x_C++_text_document.bin"
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(OutputError, match="move it away and run again, which uses the shards that --keep-shards kept"):
        build(folder, out, **kept_there, replace=True)
    damaged.unlink()
    read.clear()
    build(folder, out, **kept_there, executor="local", workers=1)
    assert published(out) == published(tmp_path / "new")
    assert not read


def write_values(path, values):
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def one_build(path, **options):
    own = {"output_prefix": str(path.parent / "x"), "output_by": "s", **options}
    return run_config(config_of(BuildConfig, (str(path),), **own))


BAD = {
    "missing": ({"text": "a"}, "line 3: expected the key 's', got only 'text'"),
    "number": ({"text": "a", "s": 3}, "line 3: expected a string under the key 's' for --output-by, got a number"),
    "list": ({"text": "a", "s": ["web"]}, "line 3: expected a string under the key 's' for --output-by, got a list"),
    "empty": ({"text": "a", "s": ""}, "line 3: expected a string of 1 to 100 bytes for --output-by, got one of 0"),
    "long": ({"text": "a", "s": "x" * 101}, "line 3: .* got one of 101"),
}


@pytest.mark.parametrize(("record", "message"), BAD.values(), ids=BAD)
def test_a_value_that_names_no_output_makes_a_bad_record(tmp_path, record, message):
    good = {"text": "a b c", "s": "web"}
    write_values(tmp_path / "a", [good, good, record, good])
    with pytest.raises(BadRecordError, match=message):
        one_build(tmp_path / "a")
    result = one_build(tmp_path / "a", on_bad_record="quarantine")
    assert (result.counts.kept, result.counts.quarantined) == (3, 1)
    assert [each.value for each in result.datasets] == ["web"]


def test_two_values_of_one_name_are_refused(tmp_path):
    write_values(tmp_path / "a", [{"text": "a", "s": "a/b"}, {"text": "b", "s": "a b"}])
    with pytest.raises(InputError, match="expected one value of --output-by for this dataset, got 'a b' and 'a/b'"):
        one_build(tmp_path / "a")
    assert not list(tmp_path.glob("*.idx"))


def test_datasets_of_a_value_and_of_a_hold_out_with_one_name_are_refused(tmp_path):
    write_values(tmp_path / "a", [{"text": f"{number}", "s": s} for number in range(40) for s in ("a", "a_valid")])
    with pytest.raises(InputError, match="got 'a' and 'a_valid'"):
        one_build(tmp_path / "a", hold_out=0.4)


@pytest.mark.parametrize("shard_size", ["64MiB", "1KiB"])
def test_too_many_values_are_refused(tmp_path, monkeypatch, shard_size):
    monkeypatch.setattr(tokenize, "MAX_VALUES", 50)
    write_values(tmp_path / "a", [{"text": "a", "s": f"v{number % 51}"} for number in range(300)])
    with pytest.raises(InputError, match="expected at most 50 values of --output-by"):
        one_build(tmp_path / "a", shard_size=shard_size, executor="local")
    monkeypatch.setattr(tokenize, "MAX_VALUES", 51)
    assert len(one_build(tmp_path / "a", shard_size=shard_size, executor="local").datasets) == 51


def test_a_file_of_somebody_else_under_a_name_that_is_found_late_is_refused(texts, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "x_C++_text_document.bin").write_bytes(b"mine")
    with pytest.raises(OutputError, match="no manifest says that dsindex made it"):
        build(texts, out)
    assert (out / "x_C++_text_document.bin").read_bytes() == b"mine"
    assert not list(out.glob("*.idx"))


def hold_at(monkeypatch, function):
    """Let one call of a function of the frame wait; return when it has begun, and the way to let it go on."""
    from dsindex.engine import frame

    original, begun, goes_on, calls = getattr(frame, function), threading.Event(), threading.Event(), []

    def wait(*arguments, **options):
        calls.append(None)
        if len(calls) == 1:
            begun.set()
            assert goes_on.wait(60)
        return original(*arguments, **options)

    monkeypatch.setattr(frame, function, wait)
    return begun, goes_on


@pytest.mark.parametrize("held", ["_carry_out", "_own_outputs", "_publish"])
def test_of_two_drivers_for_one_prefix_one_is_refused_whatever_the_values(tmp_path, monkeypatch, held):
    """Their work folders differ, and so do the names of all their datasets, which are known only at the end."""
    write_values(tmp_path / "a", [{"text": "a b", "s": "web"}] * 9)
    write_values(tmp_path / "b", [{"text": "c d", "s": "books"}] * 9)
    begun, goes_on = hold_at(monkeypatch, held)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one_build, tmp_path / "a", work_dir=str(tmp_path / "one"), executor="local")
        assert begun.wait(60)
        try:
            with pytest.raises(PlanError, match=r"works on the output .*/x"):
                one_build(tmp_path / "b", work_dir=str(tmp_path / "two"), executor="local")
        finally:
            goes_on.set()
        assert [each.value for each in first.result().datasets] == ["web"]
    with pytest.raises(PlanError, match="finished output of another plan"):
        one_build(tmp_path / "b", work_dir=str(tmp_path / "two"), executor="local")
    one_build(tmp_path / "b", work_dir=str(tmp_path / "two"), executor="local", replace=True)
    assert sorted(path.name for path in tmp_path.glob("x_*.idx")) == ["x_books_text_document.idx"]
    assert not list(tmp_path.glob("*-lock"))


def test_a_build_sees_what_another_driver_published_before_it_held_the_prefix(tmp_path, monkeypatch):
    from dsindex.engine import frame

    write_values(tmp_path / "a", [{"text": "a b", "s": "web"}] * 9)
    write_values(tmp_path / "b", [{"text": "c d", "s": "books"}] * 9)
    own = frame.own_work_folder

    def build_meanwhile(*arguments, **options):
        monkeypatch.setattr(frame, "own_work_folder", own)
        one_build(tmp_path / "a", work_dir=str(tmp_path / "one"))
        return own(*arguments, **options)

    for name, outcome in (("b", pytest.raises(PlanError, match="another plan")), ("a", contextlib.nullcontext())):
        for path in tmp_path.glob("x_*"):
            path.unlink()
        monkeypatch.setattr(frame, "own_work_folder", build_meanwhile)
        with outcome:
            assert one_build(tmp_path / name, work_dir=str(tmp_path / "two")).already_complete
        assert [path.name for path in tmp_path.glob("x_*.idx")] == ["x_web_text_document.idx"]


def test_token_ids_are_routed_as_texts_are(tmp_path):
    """So are lists of lists; the values are told apart before the ids are read."""
    rows = [
        {"ids": [number % 50] * (number % 7) if number % 3 else [[number % 9], [3, 4]], "s": SOURCES[number % 4]}
        for number in range(200)
    ]
    write_values(tmp_path / "a", rows)
    made = one_build(tmp_path / "a", token_ids="ids")
    again = {"output_prefix": str(tmp_path / "y"), "shard_size": "700B", "executor": "processes", "workers": 2}
    small = one_build(tmp_path / "a", token_ids="ids", **again)
    assert [each.value for each in made.datasets] == sorted(SOURCES)
    for one, other in zip(made.datasets, small.datasets, strict=True):
        write_values(tmp_path / "alone", [row for row in rows if row["s"] == one.value])
        expected = one_build(
            tmp_path / "alone", token_ids="ids", output_by=None, output_prefix=str(tmp_path / "z"), fresh=True
        )
        assert one.num_documents == 50
        for suffix in ("bin", "idx"):
            data = Path(f"{one.prefix}.{suffix}").read_bytes()
            assert data == Path(f"{other.prefix}.{suffix}").read_bytes()
            assert data == Path(f"{expected.prefixes[0]}.{suffix}").read_bytes()
        assert verify(one.prefix, against_source=True, tokenizer=OWN.plain_tokenizer).is_whole
    write_values(tmp_path / "bad", [{"ids": [1, -2], "s": "web"}])
    with pytest.raises(BadRecordError, match=r"line 1: .*-2"):
        one_build(tmp_path / "bad", token_ids="ids", output_prefix=str(tmp_path / "bad_out"))


@pytest.mark.parametrize(("options", "message"), [
    ({"output_by": ".s", "shuffle_documents": 3}, "expected either --output-by or --shuffle-documents"),
    ({"output_by": " "}, "expected a name, a path or jq"),
    ({"hold_out_by": ".s"}, "expected --hold-out-by with --hold-out"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        BuildConfig(input=("a",), tokenizer_model="t", output_prefix="o", **options)


def test_indices_are_refused(texts, tmp_path):
    config = config_of(BuildConfig, str(texts / FILES[0]), output_prefix=str(tmp_path / "x"), output_by="s")
    with pytest.raises(PlanError, match="expected --output-by without options of indices"):
        run_build(config, reporter=Reporter(), index={"seq_length": 8})


def test_a_hold_out_by_group_keeps_equal_strings_together(texts, tmp_path):
    """So do the datasets of each value, and both are verified by the strings."""
    import xxhash

    def is_held(url):
        return xxhash.xxh3_64_intdigest(url.encode(), seed=HASH_SEED) < 2**64 // 10 * 4

    options = {"hold_out": 0.4, "hold_out_by": ".meta.url", "json_keys": ("text",), "on_bad_record": "quarantine"}
    build(texts, tmp_path / "by", **options)
    build(texts, tmp_path / "out", output_by=None, **options)
    build(texts, tmp_path / "small", output_by=None, **options, shard_size="700B", workers=2)
    assert published(tmp_path / "out") == published(tmp_path / "small")
    texts_of = [(texts / name).read_bytes() for name in FILES]
    texts_of[2] = gzip.decompress(texts_of[2])
    records = [json.loads(line) for text in texts_of for line in text.splitlines()]
    held = [is_held(record["meta"]["url"]) for record in records]
    assert 0 < sum(held) < len(held)
    counts = {
        path.name: json.loads(path.read_bytes())["content"]["documents"]
        for out in ("out", "by")
        for path in (tmp_path / out).glob("*.manifest.json")
    }
    assert counts["x_valid_text_document.manifest.json"] == sum(held)
    assert counts["x_text_document.manifest.json"] == len(held) - sum(held)
    for source, name in NAMES.items():
        own = [is_held(each["meta"]["url"]) for each in records if each["meta"]["source"] == source]
        assert counts[f"x_{name}_valid_text_document.manifest.json"] == sum(own)
        assert counts[f"x_{name}_text_document.manifest.json"] == len(own) - sum(own)
    for path in (tmp_path / "out" / "x_valid_text_document", tmp_path / "by" / "x_C++_valid_text_document"):
        with contextlib.chdir(texts):
            report = verify(path, against_source=True, tokenizer=OWN.plain_tokenizer)
        assert report.is_whole, report.findings


def test_names_of_values_are_parts_of_file_names():
    assert [value_name(value) for value in SOURCES] == list(NAMES.values())
    assert value_name("../x\0") == ".._x_"
