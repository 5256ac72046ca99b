"""Files, patterns, folders and lists: which inputs they are, in which order, and what is refused by name."""

import errno
import json
import os
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.runtime.input_paths import find_paths, find_split, require_all_parts
from dsindex.runtime.plan import examine_inputs
from dsindex.runtime.work_folder import MARKER_FILE
from dsindex.store.listing import expand_pattern, is_match
from tests.support.golden import LINES, OWN
from tests.support.published import published

TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod")


pytestmark = pytest.mark.usefixtures("in_folder")


def write(*paths, content=b"{}\n"):
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)


def paths_of(*patterns, **options):
    return [path.path for path in find_paths(patterns, **options)]


def refusal(*patterns, **options):
    with pytest.raises(InputError) as raised:
        examine_inputs(find_paths(patterns, **options))
    assert "\n" not in raised.value.args[0], "the hint is a line of its own"
    return str(raised.value)


PART = st.text("ab.-_/é\udcff😀", min_size=1, max_size=6).filter(lambda text: "/" not in text and text[0] not in "._")


@given(st.lists(st.lists(PART, min_size=1, max_size=3), min_size=1, max_size=12))
def test_order_of_a_folder_is_that_of_the_bytes_of_its_names(tmp_path_factory, paths):
    folder = tmp_path_factory.mktemp("in")
    written_paths = set()
    for *folders, name in paths:
        path = folder.joinpath(*(f"{part}-" for part in folders), f"{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n")
        written_paths.add(path)
    expected = sorted(written_paths, key=lambda path: [os.fsencode(part) for part in path.relative_to(folder).parts])
    assert paths_of(str(folder)) == [str(path) for path in expected]


def test_folder_takes_what_is_data():
    names = ["A.JSON", "b.ndjson.zst", "c.json.xz", "d.parquet", "e.jsonl.bgz", "f.arrow"]
    write(*(f"data/{name}" for name in names))
    assert paths_of("data") == [f"data/{name}" for name in names]
    write("in/_SUCCESS.json", "in/__MACOSX/._a.jsonl", "in/.hidden.jsonl", "in/.cache/x.jsonl", "in/notes.txt")
    write("in/README.md", "in/dataset_infos.json")
    write("in/x_text_document.manifest.json", "in/x_text_document.provenance.parquet", "in/x.quarantine.jsonl.zst")
    write("in/c-GPTDataset-train-dsindex.json", "in/x.progress.json")
    write(f"in/x.build/{MARKER_FILE}", "in/x.build/plan.json", "in/x.build/ledger.jsonl", "elsewhere/far.jsonl")
    Path("in/loop").symlink_to(".")
    Path("in/linked").symlink_to("../elsewhere")
    assert refusal("in") == (
        "in: no file with records (.jsonl, .ndjson, .json, .parquet, .arrow, also compressed) is in this folder; "
        "it has 7 .json, 4 .jsonl, README.md, x_text_document.provenance.parquet, notes.txt\n"
        "hint: name other files by a pattern"
    )
    Path("in/near.jsonl").symlink_to("../elsewhere/far.jsonl")
    assert paths_of("in") == ["in/near.jsonl"]


def test_drawn_patterns_take_each_file_once_and_the_same_in_a_bucket_as_on_a_disk():
    rng = random.Random(3)
    paths = {"/".join(["t", *rng.choices(["a", "b", ".h", "ab"], k=rng.randrange(3)), f"{n}.x"]) for n in range(40)}
    write(*paths)
    for _ in range(300):
        folders = rng.choices(["**", "**", "*", "a", ".*", "a*"], k=rng.randrange(5))
        parts = ["t", *folders, rng.choice(["*.x", "1?.x", "**"])]
        matching = sorted(path for path in paths if is_match(path.split("/"), parts))
        try:
            assert [path for path, _ in expand_pattern("/".join(parts))] == matching, parts
        except InputError:
            assert not matching
    assert not is_match(["a"] * 400, ["**", "a"] * 100 + ["b"]), "many stars take no time"
    assert is_match(["a"] * 400, ["**", "a"] * 100)


def test_patterns_follow_links_but_not_in_circles():
    write("in/a.jsonl", "in/sub/b.jsonl", "elsewhere/c.jsonl")
    Path("in/far").symlink_to("../elsewhere")
    Path("in/near").symlink_to("sub")
    names = ["in/a.jsonl", "in/far/c.jsonl", "in/near/b.jsonl", "in/sub/b.jsonl"]
    assert paths_of("in/**/*.jsonl") == names
    Path("elsewhere/back").symlink_to("../in")
    assert re.match(r"in/far/\S*: a link to a folder around it, which `\*\*` would follow", refusal("i*/**"))
    assert paths_of("in") == ["in/a.jsonl", "in/sub/b.jsonl"]


@pytest.mark.parametrize(("exclude", "names"), [
    (["*.log.jsonl"], ["a.jsonl", "c.jsonl", "tmp/d.jsonl"]), (["tmp/**", "c.*"], ["a.jsonl", "b.log.jsonl"]),
    (["in/c.jsonl", "m/d.jsonl"], ["a.jsonl", "b.log.jsonl", "c.jsonl", "tmp/d.jsonl"]),
])  # fmt: skip
def test_excluded_inputs_are_left_out(exclude, names):
    write(*(f"in/{name}" for name in ("a.jsonl", "b.log.jsonl", "c.jsonl", "tmp/d.jsonl")))
    assert [file.path for file in find_paths(["in"], exclude=exclude)] == [f"in/{name}" for name in names]
    expected_paths = [f"in/{name}" for name in names if (name, exclude[0]) != ("c.jsonl", "in/c.jsonl")]
    assert [file.path for file in find_paths(["in/**"], exclude=exclude)] == expected_paths


def test_empty_file_beside_others_is_noted(cli):
    write("in/a.jsonl", content=b"")
    write("in/b.jsonl", content=LINES[0])
    printed = cli(["build", "--input", "in", *TOKENIZER, "--output-prefix", "out/x"])
    assert re.search(r"empty inputs: .*in/a.jsonl", printed.err)
    assert "1 line = 1 kept" in printed.out


@pytest.mark.parametrize(("log", "message"), [
    ("sub/_delta_log/00000000000000000000.json", "in/sub: this is a Delta table"),
    ("sub/metadata/v1.metadata.json", "in/sub: this is an Iceberg table"),
    ("sub/.hoodie/hoodie.properties", "in/sub: this is a Hudi table"),
])  # fmt: skip
def test_table_with_a_log_is_refused(log, message):
    write("in/a.jsonl", "in/sub/data/a.parquet", f"in/{log}")
    assert refusal("in").startswith(message)


def test_values_of_folders_are_those_of_their_records(cli):
    rows = [{"lang": lang, "year": year, "text": f"{lang} {year}"} for lang in ("de", "en us") for year in (2023, 2024)]
    rows[1]["own"] = "x"
    for row in rows:
        folder = Path(f"in/lang={row['lang'].replace(' ', '%20')}/year={row['year']}")
        fields = {"text": row["text"], **({"year": "mine"} if "own" in row else {})}
        write(f"{folder}/a.jsonl", content=b"\n {} \n" + json.dumps(fields).encode() + b"\n")
        pq.write_table(pa.table({key: [value] for key, value in fields.items()}), folder / "b.parquet")
        empty = {"lang": row["lang"], "year": row["year"]}
        row["year"] = fields.get("year", row["year"])
        with open("whole.jsonl", "a") as file:
            file.write("\n" + "".join(json.dumps(record) + "\n" for record in (empty, row, row)))
    where = '(.lang | startswith("en")) and .year != 2023 or .year == "mine"'
    for keys, more in (("lang",), ()), (("text", "lang"), ()), (("y=.year | tostring",), ("--where", where)):
        for source in ("in", "whole.jsonl"):
            words = ["--json-keys", *keys, *more, "--on-bad-record", "quarantine", "--output-prefix", f"out/{source}"]
            cli(["build", "--input", source, *TOKENIZER, *words, "--replace"])
        names = [path.name.removeprefix("in_") for path in Path("out").glob("in_*.bin")]
        assert names
        for name in names:
            assert Path(f"out/in_{name}").read_bytes() == Path(f"out/whole.jsonl_{name}").read_bytes(), keys


@pytest.mark.parametrize(("call", "place", "pattern"), [
    ("scandir", "in/b", "in/*/*.jsonl"), ("lstat", "in/b/x.jsonl", "in/*/x.jsonl"),
])  # fmt: skip
def test_pattern_leaves_out_nothing_whose_disk_returns_an_error(monkeypatch, call, place, pattern):
    """glob takes such a folder for an empty one, and such a file for absent: it would be missing in the output."""
    write("in/a/x.jsonl", "in/b/x.jsonl")
    os.symlink("loop", "in/loop")  # matches nothing
    real, failures = getattr(os, call), [1]

    def failing(path):
        if str(path).endswith(place) and failures.append(failures.pop() - 1) is None and failures[0] >= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(os, call, failing)
    monkeypatch.setattr("dsindex.store.local.READ_PAUSES", (0.0, 0.0, 0.0))
    assert paths_of(pattern) == ["in/a/x.jsonl", "in/b/x.jsonl"]
    failures[0] = 4
    assert f"{place}: cannot be read (Input/output error)" in refusal(pattern)


def test_file_in_two_formats_is_refused():
    write("in/a.jsonl", "in/a.jsonl.gz", "in/b.ndjson", "in/sub/a.parquet")
    message = refusal("in")
    assert "a.jsonl.gz" in message
    assert "so its records would count twice" in message
    assert paths_of("in/*.jsonl", "in/b.ndjson") == ["in/a.jsonl", "in/b.ndjson"]


@pytest.mark.parametrize(("path", "split"), [
    ("data/books-00000-of-00012-0123456789abcdef.parquet", "books"),
    ("books-00000-of-00012.parquet", None), ("default/val/0000.parquet", "validation"), ("en/Test/x.jsonl", "test"),
    ("train/test_notes.jsonl", "train"), ("dev.jsonl", "validation"), ("wiki_evaluation2.jsonl.gz", "test"),
    ("my-training/0.csv", "train"), ("latest.jsonl", None), ("devices/trainer.jsonl", None),
])  # fmt: skip
def test_split_is_told_by_names(path, split):
    assert find_split(path.split("/")) == split


def test_several_splits_need_a_choice():
    write(*(f"in/data/train-{n:05}-of-00003.parquet" for n in range(3)), "in/data/test-00000-of-00001.parquet")
    write("in/data/extra.jsonl")
    assert refusal("in") == (
        "in: the folder has several splits; it has files without a split (1), test (1), train (3)\n"
        "hint: choose with --input-split NAME, or take them all with --input-split all"
    )
    assert paths_of("in", split="train") == [f"in/data/train-{n:05}-of-00003.parquet" for n in range(3)]
    assert len(paths_of("in", split="all")) == 5
    assert refusal("in", split="val").startswith("in: no file is of the split 'val'; it has files without a split (")


@pytest.mark.parametrize(("numbers", "missing"), [
    ([1, 2, 3, 4], None), ([0, 1, 3], "x-00002-of-00004.jsonl"), ([1, 2, 3], "x-00000-of-00004.jsonl"),
    ([0, 1, 2, 3, 7], None),
])  # fmt: skip
def test_missing_part_is_named(numbers, missing):
    with pytest.raises(InputError, match="000000001-of-999999999"):
        require_all_parts(["in/x-0-of-999999999.jsonl"])  # takes no time or memory
    write("in/whole.jsonl", *(f"in/x-{number:05}-of-00004.jsonl" for number in numbers))
    if missing is None:
        assert len(paths_of("in")) == len(numbers) + 1
    else:
        assert refusal("in").startswith(f"in/{missing}: this part is missing, 3 of 4 are there\nhint: fetch it, or")
    assert len(paths_of("in/x-*.jsonl")) == len(numbers)


def test_saved_datasets_are_taken_as_their_files_say():
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    write(*(f"in/one/{name}" for name in [*names, "dataset_info.json", "cache-0123456789abcdef.arrow"]))
    Path("in/one/state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    assert paths_of("in/one") == [f"in/one/{name}" for name in names]
    write("in/a.jsonl", "in/two.jsonl")
    assert paths_of("in") == ["in/a.jsonl", *paths_of("in/one"), "in/two.jsonl"]
    write("both/dataset_dict.json", "both/en/data.arrow", "both/de/data.arrow")
    assert paths_of("both", split="de") == ["both/de/data.arrow"]


@pytest.mark.parametrize(("state", "message"), [
    ({"_data_files": [{"filename": "a.arrow"}], "_indices_data_files": [{}]}, "call flatten_indices"),
    ("[", "save the dataset again with datasets.save_to_disk"),
], ids=["indices", "syntax"])  # fmt: skip
def test_state_is_not_trusted(state, message):
    write("in/a.arrow")
    Path("in/state.json").write_text(state if isinstance(state, str) else json.dumps(state))
    assert message in refusal("in")
    assert refusal("in").startswith("in/state.json: ")


def test_cache_of_the_hub_is_taken_by_its_snapshot():
    write("hub/blobs/0a1b", "hub/refs/main")
    Path("hub/snapshots/rev1/data").mkdir(parents=True)
    Path("hub/snapshots/rev1/data/train-00000-of-00001.parquet").symlink_to("../../../blobs/0a1b")
    assert paths_of("hub") == ["hub/snapshots/rev1/data/train-00000-of-00001.parquet"]
    Path("hub/snapshots/rev1/README.md").write_text("---\nconfigs: [{config_name: x, data_dir: /data/}]\n---\n# About")
    assert paths_of("hub") == paths_of("hub", config="x") == ["hub/snapshots/rev1/data/train-00000-of-00001.parquet"]
    first, second = "a" * 40, "b" * 40
    for name in (f"{first}/x.arrow", f"{first}/dataset_info.json", f"{first}.incomplete/x.arrow"):
        write(f"cache/{name}")
    assert paths_of("cache") == [f"cache/{first}/x.arrow"]
    write(f"cache/{second}/dataset_info.json")
    assert refusal("cache").startswith(f"cache: it has 2 revisions of a dataset ({first}, {second})")
    write("hub/snapshots/rev2/README.md")
    assert refusal("hub").startswith("hub: it has 2 revisions of a dataset (rev1, rev2)\nhint: name the folder")


def test_copy_of_a_dataset_has_the_configurations_of_its_readme():
    write("in/data/train/a.jsonl", "in/sample/b.jsonl", "in/sample/held.jsonl")
    configs = [
        {"config_name": "all", "default": True, "data_files": [{"split": "train", "path": "./data/*/*"}]},
        {"config_name": "sample", "data_dir": "./sample", "data_files": "b*"},
        {"config_name": "lost", "data_dir": "lost"},
    ]
    card = f"---\r\nlicense: mit\n\nconfigs:\n{yaml.safe_dump(configs)}tags: [a]\n---\n\nconfigs: none\n"
    Path("in/README.md").write_text(card)
    assert paths_of("in") == ["in/data/train/a.jsonl"]
    assert paths_of("in", config="sample") == ["in/sample/b.jsonl"]
    assert refusal("in", config="lost") == (
        "in: it has no file of the configuration that its README.md describes\n"
        "hint: choose another with --input-config NAME, or name files by a pattern"
    )
    Path("in/README.md").write_text(card.replace("default: true", "default: false"))
    problem = "in: several configurations; its README.md has all, sample, lost"
    assert refusal("in") == f"{problem}\nhint: choose with --input-config NAME"
    Path("in/README.md").write_text("Read me.\n---\nconfigs: [1]\n---\n")
    assert len(paths_of("in")) == 3


@pytest.mark.parametrize(("card", "problem"), [
    ("---\nlicense: mit\nconfigs: [}", "in/README.md, line 3: not valid YAML"),
    ("---\nconfigs: none\n---", "in/README.md: Expected `array`, got `str`"),
    ("---\nconfigs:\n- data_files: {train: a}\n---", "in/README.md: Expected `str | array | null`, got `object`"),
])  # fmt: skip
def test_readme_with_broken_configurations_is_refused(card, problem):
    write("in/a.jsonl")
    Path("in/README.md").write_text(card)
    assert refusal("in").startswith(problem)
    assert refusal("in").endswith("hint: name the files by a pattern instead")
    assert paths_of("in/*.jsonl") == ["in/a.jsonl"]


@pytest.mark.parametrize("content", [
    b"# mine\n\nb.jsonl\n  \na [1].jsonl\n#b.jsonl\nb.jsonl",
    b"\xef\xbb\xbfb.jsonl\r\na [1].jsonl\r\n\r\nb.jsonl\r\n",
    b"b.jsonl\0a [1].jsonl\0b.jsonl\0",
], ids=["lines", "windows", "print0"])  # fmt: skip
def test_list_names_files_literally(content):
    write("b.jsonl", "a [1].jsonl", "first.jsonl", "a 1.jsonl")
    write("list", content=content)
    assert paths_of("first.jsonl", lists=["list"]) == ["first.jsonl", "b.jsonl", "a [1].jsonl", "b.jsonl"]


@pytest.mark.parametrize(("content", "message"), [
    (b"good.jsonl\n\n*.jsonl\n", "list, line 3: *.jsonl: cannot be read (No such file or directory)"),
    (b"# nothing\n\n", "list: the list has no path"),
    (b"x" * 5000, "list, line 1: 5000 bytes are too long for a path\nhint: --input-list takes lists"),
    (b"-\n", "list, line 1: -: cannot be read (No such file or directory)"),
], ids=["pattern", "empty", "data", "dash"])  # fmt: skip
def test_wrong_list_is_named_with_its_line(content, message):
    write("good.jsonl")
    write("list", content=content)
    assert refusal(lists=["list"]).startswith(message)


def build(cli, prefix, *words):
    return cli(["build", *words, *TOKENIZER, "--output-prefix", f"out-{prefix}/x", "--shard-size", "4KiB"])


def test_folder_list_pattern_and_files_make_the_same_bytes_and_plan(cli):
    write("in/a/2.jsonl", content=b"".join(LINES[:30]))
    write("in/b.jsonl", content=b"".join(LINES[30:70]))
    write("list", content=b"in/a/2.jsonl\nin/b.jsonl\n")
    build(cli, "files", "--input", "in/a/2.jsonl", "in/b.jsonl")
    build(cli, "folder", "--input", "in")
    assert published(Path("out-folder")) == published(Path("out-files"))
    for words in (["--input", "in"], ["--input-list", "list"], ["--input", "in/a", "--input", "in/*.jsonl"]):
        assert build(cli, "files", *words).out.startswith("already complete")
