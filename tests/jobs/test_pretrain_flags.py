"""Flags of pretrain_gpt.py, pasted to `dsindex index` or `build`: each is an option, named in a note, or refused."""

import os
import shlex
from importlib.metadata import PackageNotFoundError

import pytest

from dsindex.cli.main import main
from dsindex.options.megatron_flags import (
    PRETRAIN_FLAGS,
    REFUSED_OF_JOBS,
    describe_pretrain_flags,
    split_pretrain_flags,
)
from tests.support.golden import GOLDEN

JOB = """
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel --num-layers 32
    --hidden-size 4096 --micro-batch-size 1 --lr 3.0e-4 --min-lr=3.0e-5 --lr-warmup-init -1e-9 --bf16
    --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model --iterations-to-skip 5 6 --log-interval 100
"""
OWN_FLAGS = f"--data-path {GOLDEN / 'merged'} --seq-length 32 --num-samples 100,10,10 --split 90,5,5 --seed 7"
OWN_FLAGS += " --plain-names"


def test_flags_of_a_job_change_nothing_and_are_named_once(tmp_path, cli):
    own = ["index", *shlex.split(OWN_FLAGS), "--executor", "local", "--data-cache-path"]
    assert "without effect" not in cli([*own, str(tmp_path / "alone")]).err
    shown = cli([*own, str(tmp_path / "pasted"), *shlex.split(JOB)]).err
    assert sorted(os.listdir(tmp_path / "pasted")) == sorted(os.listdir(tmp_path / "alone"))
    notes = [line for line in shown.splitlines() if "without effect" in line]
    assert len(notes) == 1
    for word in shlex.split(JOB):
        if word.startswith("--"):
            assert notes[0].replace(",", " ").split().count(word.partition("=")[0]) == 1, word
    assert "--tokenizer-type and --tokenizer-model (the caches' names have the tokenizer from --like" in notes[0]


@pytest.mark.parametrize("name", sorted(REFUSED_OF_JOBS))
def test_flags_that_change_caches_say_what_to_do(name):
    with pytest.raises(ValueError, match=f"^--{name}: "):
        describe_pretrain_flags([name])
    assert name in PRETRAIN_FLAGS


def test_refused_flag_is_a_usage_error(capsys):
    assert main(["index", *shlex.split(OWN_FLAGS), "--mock-data"]) == 2
    assert "dsindex index: --mock-data: such a job makes up its data and looks for no caches" in capsys.readouterr().err
    assert main(["build", "--data-path", "x"]) == 2
    assert "dsindex build: --data-path: a build indexes its own output" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "remaining", "found"), [
    ("--lr 1 --seed 2", "--seed 2", {"lr": ("1",)}),
    ("--lr=1 --lr-warmup-init -1.5", "", {"lr": ("1",), "lr-warmup-init": ("-1.5",)}),
    ("--cp-comm-type p2p a2a --bf16", "", {"cp-comm-type": ("p2p", "a2a"), "bf16": ()}),
    ("--spec", "", {"spec": ()}),
    ("--data-path a b --bf16 --data-path c", "--data-path a b --data-path c", {"bf16": ()}),
    ("--micro-batch 4", "--micro-batch 4", {}),
    ("--seed 1 -- --bf16", "--seed 1 -- --bf16", {}),
])  # fmt: skip
def test_flags_are_separated_with_their_values(words, remaining, found):
    own = {"--data-path", "--seed"}
    assert split_pretrain_flags(words.split(), own=own) == (remaining.split(), found)


@pytest.mark.parametrize(("words", "message"), [
    ("--data-path a --bf16 b", "--bf16: expected no value, as in pretrain_gpt.py, got b"),
    ("--bf16=yes", "--bf16: expected no value, as in pretrain_gpt.py, got yes"),
    ("--lr --bf16", "--lr: expected one value, as in pretrain_gpt.py, got none"),
    ("--data-path a --lr 1 b", "--lr: expected one value, as in pretrain_gpt.py, got 1 b"),
])  # fmt: skip
def test_no_word_is_lost(words, message, cli):
    assert message in cli(["index", *words.split()], 2).err


@pytest.mark.parametrize("installed", [None, "0.19.1", "0.12.0"])
def test_a_job_without_a_release_is_refused_or_has_the_installed_one(installed, tmp_path, cli, monkeypatch):
    def version(name):
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("importlib.metadata.version", version)
    own = ["index", "--data-path", str(GOLDEN / "merged"), "--seq-length", "32", "--split", "90,5,5"]
    job = ["--train-iters", "10", "--global-batch-size", "4", "--eval-interval", "10", "--eval-iters", "1"]
    job += ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100", "--data-cache-path", str(tmp_path / "cache")]
    if installed == "0.19.1":
        cli([*own, *job])
        names = os.listdir(tmp_path / "cache")
        assert names
        assert all(len(name.partition("-")[0]) == 32 for name in names)
    else:
        assert "need --megatron-release" in cli([*own, *job], 2).err
        assert "give --plain-names" in cli([*own, *job[:8], "--data-cache-path", str(tmp_path / "cache")], 2).err
        assert not (tmp_path / "cache").exists()
        cli([*own, *job, "--plain-names"])
        assert any(name.startswith("merged-") for name in os.listdir(tmp_path / "cache"))
