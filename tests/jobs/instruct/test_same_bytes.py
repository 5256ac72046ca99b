"""The one law for tokens, masks and blocks: for any shard size and executor, after failures and kills."""

import os

import pytest
import yaml

from dsindex.cli.main import main
from dsindex.demo.run import write_demo_conversations
from dsindex.engine import frame as job_frame
from dsindex.errors import InputError
from dsindex.instruction.config import check_config
from tests.jobs.instruct.instruct_jobs import CHATML, SPLIT_IN_PARTS, job, published
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.killed import run_until_killed

WAYS = [
    {"executor": "local", "shard_size": "64MiB", "workers": 1},
    {"executor": "local", "shard_size": "3KiB", "workers": 3},
    {"executor": "processes", "shard_size": "40KiB", "workers": 2},
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, broken):
    """What every way of doing the same has to give."""
    folder = tmp_path_factory.mktemp("expected")
    config = job(folder / "chat", input=(str(broken),), shard_size="64MiB", workers=1)
    run_config(config, SPLIT_IN_PARTS)
    return published(folder)


def test_conversations_are_those_of_the_generator(tmp_path):
    write_demo_conversations(tmp_path / "c.jsonl", num_conversations=240)
    assert (tmp_path / "c.jsonl").read_bytes() == CONVERSATIONS.read_bytes()


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_same_bytes_for_any_shard_size_and_executor(tmp_path, broken, expected, way):
    run_config(job(tmp_path / "chat", input=(str(broken),), **way), SPLIT_IN_PARTS)
    assert published(tmp_path) == expected
    assert len(expected) == 3 * (3 * 3 + 2)  # per split three datasets, provenance and quarantine


@pytest.mark.exhaustive
def test_same_bytes_through_a_chat_template_for_any_shard_size_and_executor(tmp_path, broken):
    """Whole conversations are rendered by blocks, parts of split ones a few at a time."""
    instruction = check_config(
        {"chat_template": CHATML, "max_length": 120, "too_long": "split", "record_format": "sharegpt"}, source="test"
    )
    for number, way in enumerate(WAYS):
        config = job(tmp_path / str(number) / "chat", input=(str(broken),), **way)
        report = run_config(config, instruction)
        assert sum(split.statistics.sequences - split.statistics.conversations for split in report.splits) > 10
    assert published(tmp_path / "0") == published(tmp_path / "1") == published(tmp_path / "2")


def test_same_bytes_after_publishing_was_cut_off(tmp_path, broken, expected, monkeypatch):
    """Tokens go last: where their .idx stands, the mask is whole. Blocks are made of what is published."""
    config = job(tmp_path / "chat", input=(str(broken),))
    publish, calls = job_frame.publish, []

    def fail_third(dataset, *others):
        calls.append(dataset.target.prefix)
        if len(calls) == 2:
            raise InputError("the storage went away")
        publish(dataset, *others)

    monkeypatch.setattr(job_frame, "publish", fail_third)
    with pytest.raises(InputError, match="the storage went away"):
        run_config(config, SPLIT_IN_PARTS)
    assert [os.path.basename(prefix) for prefix in calls] == [
        "chat_train_loss_mask",
        "chat_train_text_document",
    ]
    assert not (tmp_path / "chat_train_text_document.idx").exists()
    monkeypatch.setattr(job_frame, "publish", publish)
    run_config(config, SPLIT_IN_PARTS)
    assert published(tmp_path) == expected


def test_same_bytes_after_a_kill(tmp_path, broken, expected):
    """The command, killed once some shards are committed; the same command again."""
    out = tmp_path / "out"
    config = tmp_path / "chat.yaml"
    config.write_text(yaml.safe_dump({**SPEC, "max_length": 768, "too_long": "split"}))
    command = ["instruct", str(config), "--input", str(broken)]
    command += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(out / "chat")]
    command += ["--seq-length", "768", "--split", "8,1,1", "--on-bad-record", "quarantine"]
    command += ["--shard-size", "1KiB", "--executor", "local", "--workers", "1"]
    run_until_killed(command, num_shards=3)
    assert published(out) == {}
    assert main(command) == 0
    assert published(out) == expected
