"""Inputs on the Hugging Face Hub: the bytes of the disk, of one commit, and what is said if they cannot be read."""

import json
import multiprocessing
import os
import pickle
import re
import time
from fnmatch import fnmatch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("obstore")

from dsindex.datasets import IndexedDataset
from dsindex.engine import input_paths
from dsindex.errors import InputError, PlanError
from dsindex.options.build import BuildConfig
from dsindex.store import hub as hub_store
from dsindex.store.reading import open_readable
from tests.faults.corpus import write_corpus
from tests.support.golden import OWN
from tests.support.hub_server import SIGNATURE, TOKEN, serving_hub
from tests.support.jobs import config_of, run_config

NAME = "hf://datasets/org/name"
PUBLISHED = ("bin", "idx", "provenance.parquet")


def rows_of(folder, number):
    """300 records as Parquet, with a column that nobody wants."""
    plain = folder / f"{number}.jsonl"
    write_corpus(plain, num_lines=300, broken={}, seed=number)
    rows = [json.loads(line) for line in plain.read_bytes().splitlines() if line.strip()]
    other = ["unwanted" * 2000] * len(rows)
    path = folder / f"{number}.parquet"
    table = pa.table({"text": [row["text"] for row in rows], "other": other})
    pq.write_table(table, path, row_group_size=100, use_dictionary=False, compression="none")
    return path.read_bytes()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    parts = {
        f"data/{split}-0000{n}-of-00002.parquet": rows_of(folder, n) for split in ("train", "test") for n in (0, 1)
    }
    text = (folder / "0.jsonl").read_bytes()
    return {"README.md": b"---", ".gitattributes": b"x", "de/a b#%.jsonl": text, "en/part.jsonl": text, **parts}


@pytest.fixture
def hub(files, monkeypatch):
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/none")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # of processes
    monkeypatch.setattr(hub_store, "_resolved", {})
    with serving_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.commit(files)
        server.inline = {"README.md", ".gitattributes", "en/part.jsonl"}
        yield server
        assert not server.leaks, "the storage was told a token or a signature"


def build(source, out, **options):
    return run_config(config_of(BuildConfig, source, append_eod=True, output_prefix=str(out / "x"), **options))


def outputs(out):
    return {suffix: (out / f"x_text_document.{suffix}").read_bytes() for suffix in PUBLISHED}


def on_disk(files, folder):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


WAYS = [{}, {"shard_size": "4KiB", "workers": 3}, {"executor": "processes"}]
SOURCES = [
    ("", {"input_split": "train"}), ("/data/", {"input_split": "test"}), ("/data", {"input_split": "all"}),
    ("/data/train-*.parquet", {}), ("/**/*.jsonl", {}), ("/en/part.jsonl", {}), ("/de/a b#%.jsonl", {}),
]  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("path", "options", "way"), [(*source, WAYS[number % 3]) for number, source in enumerate(SOURCES)], ids=str
)
def test_hub_gives_the_bytes_of_the_disk(hub, files, tmp_path, path, options, way):
    copy = on_disk(
        {name: content for name, content in files.items() if not path or name != "README.md"}, tmp_path / "c"
    )
    build(f"{copy}{path}", tmp_path / "disk", **options, input_format="auto")
    build(f"{NAME}{path}", tmp_path / "hub", **options, **way)
    assert outputs(tmp_path / "hub") == outputs(tmp_path / "disk")
    manifest = (tmp_path / "hub" / "x_text_document.manifest.json").read_text()
    assert f"{NAME}@{hub.revisions['main']}/" in manifest
    assert SIGNATURE not in manifest
    assert not re.search(r"@main|localhost|127\.0\.0\.1", manifest)


@pytest.mark.usefixtures("hub")
def test_address_takes_its_hub_along(files, monkeypatch):
    """The nodes of a cluster have an environment of their own."""
    [found] = input_paths.find_paths([f"{NAME}/en/part.jsonl"])
    sent = pickle.dumps(found.path)
    monkeypatch.delenv("HF_ENDPOINT")
    assert read_input(pickle.loads(sent)) == files["en/part.jsonl"]  # noqa: S301 - ours


@pytest.mark.usefixtures("hub")
def test_forked_reader_asks_the_hub(files):
    [found] = input_paths.find_paths([f"{NAME}/de/a b#%.jsonl"])
    assert read_input(found.path) == files["de/a b#%.jsonl"]  # the threads of a fork's parent
    process = multiprocessing.get_context("fork").Process(
        target=_read_in_fork, args=(found.path, len(files["de/a b#%.jsonl"]))
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0


def read_input(path):
    with open_readable(path) as file:
        return file.read_at(file.size_bytes, 0)


def _read_in_fork(path, size_bytes):
    os._exit(0 if len(read_input(path)) == size_bytes else 1)


def bytes_asked_for(hub):
    ranges = [re.search(r"bytes=(\d+)-(\d+)", each) for each in hub.requests if each.startswith("storage GET")]
    return sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found)


def test_small_row_groups_share_a_request(hub, tmp_path):
    """The footer is read once, each byte once but for a sample's, and the redirect is asked for once."""
    table = pa.table({"text": [f"text {n} " * 50 for n in range(5000)], "id": [f"id {n}" for n in range(5000)]})
    pq.write_table(table, tmp_path / "small.parquet", row_group_size=20, use_dictionary=False, compression="none")
    content = (tmp_path / "small.parquet").read_bytes()
    hub.commit({"small.parquet": content})
    build(f"{NAME}/small.parquet", tmp_path / "hub", workers=1)
    build(str(tmp_path / "small.parquet"), tmp_path / "disk", workers=1)
    assert outputs(tmp_path / "hub") == outputs(tmp_path / "disk")
    assert sum(each.startswith("storage GET") for each in hub.requests) < 12  # of 250 row groups
    assert bytes_asked_for(hub) < 1.5 * len(content)
    assert sum("/resolve/" in each for each in hub.requests) == 1
    assert sum(f"-{len(content) - 1}" in each for each in hub.requests) == 1


def test_commit_is_resolved_once_and_keeps_giving_the_same(hub, files, tmp_path, monkeypatch):
    first = hub.revisions["main"]
    build(f"{NAME}/en/*.jsonl", tmp_path / "a", keep_shards=True)
    assert sum("/api/datasets/org/name" in each and "/tree/" not in each for each in hub.requests) == 1
    monkeypatch.setattr(hub_store, "_resolved", {})
    hub.commit({**files, "en/part.jsonl": files["de/a b#%.jsonl"][: -len(files["de/a b#%.jsonl"]) // 2] + b"\n"})
    build(f"{NAME}@{first}/en/*.jsonl", tmp_path / "b")
    assert outputs(tmp_path / "b") == outputs(tmp_path / "a")
    said = f"{NAME} was at the commit {first} .{NAME}@{first}. and is at {hub.revisions['main']}"
    with pytest.raises(PlanError, match=rf"finished output of another plan is here: {said}; the input .* was written"):
        build(f"{NAME}/en/*.jsonl", tmp_path / "a")
    for path in (tmp_path / "a").glob("x_text_document.*"):
        path.unlink()
    with pytest.raises(PlanError, match=f"another plan are here: {said}; use the former options"):
        build(f"{NAME}/en/*.jsonl", tmp_path / "a")


CARD = {
    "configs": [
        {"config_name": "de", "data_files": "de/*"},
        {"config_name": "all", "data_files": [{"split": "dev", "path": ["en/*", "de/*"]},
                                              {"split": "train", "path": "data/train-*"}]},
        {"config_name": "below", "data_dir": "en"},
    ]
}  # fmt: skip


@pytest.mark.parametrize(("config", "split", "wanted"), [
    ("de", None, ["de/a b#%.jsonl"]), ("below", None, ["en/part.jsonl"]),
    ("all", "validation", ["de/a b#%.jsonl", "en/part.jsonl"]), ("all", "val", ["de/a b#%.jsonl", "en/part.jsonl"]),
    ("all", "train", ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]),
])  # fmt: skip
def test_configurations_name_the_files(hub, config, split, wanted):
    hub.card = CARD
    found = input_paths.find_paths([NAME], split=split, config=config)
    assert [path.path.split("/", 5)[5] for path in found] == wanted


@pytest.mark.parametrize(("options", "message"), [
    ({"config": "fr"}, "with the configuration 'fr', found de, all, below; check --input-config"),
    ({}, "expected one configuration, found de, all, below; choose with --input-config NAME"),
    ({"config": "all"}, "expected files of one split, found"),
    ({"config": "all", "split": "test"}, "expected files of the split 'test'"),
])  # fmt: skip
def test_configuration_that_cannot_be_told_is_refused(hub, options, message):
    hub.card = CARD
    with pytest.raises(InputError, match=message):
        input_paths.find_paths([NAME], **options)


def test_damaged_card_is_refused(hub):
    hub.card = {"configs": [{"config_name": 3}]}
    with pytest.raises(InputError, match=r"README\.md: config_name: .*; name the files by a pattern instead"):
        input_paths.find_paths([NAME])


API, TREE, FILE, STORAGE = "/api/datasets/org/name", "/tree/", "/resolve/", "storage"
BUSY, GATED = {"ratelimit": '"api";r=0;t=1'}, {"X-Error-Code": "GatedRepo"}
HTTP_FAULTS = {
    **{f"{place} {status}, twice": (place, status, BUSY if status == 429 else {}, 2, None)
       for place in (API, TREE, FILE, STORAGE) for status in (429, 503)},
    **{f"signed address refused with {status}, twice": (STORAGE, status, {}, 2, None) for status in (400, 403, 404)},
    "signed address always refused": (STORAGE, 403, {}, 99, r"\(localhost:\d+, .* answers with 403, again and again"),
    "storage always busy": (STORAGE, 503, {}, 99, "the store answers with 503, again and again.; run the same command"),
    "Hub always busy": (API, 429, BUSY, 99, "the Hub answers with 429, again and again.; run the same command again"),
    "Hub broken for files": (FILE, 500, {}, 99, "the Hub answers with 500, again and again.; run the same command"),
    "access withdrawn under way": (FILE, 403, GATED, 99, "the dataset is gated: ask for access at http"),
    "token withdrawn under way": (FILE, 401, {}, 99, r"the Hub does not accept the token \(status 401\): set HF_TOKEN"),
}  # fmt: skip
"""Part of an address, status, headers, number of answers, and what is said if the build does not go on."""
OTHER_FAULTS = {
    "signed addresses end": ({"ends_after": 1}, {}, "/data/train-*", None),
    "wrong token": ({}, {"HF_TOKEN": "hf_PlantedOther"}, "/en/*",
                    r"the Hub does not accept the token \(status 401\): set HF_TOKEN or run `hf auth login`"),
    "private": ({"private": True}, {}, "/en/*", "no such dataset, or it is private: check the name, or set HF_TOKEN"),
    "gated": ({"gated": True}, {}, "/en/*", "the dataset is gated: ask for access at http"),
    "renamed": ({"renamed": {"org/name": "org/new"}, "name": "org/new"}, {}, "/en/*", "write hf://datasets/org/new"),
    "offline": ({}, {"HF_HUB_OFFLINE": "1"}, "/en/*", "HF_HUB_OFFLINE is set: unset it, or name the folder"),
    "no network": ({}, {"HF_ENDPOINT": "http://127.0.0.1:1"}, "/en/*", "the Hub cannot be reached.; run the same comm"),
    "bad endpoint": ({}, {"HF_ENDPOINT": "http://user:planted-password@host"}, "/en/*", "HF_ENDPOINT: expected an"),
    "no such branch": ({}, {}, "@v9/en/*", "the dataset has no revision v9: check the branch, tag or commit"),
    "commit that is gone": ({}, {}, f"@{'0' * 40}/en/*", "the dataset has no revision 0{40}: check the branch, tag or"),
    "no such file": ({}, {}, "/en/none.jsonl", "there is no such file in this commit of the dataset; check the path"),
    "no such folder": ({}, {}, "/none/", "there is no such file or folder in this commit"),
    "no match": ({}, {}, "/en/*.txt", "expected at least one object to match"),
}  # fmt: skip
"""Attributes of the Hub, variables, path, and what is said if the build does not go on."""
FAULTS = HTTP_FAULTS | OTHER_FAULTS


@pytest.fixture(scope="module")
def tokens(files, tmp_path_factory):
    """Path in the dataset → the `.bin` of the same files on disk."""
    folder, made = tmp_path_factory.mktemp("tokens"), {}
    for number, path in enumerate(("/de/*", "/en/*", "/data/train-*")):
        on_disk({name: content for name, content in files.items() if fnmatch(f"/{name}", path)}, folder / f"{number}")
        build(f"{folder}/{number}{path}", folder / f"out{number}")
        made[path] = outputs(folder / f"out{number}")["bin"]
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_survived_or_told_in_one_sentence(hub, tokens, name, cli, tmp_path, monkeypatch):
    """A build that fails exits with 1, leaves nothing under a final name, and shows no token and no signature.

    Once the fault has passed, the same command makes the dataset.
    """
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(seconds / 100))
    monkeypatch.setattr("logging.raiseExceptions", False)  # huggingface_hub's handler has the stream of another test
    path = "/de/*"
    with pytest.MonkeyPatch.context() as patched:
        if name in HTTP_FAULTS:
            place, status, headers, times, said = HTTP_FAULTS[name]
            hub.faults = [(place, status, headers)] * times
        else:
            attributes, variables, path, said = OTHER_FAULTS[name]
            for attribute, value in attributes.items():
                patched.setattr(hub, attribute, value)
            for variable, value in variables.items():
                patched.setenv(variable, value)
            patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", "HF_HUB_OFFLINE" in variables)
        command = ["build", "--input", f"{NAME}{path}", "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
        command += ["--executor", "local", "--output-prefix", str(tmp_path / "x")]
        shown = re.sub(r"\s+", " ", cli(command, 0 if said is None else 1).err)
    assert not re.search(f"[Pp]lanted|{SIGNATURE}|Traceback", shown)
    if said is None:
        assert len(hub.faults) == 0
    else:
        assert re.search(said, shown), shown
        assert not list(tmp_path.glob("x_*"))
        hub.faults = []
    if path in tokens:
        cli(command, 0)
        assert outputs(tmp_path)["bin"] == tokens[path]


@pytest.mark.parametrize("kind", ["private", "gated"])
def test_token_of_the_user_opens_the_dataset(hub, kind, tmp_path, monkeypatch):
    """The token goes to the Hub alone, also for files that it serves itself; the fixture looks at the storage."""
    setattr(hub, kind, True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    build(f"{NAME}/**/*.jsonl", tmp_path)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in written
    assert SIGNATURE.encode() not in written


def test_datasets_on_the_hub_are_opened(hub):
    prefix = OWN.run("eod").prefixes["text"]
    hub.commit({f"d/x.{suffix}": prefix.with_name(f"{prefix.name}.{suffix}").read_bytes() for suffix in ("bin", "idx")})
    with IndexedDataset(f"{NAME}/d/x") as found, IndexedDataset(prefix) as wanted:
        assert [each.tolist() for each in found] == [each.tolist() for each in wanted]


def test_hub_is_not_written_to(cli):
    shown = cli(["build", "--input", "x", "--tokenizer-model", "x", "--output-prefix", f"{NAME}/out"], 2).err
    assert "the only object stores that are written to, got hf://" in re.sub(r"\s+", " ", shown)
