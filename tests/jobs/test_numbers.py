"""The numbers of options are integers in a range, and are checked before any work."""

import argparse
import os

import pytest
from pydantic import ValidationError

from dsindex.cli.main import main
from dsindex.cli.parser import COMMANDS, make_parser
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import RepairConfig, VerifyConfig
from dsindex.options.index import IndexConfig
from dsindex.options.instruct import InstructConfig
from dsindex.options.merge import MergeConfig
from dsindex.options.mix import MixConfig
from dsindex.options.pack import PackConfig
from dsindex.store.config_files import parse_yaml
from tests.support.golden import OWN

MODELS = (BuildConfig, IndexConfig, InstructConfig, MergeConfig, MixConfig, PackConfig, RepairConfig, VerifyConfig)
INDEX = ["--seq-length", "16", "--epochs", "1"]
STEPS = ["--seq-length", "16", "--train-iters", "9", "--global-batch-size", "4", "--eval-interval", "1"]
STEPS += ["--plain-names"]
LONG = "9" * 5000


def build(folder, *words):
    given = ["--input", str(OWN.docs), "--tokenizer-model", str(OWN.plain_tokenizer), "--executor", "local"]
    return main(["build", *given, "--output-prefix", str(folder / "x"), *words])


@pytest.mark.parametrize(("words", "message"), [
    (["--max-record-size", str(2**63)], "--max-record-size: expected at most 9223372036854775807, got '92233"),
    (["--max-record-size", "9" * 400], "--max-record-size: expected a size such as 4096, 64MiB or 1.5GB, got '999"),
    (["--shard-size", "9" * 400], "--shard-size: expected a size"),
    (["--shard-size", "64"], "--shard-size: expected a size with a unit, got 64; say 64MiB, or 64B for bytes"),
    (["--shard-size", f"{2**64}"], "--shard-size: expected at most"),
    (["--shard-size", "9999999999GiB"], "--shard-size: expected at most"),
    (["--workers", str(2**20 + 1)], "--workers: expected at most 1048576, got 1048577"),
    (["--sample", "1" * 400], "--sample: expected a share above 0"),
    (["--max-bad-records", LONG], "--max-bad-records: expected a number such as 100"),
    (["--shard-deadline", "inf"], "--shard-deadline: expected "),
    ([*INDEX[2:], "--seq-length", str(2**31 - 1)], "--seq-length: expected less than 2147483647, got 2147483647"),
    ([*INDEX[2:], "--seq-length", str(2**63 - 1)], "--seq-length: expected less than 2147483647, got 92233720"),
    ([*INDEX[:2], "--epochs", str(2**31)], "--epochs: expected a positive number of epochs"),
    ([*INDEX[:2], "--epochs", LONG], "--epochs: expected a positive number of epochs"),
    ([*INDEX[:2], "--num-samples", LONG], "--num-samples: expected one to three numbers"),
    ([*INDEX, "--mid-level-dataset-surplus", "inf"], "--mid-level-dataset-surplus: expected a finite number"),
], ids=lambda words: " ".join(words)[:40] if isinstance(words, list) else "")  # fmt: skip
def test_numbers_out_of_range_are_refused_before_work(words, message, tmp_path, capsys):
    assert build(tmp_path / "out", *words) == 2
    [shown] = capsys.readouterr().err.splitlines()
    assert f"dsindex build: {message}" in shown
    assert len(shown) < 300
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.parametrize(("words", "message"), [
    ([*INDEX, "--split", "one"], "--split: expected one to three shares"),
    ([*INDEX, "--split", "9" * 400], "--split: expected one to three shares"),
    ([*INDEX, "--split", "0,1,0"], "--epochs counts epochs of train, which has no data"),
    ([*INDEX, "--like", "missing.txt"], "missing.txt: "),
    ([*STEPS, "--step-batch-size-schedule", "7"], "--step-batch-size-schedule: expected"),
], ids=lambda words: " ".join(words)[-40:] if isinstance(words, list) else "")  # fmt: skip
def test_options_of_indices_that_fit_no_data_are_refused_before_the_build(words, message, tmp_path, capsys):
    assert build(tmp_path / "out", *words) == 1
    assert message in capsys.readouterr().err
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.parametrize("size", [2**53 + 1, 2**63 - 1])
def test_sizes_are_not_rounded(size, tmp_path):
    assert build(tmp_path, "--max-record-size", str(size)) == 0
    assert f'"max_record_size":{size}' in (tmp_path / "x_text_document.manifest.json").read_text().replace(" ", "")


@pytest.mark.quick(20)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [str(2**63), LONG, "1_0", "٣", "1.5", "", "nan"], ids=lambda number: number[:20])
def test_every_integer_of_a_command_line_has_a_range(command, number, capsys):
    [commands] = [each for each in make_parser(command)._actions if isinstance(each, argparse._SubParsersAction)]
    readers = [action for action in commands.choices[command]._actions if action.type is int]
    for action in readers:
        with pytest.raises(SystemExit, match="2"):
            make_parser(command).parse_args([command, f"{action.option_strings[-1]}={number}"])
        shown = capsys.readouterr().err.splitlines()[-1]
        assert f"{action.option_strings[-1]}: expected " in shown
        assert len(shown) < 300


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("value", [2**63, True, [True]], ids=str)
def test_no_option_takes_a_number_that_cannot_be_stored_or_a_switch_for_one(kind, value):
    for name, field in kind.model_fields.items():
        if (field.annotation is bool and value is True) or (kind is PackConfig and name == "output_prefix"):
            continue  # a switch, and what follows from another option
        with pytest.raises(ValidationError) as caught:
            kind(**{name: value})
        assert name in {place for problem in caught.value.errors() for place in problem["loc"][:1]}, name


@pytest.mark.parametrize("text", ["x: 18446744073709551616", f"x: {LONG}", "x: " + "1:" * 3000 + "1", f"x: 0x{LONG}"])
def test_configurations_have_integers_of_64_bits(text):
    from dsindex.errors import InputError

    assert parse_yaml("x: 18446744073709551615", source="c") == {"x": 2**64 - 1}
    with pytest.raises(InputError, match=r"^c, line 1: expected integers of at most 64 bits, got '.{1,90}$"):
        parse_yaml(text, source="c")


@pytest.mark.parametrize(("words", "message"), [
    ("trace x --text-tokens=-1", "--text-tokens: expected at least 0, got -1"),
    ("inspect x --tokens=-1", "--tokens: expected at least 0, got -1"),
    ("inspect x --limit=0", "--limit: expected at least 1, got 0"),
    ("demo --documents=2", "--documents: expected at least 3, got 2"),
    ("demo --documents=99999999", "--documents: expected at most 10000000, got 99999999"),
])  # fmt: skip
def test_numbers_of_flags_alone_have_ranges(words, message, cli):
    assert message in cli(words.split(), 2).err
