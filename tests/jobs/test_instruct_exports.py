"""`dsindex instruct --export`: the one law for folders in formats of other trainers, and what is in them."""

import json
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.cli.main import main
from dsindex.datasets.exports import EXPORT_MANIFEST
from dsindex.datasets.indexed import IndexedDataset
from dsindex.engine.progress import Reporter
from dsindex.errors import InputError, OutputError
from dsindex.jobs import instruct
from dsindex.jobs.exports import bridge, parquet
from dsindex.jobs.instruct import run_instruct
from tests.jobs.instruct import instruct_jobs
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN
from tests.support.jobs import run_config

CONFIG = instruct_jobs.SPLIT_IN_PARTS
KINDS = ("parquet", "bridge")
FOLDERS = ("chat_parquet", "chat_bridge_768")
SPLITS = {"train": "train", "valid": "validation", "test": "test"}


@pytest.fixture(scope="module", autouse=True)
def small_files():
    """Several files and row groups for each split, although there are few conversations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "ROWS_PER_FILE", 60)
        patch.setattr(bridge, "TOKENS_PER_FILE", 768 * 40)
        patch.setattr(bridge, "ROWS_PER_GROUP", 10)  # the plan has it, so other processes need no change
        yield


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """Conversations, and a bad record among them."""
    path = tmp_path_factory.mktemp("inputs") / "chats.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:160]
    path.write_bytes(b"\n".join([*lines[:50], b"{broken", b"", *lines[50:]]) + b"\n")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory, chats):
    """A finished job with all exports."""

    folder = tmp_path_factory.mktemp("made")
    reporter = Reporter()
    run_instruct(job(folder, chats, shard_size="64MiB", workers=1), CONFIG, reporter=reporter)
    return folder


def job(folder, chats, **options):
    return instruct_jobs.job(folder / "chat", **{"input": (str(chats),), "export": KINDS, **options})


def exported(folder, *folders):
    """All files of exports; of the manifests, the part that is under the law."""
    return {
        str(path.relative_to(folder)): json.dumps(json.loads(path.read_bytes())["content"]).encode()
        if path.name == EXPORT_MANIFEST
        else path.read_bytes()
        for name in folders or FOLDERS
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }


def names_in(folder):
    return {path.name for path in folder.iterdir() if path.is_dir() or path.name.endswith(("lock", "partial"))}


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", [{"shard_size": "3KiB", "workers": 3}, {"executor": "processes"}], ids=str)
def test_same_bytes_for_any_shard_size_and_executor(tmp_path, chats, made, way):
    run_config(job(tmp_path, chats, **way), CONFIG)
    assert exported(tmp_path) == exported(made)
    assert names_in(tmp_path) == set(FOLDERS)


def test_exports_are_added_to_a_finished_job_without_doing_it_again(tmp_path, chats, made, monkeypatch):
    run_config(job(tmp_path, chats, export=()), CONFIG)
    assert names_in(tmp_path) == set()
    monkeypatch.setattr(instruct, "encode_shard", None)
    first = run_config(job(tmp_path, chats), CONFIG)
    assert exported(tmp_path) == exported(made)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    again = run_config(job(tmp_path, chats), CONFIG)
    assert [[export.already_complete for export in report.exports] for report in (first, again)] == [
        [False] * 2,
        [True] * 2,
    ]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == times


def test_a_failure_keeps_finished_files_and_the_next_run_makes_the_others(tmp_path, chats, made, monkeypatch):
    write, written = parquet.write_rows, []

    def fail_third(task):
        if len(written) == 2:
            raise InputError("the storage went away")
        written.append(task.name)
        return write(task)

    config = job(tmp_path, chats, export=("parquet",), workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "write_rows", fail_third)
        with pytest.raises(InputError, match="the storage went away"):
            run_config(config, CONFIG)
    [partial] = tmp_path.glob("chat_parquet.*.partial")
    (partial / f"{written[0]}.{'0' * 32}.tmp").write_bytes(b"of a worker that was killed")

    def count(task):
        written.append(task.name)
        return write(task)

    monkeypatch.setattr(parquet, "write_rows", count)
    run_config(config, CONFIG)
    assert exported(tmp_path, "chat_parquet") == exported(made, "chat_parquet")
    assert len(written) == len(set(written)) == len(list((tmp_path / "chat_parquet").glob("*.parquet")))
    assert names_in(tmp_path) == {"chat_parquet"}


def test_publishing_that_was_cut_off_is_finished(tmp_path, chats, made, monkeypatch):
    """The old folder is moved aside, and the new one is not there yet."""
    config = job(tmp_path, chats, export=("bridge",))
    run_config(config, CONFIG)
    rename, renamed = os.rename, []

    def fail_second(source, target):
        renamed.append(target)
        if len(renamed) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_second)
        with pytest.raises(KeyboardInterrupt):
            run_config(config.model_copy(update={"fresh": True}), CONFIG)
    assert not (tmp_path / "chat_bridge_768").exists()
    run_config(config, CONFIG)
    assert exported(tmp_path, "chat_bridge_768") == exported(made, "chat_bridge_768")


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_the_trainable_tokens(made, split):
    texts, masks = (IndexedDataset(made / f"chat_{split}_{what}") for what in ("text_document", "loss_mask"))
    paths = sorted((made / "chat_parquet").glob(f"{SPLITS[split]}-*.parquet"))
    rows = pa.concat_tables([pq.read_table(path) for path in paths]).to_pylist()
    assert len(paths) == -(-len(texts) // 60)
    assert len(rows) == len(texts)
    for row, tokens, mask in zip(rows, texts, masks, strict=True):
        assert row["input_ids"] == tokens.tolist()
        assert row["labels"] == np.where(mask, tokens.astype(int), -100).tolist()
        assert row["attention_mask"] == [1] * len(tokens)


@pytest.mark.parametrize("split", SPLITS)
def test_packs_have_every_sequence_once_and_the_mask_of_the_next_token(made, split):
    texts, masks = (IndexedDataset(made / f"chat_{split}_{what}") for what in ("text_document", "loss_mask"))
    tables = [pq.read_table(path) for path in sorted((made / "chat_bridge_768").glob(f"{SPLITS[split]}-*.idx.parquet"))]
    rows = pa.concat_tables(tables).to_pylist()
    seen = []
    for row in rows:
        ends = [*row["seq_start_id"][1:], len(row["input_ids"])]
        assert sum(end - begin - 1 for begin, end in zip(row["seq_start_id"], ends, strict=True)) <= 768
        for begin, end, number in zip(row["seq_start_id"], ends, row["sequences"], strict=True):
            assert row["input_ids"][begin:end] == texts[number].tolist()
            assert row["loss_mask"][begin:end] == [*masks[number][1:].tolist(), 0]
            seen.append(number)
    assert sorted(seen) == list(range(len(texts)))
    metadata = json.loads((made / "chat_bridge_768" / bridge.METADATA_FILE).read_bytes())[list(SPLITS).index(split)]
    assert metadata["max_samples_per_bin"] == max(len(row["sequences"]) for row in rows)
    assert metadata["dataset_max_seqlen"] == int(texts.sequence_lengths.max()) - 1


@pytest.mark.parametrize("fresh", [False, True])
def test_somebody_elses_file_is_never_replaced(tmp_path, chats, fresh):
    (tmp_path / "chat_parquet").mkdir()
    (tmp_path / "chat_parquet" / "train-00000-of-00001.parquet").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"train-00000-of-00001\.parquet: expected only files that dsindex wrote"):
        run_config(job(tmp_path, chats, fresh=fresh), CONFIG)
    assert (tmp_path / "chat_parquet" / "train-00000-of-00001.parquet").read_bytes() == b"mine"
    assert not list(tmp_path.glob("chat_*.idx"))


def test_exports_of_earlier_tokens_are_replaced_or_removed(tmp_path, chats):
    run_config(job(tmp_path, chats, export=("parquet", "bridge")), CONFIG)
    before = exported(tmp_path, "chat_parquet")
    (tmp_path / "chat_bridge_768" / "notes.txt").write_text("mine")
    longer = tmp_path / "longer.jsonl"
    longer.write_bytes(CONVERSATIONS.read_bytes())
    config = job(tmp_path, longer, export=("parquet",), fresh=True)
    run_config(config, CONFIG)
    assert exported(tmp_path, "chat_parquet") != before
    assert names_in(tmp_path) == {"chat_parquet", "chat_bridge_768"}
    assert (tmp_path / "chat_bridge_768" / "notes.txt").read_text() == "mine"


def test_the_command_says_what_it_exported(tmp_path, chats, cli):
    config = tmp_path / "chat.json"
    config.write_text(json.dumps({**SPEC, "job": {"export": "parquet"}}))
    command = ["instruct", str(config), "--input", str(chats), "--tokenizer-model", str(OWN.plain_tokenizer)]
    command += ["--output-prefix", str(tmp_path / "chat"), "--executor", "local", "--on-bad-record", "quarantine"]
    said = cli(command).out
    assert "chat_parquet/: export parquet" in said
    assert "train: 160 rows, " in said
    assert "--export bridge needs --seq-length" in cli([*command, "--export", "bridge"], 2).err


def test_inspect_and_verify_know_exports(tmp_path, made, cli):
    folder = shutil.copytree(made / "chat_bridge_768", tmp_path / "chat_bridge_768")
    targets = sum(int(mask[1:].sum()) for mask in IndexedDataset(made / "chat_train_loss_mask"))
    said = cli(["inspect", str(folder)]).out
    assert "export: bridge" in said
    assert re.search(rf"train: \d+ rows, [\d,]+ tokens, [\d,]+ trainable, {targets:,} targets", said)
    files = sorted(folder.glob("train-*.parquet"))
    shutil.copy(files[0], tmp_path / "moved.parquet")
    assert "export: bridge" in cli(["inspect", str(tmp_path / "moved.parquet")]).out
    assert "intact" in cli(["verify", str(folder)]).out

    data = bytearray(files[0].read_bytes())
    data[100] ^= 1
    files[0].write_bytes(data)
    assert f"{files[0]}: expected the digest" in cli(["verify", str(folder)], 1).out
    files[0].write_bytes(data[:100])
    assert "as in the manifest, got 100 bytes" in cli(["inspect", str(folder)], 1).out
    assert main(["verify", str(folder), "--against-source"]) == 2
    assert main(["inspect", str(files[0])]) == 1
