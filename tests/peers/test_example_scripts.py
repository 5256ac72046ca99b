"""Megatron-LM's own example scripts, given to `--from-command`: each is taken, or refused in one right sentence.

`MEGATRON_LM=FOLDER pytest -o addopts= tests/peers/test_example_scripts.py`, where FOLDER is a checkout of main. A
script that is not in it is skipped.
"""

import os
from pathlib import Path

import pytest

from dsindex.errors import DsindexError
from dsindex.options.pretrain_command import given_variables, read_command_file, take_command

EXAMPLES = Path(os.environ.get("MEGATRON_LM", "/none")) / "examples"
DATA = "data/web_text_document"
TAKEN = {
    "gptoss/02_train.sh": ([], [], {"seq_length": "8192", "global_batch_size": "128", "train_samples": "1953125000"}),
    "llama/train_llama3_8b_h100_fp8.sh": (
        ["PWD=/job"],
        ["checkpoints", "tensorboard", "/models/llama3", DATA],
        {"data_path": [DATA], "seq_length": "8192", "tokenizer_model": "/models/llama3", "global_batch_size": "128"},
    ),
    "mamba/train.sh": (
        [],
        [DATA, "tokenizer.model"],
        {"data_path": [DATA], "seq_length": "4096", "global_batch_size": "32", "data_cache_path": "./data-cache"},
    ),
    "megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh": (
        [f"DATA_PATH={DATA}", "OUTPUT_PATH=/out"],
        [],
        {"data_path": [DATA], "data_cache_path": "/out/cache", "train_samples": "585937500", "eval_iters": "32"},
    ),
    "megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh": (
        ["PWD=/job"],
        ["checkpoints", DATA, "/models/llama3"],
        {"data_path": [DATA], "seq_length": "8192", "global_batch_size": "128"},
    ),
    "mixtral/train_mixtral_8x7b_distributed.sh": (
        [],
        ["checkpoints", "tokenizer.model", DATA],
        {"data_path": [DATA], "split": "99990,8,2", "train_iters": "500000", "eval_interval": "1000"},
    ),
}
"""Variables and arguments of a script, and some of the options that it gives."""
REFUSED = {
    "academic_paper_scripts/sc21/run_table_1.sh": "expected one command that runs pretrain_gpt.py, got none",
    "bert/train_bert_340m_distributed.sh": "pretrain_bert.py has datasets of its own",
    # A shell splits the value, so Megatron refuses it, too.
    "gpt3/train_gpt3_175b_distributed.sh": "--step-batch-size-schedule: expected one value, as in pretrain_gpt.py",
    "inference/run_inference_server.sh": "got none",
    "llama/train_llama3_8b_h100_fp8.sh": "--mock-data: such a job makes up its data",
    "mimo/scripts/run_vlm_train.sh": "got several, in lines",
    "multimodal/pretrain_mistral_clip.sh": "such a job brings a loader of its own",
    "multimodal/nvlm/sft_34b_internvit.sh": "such a job brings a loader of its own",
    "post_training/modelopt/finetune.sh": "got none",
    "rl/model_configs/qwen3_8b.sh": "got none",
    "t5/train_t5_220m_distributed.sh": "pretrain_t5.py has datasets of its own",
}


def script(name):
    if not (EXAMPLES / name).is_file():
        pytest.skip(f"MEGATRON_LM has no examples/{name}")
    return str(EXAMPLES / name)


@pytest.mark.parametrize("name", TAKEN)
def test_training_script_is_taken(name):
    variables, arguments, expected = TAKEN[name]
    words = [*variables, script(name), *arguments]
    command = take_command(read_command_file(words), place=name, environment=given_variables(words))
    assert {option: command.options.get(option) for option in expected} == expected


@pytest.mark.parametrize("name", REFUSED)
def test_other_script_is_refused(name):
    with pytest.raises(DsindexError, match=REFUSED[name]):
        take_command(read_command_file([script(name)]), place=name)


def test_no_script_is_a_fault_of_dsindex():
    scripts = sorted(EXAMPLES.rglob("*.sh"))
    if not scripts:
        pytest.skip("MEGATRON_LM names no checkout")
    for path in scripts:
        refusal = ""
        try:
            command = take_command(read_command_file([str(path)]), place=path.name)
            is_taken = bool(command.options or command.notes)
        except DsindexError as error:
            is_taken, refusal = False, str(error)
        assert is_taken or refusal, path
        assert "\n" not in refusal, path
