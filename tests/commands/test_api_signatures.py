"""The functions of `import dsindex`: cheap to import, with the options of their commands as typed keyword arguments."""

import inspect
import subprocess
import sys

import pytest

import dsindex
from dsindex.cli.render import VIEWS
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import ConvertCommand, InspectConfig, MergeConfig, TraceConfig, VerifyConfig
from dsindex.options.index import IndexConfig
from dsindex.options.instruct import InstructConfig
from dsindex.options.mix import MixConfig
from dsindex.options.model import options_of
from dsindex.options.pack import PackConfig

MODELS = {
    "build": BuildConfig, "merge": MergeConfig, "build_index": IndexConfig, "mix": MixConfig, "pack": PackConfig,
    "instruct": InstructConfig, "verify": VerifyConfig, "convert": ConvertCommand, "inspect": InspectConfig,
    "trace": TraceConfig,
}  # fmt: skip
"""Function to the model of its options."""


@pytest.mark.parametrize("name", MODELS)
def test_function_takes_the_options_of_its_command(name):
    signature = inspect.signature(getattr(dsindex, name))
    options = options_of(MODELS[name])
    assert signature.parameters.keys() == {option.alias or key for key, option in options.items()}
    documented = inspect.getdoc(getattr(dsindex, name))
    assert all(f"{option.alias or key}: " in documented for key, option in options.items() if option.help)
    assert sum(bool(option.help) for option in options.values()) >= len(options) - 3
    positional = [arg.name for arg in signature.parameters.values() if arg.kind is arg.POSITIONAL_OR_KEYWORD]
    assert len(positional) == {"convert": 2, "instruct": 1}.get(name, 1)


CALLS = """
import dsindex
from pathlib import Path
built = dsindex.build(["a"], tokenizer="t", output_prefix=Path("o"), epochs=2.5, seq_length=8, shard_size="1MiB")
built.prefixes.index("o")
caches = dsindex.build_index([0.5, built, 0.5, "b"], seq_length=8, epochs="2.5", num_samples=[1, None, 2])
dsindex.verify(built, cache=caches, progress=True).findings
dsindex.build("a", tokenizer="t", output_prefix="o", shard_sise=1)
dsindex.build("a", tokenizer="t", output_prefix="o", workers="two")
dsindex.build("a", tokenizer="t")
dsindex.build_index("a", seq_length="8")
dsindex.merge(built, output_prefix="o", executor="dask")
reveal_type(dsindex.build)
reveal_type(dsindex.open)
"""


@pytest.mark.exhaustive
def test_type_checker_knows_the_functions_and_refuses_wrong_calls(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "--no-error-summary"]
    output = subprocess.run([*command, "calls.py"], capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    errors, revealed = ([line for line in output.splitlines() if kind in line] for kind in (": error:", "Revealed"))
    assert [line.split(":")[1] for line in errors] == ["8", "9", "10", "11", "12"], output
    build, open_type = revealed
    assert "tokenizer: str | os.PathLike[str] | tokenizers" in build
    assert build.endswith('-> dsindex.commands.build.BuildResult"')
    assert "-> dsindex.datasets.indexed.IndexedDataset |" in open_type


@pytest.mark.parametrize(("use", "watched", "modules"), [
    ("pass", "'dsindex', 'dsindex.commands.api', 'numpy', 'pydantic'", "['dsindex']"),
    ("from dsindex.formats import mmididx; from dsindex.runtime import tokenize, merge; import dsindex.cli.main",
     "'ray', 'awkward', 'numba', 'pyarrow.json', 'gigatoken', 'jinja2', 'torch'", "[]"),
    ("dsindex.open", "'dsindex.commands.api', 'pydantic', 'ray', 'numba', 'pyarrow', 'tokenizers', 'yaml'", "[]"),
])  # fmt: skip
def test_import_is_as_cheap_as_what_is_used(use, watched, modules):
    code = f"import sys, dsindex; {use}; print(sorted({{{watched}}} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == modules


GIVEN = {"tokenizer": "t", "output_prefix": "o"}


@pytest.mark.parametrize(("name", "arguments", "options", "message"), [
    ("build", ["a"], {"output_prefix": "o"}, "^tokenizer is required"),
    ("build", ["a"], {**GIVEN, "tokenizer": None}, "^tokenizer is required"),
    ("build", ["a"], {**GIVEN, "append_eod": "maybe"}, "^append_eod: 'maybe' is not true or false"),
    ("build", ["a"], {**GIVEN, "input": "b"}, "^input is given twice: by its name, and as the first argument"),
    ("build", ["a"], {**GIVEN, "shard_sise": 1}, "there is no option 'shard_sise'\nhint: did you mean 'shard_size'"),
    ("build", ["a"], {"tokeniser": "t", "output_prefix": "o"}, "'tokeniser'; .*\nhint: did you mean 'tokenizer'"),
    ("build", ["a"], {**GIVEN, "workers": True}, "workers: True is not an integer from 1 to 1048576"),
    ("build", ["a"], {**GIVEN, "workers": 0, "join": 3}, "join: .*; workers: 0 is not an integer from 1 to "),
    ("build", [3], GIVEN, "input: 3 is not text"),
    ("build", ["a", "b"], GIVEN, "2 arguments have no name; at most 1 may"),
    ("build", ["a"], {**GIVEN, "epochs": 2}, "give seq_length, or like with"),
    ("build", ["a"], {**GIVEN, "progress": 3}, "progress: 3 is neither a bool nor a function"),
    ("build", [], GIVEN, "^input is required"),
    ("merge", [[]], {"output_prefix": "o"}, "^input: no dataset was given"),
    ("merge", [["a", 3]], {"output_prefix": "o"}, "^input: expected str, bytes or os.PathLike object, not int"),
    ("mix", [{"a": 3}], {}, "a: '3' is not an amount such as 40% of the tokens"),
    ("trace", ["a"], {"sample": 1, "consumed": 1}, "sample and consumed cannot be combined"),
])  # fmt: skip
def test_misuse_is_told_in_one_sentence(name, arguments, options, message):
    with pytest.raises(dsindex.UsageError, match=message) as raised:
        getattr(dsindex, name)(*arguments, **options)
    assert "--" not in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_every_result_is_shown():
    results = [inspect.signature(getattr(dsindex, name)).return_annotation for name in (*MODELS, "raw_index", "report")]
    assert {name for result in results for name in result.split(" | ")} <= VIEWS.keys()
