"""`dsindex index -- torchrun … pretrain_gpt.py …`: a job's command, pasted as it is."""

import json
import re
import shlex

import pytest

from tests.support.golden import OWN

pytestmark = pytest.mark.usefixtures("folder")
FLAGS = shlex.split(
    "--data-path web --split 90,5,5 --seq-length 30 --global-batch-size 8 --train-iters 20 --eval-interval 10 "
    "--eval-iters 2 --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/x"
)
RELEASE = ["--megatron-release", "0.19", "--executor", "local"]


def caches(folder):
    return {path.name for path in folder.glob("*.npy")}


COMMAND = ["torchrun", "--nnodes", "2", "/opt/Megatron-LM/pretrain_gpt.py", "--lr", "-1e-4", *FLAGS, "--bf16"]
CACHE = ["--data-cache-path", "cache"]


def test_command_makes_the_caches_of_its_flags(folder, cli):
    cli(["index", *FLAGS, *RELEASE, "--data-cache-path", "flags"])
    output = cli(["index", *RELEASE, *CACHE, "--", *COMMAND]).out
    assert caches(folder / "cache") == caches(folder / "flags") != set()
    assert "from the command: --data-path, --split, --seq-length, --global-batch-size" in output
    assert "no cache depends on --lr, --bf16" in output


def test_build_with_a_release_makes_the_caches_of_the_job(cli):
    tokenizer = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(OWN.plain_tokenizer)]
    text = ["--input", str(OWN.docs), "--append-eod", "--output-prefix", "out"]
    assert "needs --tokenizer-type, as" in cli(["build", *text, *FLAGS[2:14], *CACHE, *RELEASE, *tokenizer[2:]], 2).err
    cli(["build", *text, *FLAGS[2:14], *CACHE, *RELEASE, *tokenizer])
    job = ["pretrain_gpt.py", *FLAGS[2:14], *tokenizer, *CACHE, "--data-path", "out_text_document"]
    assert "3 of 3 caches ready" in cli(["index", "--explain", *RELEASE, "--", *job]).out


def test_flags_override_the_command(folder, cli):
    job = ["--data-path", "books", "--num-samples", "7", "--seq-length", "40", "--data-cache-path", "c", "--split", "1"]
    cli(["index", *job, *RELEASE, "--", *COMMAND])
    [described] = [json.loads(path.read_text()) for path in (folder / "c").glob("*description.txt")]
    assert [described[name] for name in ("dataset_path", "num_samples", "sequence_length")] == ["books", 7, 40]
    assert described["tokenizer"]["tokenizer_path"] == "/models/x"


def test_paths_of_the_job_are_read_here(folder, cli):
    job = ["--data-path", "/lustre/data/web", *FLAGS[2:], "--data-cache-path", "/lustre/data/cache"]
    cli(["index", "--dataset-path-as", f"{folder}=/lustre/data", *RELEASE, "--", *job])
    described = [json.loads(path.read_text()) for path in (folder / "cache").glob("*description.txt")]
    assert {description["dataset_path"] for description in described} == {"/lustre/data/web"}
    unused = cli(["index", *FLAGS, *RELEASE, "--dry-run", "--dataset-path-as", "/wrong=/lustre", "web=/data/web"]).out
    assert re.findall("--dataset-path-as (.*) replaces nothing", unused) == ["/wrong=/lustre"]


def test_batch_size_follows_from_the_ranks(folder, cli):
    sizes = ["--micro-batch-size", "1", "--tensor-model-parallel-size", "2"]
    job = [*FLAGS[:6], *sizes, *FLAGS[8:]]
    result = cli(["index", *RELEASE, *CACHE, "--", "torchrun", "--nnodes=2", "--nproc_per_node", "8", "train.py", *job])
    assert "the job's batch size is 8: --micro-batch-size 1 on 8 data-parallel ranks" in result.out
    cli(["index", *FLAGS, *RELEASE, "--data-cache-path", "flags"])
    assert caches(folder / "cache") == caches(folder / "flags")


def test_flags_of_another_script_are_noted_and_those_of_the_launcher_are_its_own(cli):
    job = ["srun", "--seed", "7", "python", "mine.py", *FLAGS, "--sead", "99"]
    output = cli(["index", *RELEASE, *CACHE, "--", *job]).out
    assert "Megatron 0.19 has no --sead: mine.py has to define it; instead of --sead, did you mean --seed?" in output
    assert "3 of 3 caches ready in" in output
    explanation = cli(["index", "--explain", *RELEASE, *CACHE, "--", *job, "--seed", "99"], 1).out
    assert "0 of 3 caches ready" in explanation
    assert "web, split train" in explanation


@pytest.mark.parametrize(("command", "message"), [
    ("python pretrain_gpt.py --lr 1", "the command after -- has no flags of pretrain_gpt.py that caches depend on"),
    ("torchrun pretrain_gpt.py --seq_length 9", "0.19 has no --seq_length: .*\nhint: .* --seq-length"),
    ("--seq-length 9 --use-gigatoken", "0.19 has no --use-gigatoken: the job would stop at once"),
    ("torchrun pretrain_gpt.py --data-path x --sft", "--sft: in all releases so far, such a job reads JSONL"),
    ("torchrun pretrain_gpt.py --seq-length 1 2", "--seq-length takes one value in .*, not 1 2\nhint: quote"),
    ("torchrun pretrain_gpt.py --yaml-cfg x", "--yaml-cfg: Megatron then takes its settings from that file"),
    ("torchrun pretrain_t5.py --seq-length 9", "pretrain_t5.py has datasets of its own"),
    ("torchrun train.py --data-path x --dataloader-type external", "a loader of the job itself looks for no caches"),
    ("torchrun pretrain_gpt.py --data-path x --mock-data", "--mock-data: such a job makes up its data"),
])  # fmt: skip
def test_jobs_without_caches_are_refused(command, message, cli):
    errors = cli(["index", *RELEASE, "--", *command.split()], 1).err
    assert re.search(message, errors), errors


def test_a_job_without_a_release_is_refused(tmp_path, cli):
    words = "index --data-path web --seq-length 32 --split 90,5,5 --data-cache-path cache "
    words += "--train-iters 10 --global-batch-size 4 --eval-interval 10 --eval-iters 1"
    job = f"{words} --tokenizer-type NullTokenizer --vocab-size 100"
    assert "the like) needs --megatron-release" in cli(job, 2).err
    assert "give --num-samples" in cli(words, 2).err
    assert not (tmp_path / "cache").exists()
    cli(f"{job} --plain-names")
    assert list((tmp_path / "cache").glob("web-*"))
