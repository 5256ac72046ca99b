"""`dsindex index --from-command`: a job's script or command line, pasted as it is."""

import json
import re
import shlex

import pytest

from dsindex.cli.main import main
from tests.support.datasets import write_dataset

SCRIPT = """#!/bin/bash
# as in Megatron's examples
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
DATA_PATH=$1
CACHE=${2:-cache}
STAMP=$(date +%Y)
GPT_ARGS=(
    --num-layers 12 # a comment
    --seq-length 30
    --max-position-embeddings 64
)
OPTIONS=" \\
    --micro-batch-size 1 \\
    --global-batch-size 8 --train-iters 20 --eval-interval 10 --eval-iters 2 \\
    --save ckpt-$STAMP"
if [[ "$DATA_PATH" == "MOCK" ]]; then
    DATA_ARGS=(--mock-data)
else
    DATA_ARGS=(--data-path $DATA_PATH --split 90,5,5 --data-cache-path $CACHE)
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${GPT_ARGS[@]} "${DATA_ARGS[@]}" $OPTIONS --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/x --bf16
"""

FLAGS = shlex.split(
    "--data-path web --split 90,5,5 --seq-length 30 --global-batch-size 8 --train-iters 20 --eval-interval 10 "
    "--eval-iters 2 --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/x"
)
RELEASE = ["--megatron-release", "0.19", "--executor", "local"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "web", [[[1] * length] for length in [20, 50, 60, 30, 100, 5] * 40])
    (tmp_path / "train.sh").write_text(SCRIPT)
    return tmp_path


def caches(folder):
    return {path.name for path in folder.glob("*.npy")}


def test_flags_override_the_command(folder):
    write_dataset(folder / "books", [[[1] * 500]] * 20)
    own = ["--data-path", "books", "--num-samples", "7", "--seq-length", "40", "--data-cache-path", "c", "--split", "1"]
    assert main(["index", *own, *RELEASE, "--from-command", "train.sh", "web"]) == 0
    [described] = [json.loads(path.read_text()) for path in (folder / "c").glob("*description.txt")]
    assert [described[name] for name in ("dataset_path", "num_samples", "sequence_length")] == ["books", 7, 40]
    assert described["tokenizer"]["tokenizer_path"] == "/models/x"


def test_paths_of_the_job_are_read_here(folder):
    here = ["--dataset-path-as", f"{folder}=/lustre/data"]
    script = ["--from-command", "train.sh", "/lustre/data/web", "/lustre/data/cache"]
    assert main(["index", *here, *RELEASE, *script]) == 0
    described = [json.loads(path.read_text()) for path in (folder / "cache").glob("*description.txt")]
    assert {each["dataset_path"] for each in described} == {"/lustre/data/web"}


def test_values_that_only_the_shell_knows_are_named(folder, capsys):
    assert main(["index", *RELEASE, "--from-command", "train.sh"]) == 2
    assert "$DATA_ARGS (train.sh, line 22) is not known, and was left out" in capsys.readouterr().err
    (folder / "train.sh").write_text(SCRIPT.replace('"$DATA_PATH" ==', "a =="))
    assert main(["index", *RELEASE, "--from-command", "train.sh"]) == 1
    assert "train.sh, line 22: --data-path: $1 is not known without running the script; add" in capsys.readouterr().err
    (folder / "train.sh").write_text(SCRIPT)
    assert main(["index", *RELEASE, "--from-command", "SLURM_NNODES=2", "train.sh", "MOCK"]) == 1
    assert "--mock-data: such a job makes up its data" in capsys.readouterr().err


def test_batch_size_follows_from_the_ranks(folder, capsys):
    text = SCRIPT.replace("--global-batch-size 8", "--tensor-model-parallel-size 2")
    (folder / "train.sh").write_text(text)
    assert main(["index", *RELEASE, "--from-command", "SLURM_NNODES=2", "train.sh", "web"]) == 0
    assert "the job's batch size is 8: --micro-batch-size 1 on 8 data-parallel ranks" in capsys.readouterr().err
    assert main(["index", *FLAGS, *RELEASE, "--data-cache-path", "flags"]) == 0
    assert caches(folder / "cache") == caches(folder / "flags")


@pytest.mark.parametrize(("text", "message"), [
    ("echo pretrain_gpt.py", "got none"),
    ("pretrain_gpt.py", "got none"),
    ("python pretrain_gpt.py --lr 1", "expected flags of pretrain_gpt.py, got none that its caches depend on"),
    ("torchrun pretrain_gpt.py --seq-length 1\ntorchrun pretrain_gpt.py --seq-length 2", "got several, in lines 1"),
    ("torchrun pretrain_gpt.py --seq-length 'x", "train.sh: cannot be read as a shell script: line 1 has what"),
    ("torchrun pretrain_gpt.py --seq-length 1 2", "--seq-length: expected one value, .* got 1 2; a shell splits"),
    ("torchrun pretrain_gpt.py --seq-length 32 --yaml-cfg x", "x: cannot be read"),
    ("torchrun pretrain_gpt.py --yaml-cfg x y", "--yaml-cfg: expected one value, got x y"),
    ("torchrun pretrain_gpt.py --yaml-cfg $X", r"--yaml-cfg: \$X is not known"),
    ("torchrun pretrain_t5.py --encoder-seq-length 9", "pretrain_t5.py has datasets of its own"),
    ("torchrun train.py --data-path $X --dataloader-type external", "such a job brings a loader of its own"),
    ("torchrun pretrain_gpt.py --data-path $X --mock-data", "--mock-data: such a job makes up its data"),
    ("\udcff", "expected a shell script, got bytes that are not UTF-8 at 0"),
    ("x" * (1 << 20) + "y", "expected a shell script of at most 1048576 bytes"),
])  # fmt: skip
def test_what_is_no_command_is_refused(folder, text, message, cli):
    (folder / "train.sh").write_bytes(text.encode(errors="surrogateescape"))
    shown = cli(["index", *RELEASE, "--from-command", "train.sh"], 1).err

    assert re.search(message, shown), shown


SETTINGS = """
language_model: {num_layers: 2, seq_length: 77}
model_parallel: {tensor_model_parallel_size: 2}
micro_batch_size: 1
global_batch_size: 8
train_iters: 20
eval_interval: 10
eval_iters: 2
data_path: 1 ${DATA} 1 web
split: 90,5,5
seq_length: 30
mock_data: False
full_validation: 0
rampup_batch_size: null
tokenizer_type: HuggingFaceTokenizer
tokenizer_model: /models/x
"""


def test_settings_in_yaml_take_the_place_of_flags(folder, capsys):
    (folder / "job.yaml").write_text(SETTINGS)
    (folder / "train.sh").write_text("torchrun pretrain_gpt.py --yaml-cfg job.yaml --seq-length 99 --data-path no")
    write_dataset(folder / "books", [[[1] * 50]] * 200)
    blend = ["--data-path", "1", "books", "1", "web", *FLAGS[2:]]
    assert main(["index", *blend, *RELEASE, "--data-cache-path", "flags"]) == 0
    capsys.readouterr()
    command = ["--data-cache-path", "cache", "--from-command", "DATA=books", "train.sh"]
    assert main(["index", *RELEASE, *command]) == 0
    assert caches(folder / "cache") == caches(folder / "flags") != set()
    told = capsys.readouterr().err
    assert "Megatron takes all settings from job.yaml, and ignores the other flags of train.sh" in told
    assert main(["index", *RELEASE, "--from-command", "train.sh"]) == 1
    assert "job.yaml: --data-path: ${DATA} is not known" in capsys.readouterr().err
    (folder / "job.yaml").write_text(SETTINGS.replace("mock_data: False", "mock_data: True"))
    assert main(["index", *RELEASE, *command]) == 1
    assert "job.yaml: --mock-data: such a job makes up its data" in capsys.readouterr().err
    assert main(["index", *RELEASE, "--yaml-cfg", "job.yaml", *FLAGS]) == 2
    assert "reads it in a job's command" in capsys.readouterr().err


def test_wrong_usage(capsys):
    assert main(["index", *FLAGS, "web"]) == 2
    assert "expected a flag, got 'web'" in capsys.readouterr().err
    assert main(["index", "--from-command", "train.sh", "--", *FLAGS]) == 2
    assert "give --from-command or the command after --, not both" in capsys.readouterr().err
    assert main(["index", "--from-command", "A=1"]) == 1
    assert "expected a script, got only A=1" in capsys.readouterr().err


COMMAND = ["--", "torchrun", "--nnodes", "2", "/opt/Megatron-LM/pretrain_gpt.py", "--lr", "-1e-4", *FLAGS, "--bf16"]


@pytest.mark.parametrize(("words", "told"), [
    (["--from-command", "train.sh", "web"],
     ["from train.sh: --seq-length, --data-path, --split, --data-cache-path, --global-batch-size",
      "no cache depends on --num-layers, --max-position-embeddings, --micro-batch-size, --save, --bf16"]),
    (["--data-cache-path", "cache", "--from-command", "flags.txt"], []),
    (["--data-cache-path", "cache", *COMMAND], []),
    (["--data-cache-path", "cache", "--", *FLAGS], []),
], ids=["script", "file of flags", "command", "flags"])  # fmt: skip
def test_command_makes_the_caches_of_its_flags(folder, cli, words, told):
    (folder / "flags.txt").write_text(" ".join(FLAGS[:8]) + "\n" + " ".join(FLAGS[8:]) + "\n")
    cli(["index", *FLAGS, *RELEASE, "--data-cache-path", "flags"])
    shown = cli(["index", *RELEASE, *words]).err
    assert caches(folder / "cache") == caches(folder / "flags") != set()
    assert [sentence for sentence in told if sentence not in shown] == []


def test_options_in_a_file_are_those_of_flags(folder):
    words = {"data_path": "web", "seq_length": 30, "epochs": 1, "data_cache_path": "file"}
    (folder / "index.yaml").write_text(json.dumps(words))
    assert main(["index", "--config", "index.yaml"]) == 0
    assert (
        main(["index", "--data-path", "web", "--seq-length", "30", "--epochs", "1", "--data-cache-path", "flags"]) == 0
    )
    assert caches(folder / "file") == caches(folder / "flags") != set()
