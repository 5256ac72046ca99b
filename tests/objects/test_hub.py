"""Inputs on the Hugging Face Hub: the bytes of the disk, of one commit, and what is said if they cannot be read."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("obstore")

from dsindex.datasets import IndexedDataset
from dsindex.errors import InputError
from dsindex.options.build import BuildConfig
from dsindex.runtime import input_paths
from dsindex.store import huggingface
from tests.faults.corpus import write_corpus
from tests.support.golden import OWN
from tests.support.hub_server import SIGNATURE, TOKEN, serving_hub
from tests.support.jobs import config_of, run_config

NAME = "hf://datasets/org/name"
PUBLISHED = ("bin", "idx", "provenance.parquet")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    contents = {"README.md": b"---"}
    for number, split in enumerate(("train", "test")):
        write_corpus(folder / "x.jsonl", num_lines=200, broken={}, seed=number)
        text = (folder / "x.jsonl").read_bytes()
        rows = [json.loads(line)["text"] for line in text.splitlines() if line.strip()]
        pq.write_table(pa.table({"text": rows}), folder / "x.parquet", row_group_size=50)
        contents[f"data/{split}-00000-of-00001.parquet"] = (folder / "x.parquet").read_bytes()
    return {**contents, "de/a b#%.jsonl": text, "en/part.jsonl": text}


@pytest.fixture
def hub(files, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/none")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface, "_commits", {})
    monkeypatch.setattr(huggingface, "_PAUSES", (0.01, 0.01))
    with serving_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.commit(files)
        server.inline = {"README.md", "en/part.jsonl"}
        yield server
        assert not server.leaks, "the storage was told a token"


def build(source, out, **options):
    return run_config(config_of(BuildConfig, source, append_eod=True, output_prefix=str(out / "x"), **options))


def outputs(out):
    return {suffix: (out / f"x_text_document.{suffix}").read_bytes() for suffix in PUBLISHED}


@pytest.mark.quick(2)
@pytest.mark.parametrize(("path", "options"), [
    ("/", {"input_split": "train"}), ("/data/test-*.parquet", {"shard_size": "4KiB", "workers": 3}),
    ("/**/*.jsonl", {}), ("/de/a b#%.jsonl", {}),
], ids=str)  # fmt: skip
def test_hub_gives_the_bytes_of_the_disk(hub, files, tmp_path, path, options):
    for name, content in files.items():
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).write_bytes(content)
    build(f"{tmp_path}/c{path}", tmp_path / "disk", **options)
    build(f"{NAME}{path}", tmp_path / "hub", **options)
    assert outputs(tmp_path / "hub") == outputs(tmp_path / "disk")
    manifest = (tmp_path / "hub" / "x_text_document.manifest.json").read_text()
    assert f"{NAME}@{hub.revisions['main']}/" in manifest
    assert SIGNATURE not in manifest
    assert not re.search(r"@main|localhost|127\.0\.0\.1", manifest)


def test_configurations_name_the_files(hub):
    hub.card = {"configs": [{"config_name": "de", "data_files": "de/*"}, {"config_name": "en", "data_dir": "en"}]}
    inputs = input_paths.find_paths([NAME], config="de")
    assert [file.path.partition("@")[2].partition("/")[2] for file in inputs] == ["de/a b#%.jsonl"]
    with pytest.raises(InputError, match=r"several configurations; its README.md has de, en\nhint: choose with --in"):
        input_paths.find_paths([NAME])


def test_a_later_job_of_the_same_process_sees_later_commits(hub, files):
    before = input_paths.find_paths([f"{NAME}/en/*"])
    hub.commit({**files, "en/more.jsonl": files["en/part.jsonl"]})
    after = input_paths.find_paths([f"{NAME}/en/*"])
    assert [file.path.rpartition("/")[2] for file in after] == ["more.jsonl", "part.jsonl"]
    assert f"@{hub.revisions['main']}/" in after[0].path
    assert len(before) == 1


CREDENTIALS = "the store does not accept the credentials of this node"
FAULTS = {
    "busy": ({"faults": [("hub /api", 429), ("storage", 503)]}, {}, "/de/*", None),
    "wrong token": ({}, {"HF_TOKEN": "hf_PlantedOther"}, "/en/*", f"{CREDENTIALS}) hint: renew them (on the Hub by "),
    "private": ({"private": True}, {}, "/en/*", "or it is private) hint: check its name, or set HF_TOKEN"),
    "no network": ({}, {"HF_ENDPOINT": "http://127.0.0.1:1"}, "/en/*", "the store cannot be reached"),
    "no such branch": ({}, {}, "@v9/en/*", "the dataset has no such revision) hint: check the name"),
    "no such file": ({}, {}, "/en/none.jsonl", "no such file in this commit of the dataset hint: check the path"),
    "no match": ({}, {}, "/en/*.txt", "nothing matches this pattern"),
    "gated": ({"gated": True}, {}, "/en/*", CREDENTIALS),
    "signature refused": ({"faults": [("storage", 403)] * 99}, {}, "/de/*", "the store does not allow it"),
}
"""Attributes of the Hub, variables, path, and what is said if the build does not go on."""


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_survived_or_told_in_one_sentence(hub, name, cli, tmp_path, monkeypatch):
    attributes, variables, path, message = FAULTS[name]
    for attribute, value in attributes.items():
        setattr(hub, attribute, list(value) if isinstance(value, list) else value)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    command = ["build", "--input", f"{NAME}{path}", "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
    command += ["--executor", "local", "--output-prefix", str(tmp_path / "x")]
    errors = re.sub(r"\s+", " ", cli(command, 0 if message is None else 1).err)
    assert not re.search(f"[Pp]lanted|{SIGNATURE}|Traceback", errors)
    assert message is None or message in errors
    assert bool(list(tmp_path.glob("x_*"))) == (message is None)


def test_token_opens_a_private_dataset_and_goes_to_the_hub_alone(hub, tmp_path, monkeypatch):
    hub.private = hub.gated = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    build(f"{NAME}/**/*.jsonl", tmp_path)
    assert any(request.startswith("storage") for request in hub.requests)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in written


def test_datasets_on_the_hub_are_opened(hub):
    prefix = OWN.run("eod").prefixes["text"]
    hub.commit({f"d/x.{suffix}": prefix.with_name(f"{prefix.name}.{suffix}").read_bytes() for suffix in ("bin", "idx")})
    on_hub, on_disk = IndexedDataset(f"{NAME}/d/x"), IndexedDataset(prefix)
    assert [tokens.tolist() for tokens in on_hub[:20]] == [tokens.tolist() for tokens in on_disk[:20]]
