"""`dsindex instruct --export`: the one law for folders in formats of other trainers, and what is in them."""

import itertools
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.chat import exports as row_plans
from dsindex.cli.main import main
from dsindex.commands import instruct
from dsindex.commands import instruct_exports as exports
from dsindex.datasets.indexed import IndexedDataset
from dsindex.errors import OutputError
from dsindex.formats.manifest import EXPORT_MANIFEST
from tests.commands.instruct import instruct_jobs
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN
from tests.support.jobs import run_config

CONFIG = instruct_jobs.SPLIT_IN_PARTS
SPLITS = {"train": "train", "valid": "validation", "test": "test"}


@pytest.fixture(scope="module", autouse=True)
def small_files():
    """Several files and row groups for each split; the tasks have their sizes, so other processes need no change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_plans, "TOKENS_PER_FILE", 768 * 20)
        patch.setattr(row_plans, "ROWS_PER_GROUP", 5)
        yield


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Conversations, and a bad record among them."""
    path = tmp_path_factory.mktemp("inputs") / "chats.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:160]
    path.write_bytes(b"\n".join([*lines[:50], b"{broken", *lines[50:]]))
    return path


@pytest.fixture(scope="module", params=[1, 16])
def finished_job(request, tmp_path_factory, chats):
    """A finished job with all exports, and the multiple to which conversations are padded."""
    folder = tmp_path_factory.mktemp("made")
    run_config(job(folder, chats, shard_size="64MiB", workers=1, pad_to_multiple=request.param), CONFIG)
    return folder, request.param


def job(folder, chats, **options):
    defaults = {"input": (str(chats),), "export": ("parquet", "bridge"), **options}
    return instruct_jobs.job(folder / "chat", **defaults)


def read_exports(folder):
    """All files of exports; of the manifests, the part that is under the law."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("chat_[pb]*[0-9]/*")}
    manifests = {name: json.loads(data) | {"plan": None} for name, data in files.items() if EXPORT_MANIFEST in name}
    return files | manifests


def folders_in(folder):
    return {path.name for path in folder.iterdir() if path.is_dir()}


def rows_of(folder, split):
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob(f"{split}-*.parquet"))]).to_pylist()


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", [{"shard_size": "3KiB", "workers": 3}, {"executor": "processes"}], ids=str)
def test_same_bytes_for_any_shard_size_and_executor(tmp_path, chats, finished_job, way):
    folder, multiple = finished_job
    run_config(job(tmp_path, chats, pad_to_multiple=multiple, **way), CONFIG)
    assert read_exports(tmp_path) == read_exports(folder)
    assert folders_in(tmp_path) == folders_in(folder)


@pytest.mark.parametrize("split", SPLITS)
def test_packs_have_every_conversation_once_with_its_mask(finished_job, split):
    folder, multiple = finished_job
    texts, masks = (IndexedDataset(folder / f"chat_{split}_{suffix}") for suffix in ("text_document", "loss_mask"))
    padded = f"_pad{multiple}" if multiple > 1 else ""
    for kind in ("parquet", "bridge"):
        numbers = []
        for row in rows_of(folder / f"chat_{kind}_768{padded}", SPLITS[split]):
            lengths = row.get("seq_lengths") or np.diff([*row.get("seq_start_id", []), len(row["input_ids"])]).tolist()
            begins = [0, *itertools.accumulate(lengths)]
            assert sum(lengths) - (kind == "bridge") * len(lengths) <= 768
            for begin, length, number in zip(begins, lengths, row["sequences"], strict=False):
                tokens, mask = texts[number].tolist(), masks[number].tolist()
                end = begin + len(tokens)
                assert (length - (kind == "bridge")) % multiple == 0
                assert row["input_ids"][begin:end] == tokens
                assert row["input_ids"][end : begin + length] == [0] * (length - len(tokens))
                if kind == "bridge":
                    assert row["loss_mask"][begin : begin + length] == [*mask[1:], 0] + [0] * (length - len(tokens))
                else:
                    labels = [-100, *(t if m else -100 for t, m in zip(tokens[1:], mask[1:], strict=True))]
                    assert row["labels"][begin : begin + length] == labels + [-100] * (length - len(tokens))
                    assert row["position_ids"][begin : begin + length] == list(range(length))
                    assert row["attention_mask"] == [1] * len(row["input_ids"])
                numbers.append(number)
        assert sorted(numbers) == list(range(len(texts)))


def test_bridge_gets_the_facts_of_its_own_packer(finished_job):
    folder, multiple = finished_job
    path = folder / ("chat_bridge_768" + (f"_pad{multiple}" if multiple > 1 else ""))
    for split, facts in zip(SPLITS.values(), json.loads((path / exports.METADATA_FILE).read_bytes()), strict=True):
        rows = rows_of(path, split)
        assert facts["max_samples_per_bin"] == max(len(row["sequences"]) for row in rows)
        assert facts["pack_size"] == 768
        lengths = [len(row["input_ids"]) - len(row["sequences"]) for row in rows]
        assert facts["min_packed_seqlen"] == min(lengths)
        assert facts["packing_efficiency"] == round(sum(lengths) / len(rows) / 768 * 100, 2)


def test_without_packs_a_row_is_a_conversation(tmp_path, chats):
    report = run_config(job(tmp_path, chats, export=("parquet",), seq_length=None), CONFIG)
    for split, name in SPLITS.items():
        texts, masks = (IndexedDataset(tmp_path / f"chat_{split}_{kind}") for kind in ("text_document", "loss_mask"))
        rows = rows_of(tmp_path / "chat_parquet", name)
        assert len(rows) == len(texts) == report.exports[0].splits[name]["rows"]
        for row, tokens, mask in zip(rows, texts, masks, strict=True):
            labels = np.where(mask, tokens.astype(int), -100).tolist()
            assert row == {"input_ids": tokens.tolist(), "attention_mask": [1] * len(tokens), "labels": labels}
    assert len(list((tmp_path / "chat_parquet").glob("train-*"))) > 1
    metadata = pq.read_metadata(min((tmp_path / "chat_parquet").glob("train-*")))
    assert metadata.row_group(0).num_rows == row_plans.ROWS_PER_GROUP


def test_exports_are_added_to_a_finished_job_without_doing_it_again(tmp_path, chats, monkeypatch):
    run_config(job(tmp_path, chats, export=()), CONFIG)
    assert folders_in(tmp_path) == set()
    monkeypatch.setattr(instruct, "encode_shard", None)
    first = run_config(job(tmp_path, chats), CONFIG)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    second = run_config(job(tmp_path, chats), CONFIG)
    assert [export.already_complete for run in (first, second) for export in run.exports] == [False] * 2 + [True] * 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == before
    (tmp_path / "chat_parquet_768" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt: not part of an export of dsindex"):
        run_config(job(tmp_path, chats, replace=True, split_seed=5), CONFIG)


@pytest.mark.parametrize("name", ["chat_parquet_768", "chat_parquet_768/train-00000-of-00001.parquet"])
def test_somebody_elses_file_is_never_replaced(tmp_path, chats, name):
    """With the name of an export, or in its folder without a manifest."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match=r"chat_parquet_768\S*: not part of an export of dsindex"):
        run_config(job(tmp_path, chats), CONFIG)


def test_the_command_and_inspect_know_exports(tmp_path, chats, cli):
    config = tmp_path / "chat.json"
    config.write_text(json.dumps({**SPEC, "job": {"export": "bridge"}}))
    command = ["instruct", str(config), "--input", str(chats), "--tokenizer-model", str(OWN.plain_tokenizer)]
    command += ["--output-prefix", str(tmp_path / "chat"), "--executor", "local", "--on-bad-record", "quarantine"]
    assert "--export bridge needs --seq-length" in cli(command, 2).err
    output = cli([*command, "--seq-length", "768", "--split", "8,1,1", "--longer-than-pack", "split-turns"]).out
    assert "chat_bridge_768/: export bridge" in output
    assert re.search(r"train: \d+ rows, ", output)
    folder = tmp_path / "chat_bridge_768"
    targets = sum(int(mask[1:].sum()) for mask in IndexedDataset(tmp_path / "chat_train_loss_mask"))
    output = cli(["inspect", str(folder)]).out
    assert "export: bridge" in output
    assert cli(["inspect", str(folder / "export.manifest.json")]).out == output
    assert re.search(rf"train: \d+ rows, [\d,]+ tokens, [\d,]+ trainable, {targets:,} targets", output)
    files = sorted(folder.glob("train-*.parquet"))
    assert "but: export" in cli(["verify", str(folder)], 1).err
    files[0].write_bytes(files[0].read_bytes()[:100])
    assert ": 100 bytes, and 23241 bytes are recorded" in cli(["inspect", str(folder)], 1).out
    assert main(["inspect", str(files[0])]) == 1
