"""The functions of `import dsindex`: cheap to import, never hidden by submodules, and with the options of the jobs."""

import inspect
import pkgutil
import subprocess
import sys

import pytest

import dsindex
from dsindex.datasets.opening import open_dataset
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import ConvertConfig, VerifyConfig
from dsindex.options.index import IndexConfig
from dsindex.options.instruct import InstructConfig
from dsindex.options.merge import MergeConfig
from dsindex.options.mix import MixConfig
from dsindex.options.pack import PackConfig

MODELS = {
    "build": BuildConfig, "merge": MergeConfig, "build_index": IndexConfig, "mix": MixConfig,
    "pack": PackConfig, "instruct": InstructConfig, "verify": VerifyConfig,
    "convert": ConvertConfig,
}  # fmt: skip
"""Function to the model of its options."""
NOT_OFFERED = {"output_prefix", "dry_run", "tokenizer_model"}
"""Options that some functions leave out, or take under another name."""


def parameters(name):
    return dict(inspect.signature(getattr(dsindex, name)).parameters)


@pytest.mark.parametrize("name", MODELS)
def test_function_has_the_options_of_its_job(name):
    assert MODELS[name].model_fields.keys() - parameters(name).keys() <= NOT_OFFERED


def test_open_takes_what_the_library_takes():
    library = inspect.signature(open_dataset).parameters
    assert parameters("open").keys() == library.keys()
    for name, parameter in parameters("open").items():
        assert parameter.default == library[name].default, name


@pytest.mark.parametrize("name", [*MODELS, "open", "report"])
def test_only_the_subject_is_positional_and_all_is_documented(name):
    kinds = [parameter.kind for parameter in parameters(name).values()]
    assert kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD) == (2 if name == "convert" else 1)
    assert inspect.Parameter.POSITIONAL_ONLY not in kinds
    documented = inspect.getdoc(getattr(dsindex, name)) or ""
    assert [option for option in parameters(name) if f"\n    {option}: " not in documented] == []


NAMES = "[getattr(dsindex, name) for name in dsindex.__all__];"


@pytest.mark.parametrize(("use", "among", "loaded"), [
    ("", "'dsindex', 'dsindex.api', 'numpy', 'pydantic'", "['dsindex']"),
    (NAMES, "'ray', 'numba', 'pyarrow.json', 'gigatoken', 'jinja2', 'torch', 'tokenizers'", "[]"),
], ids=["import", "names"])  # fmt: skip
def test_import_loads_little(use, among, loaded):
    code = f"import sys, dsindex; {use} print(sorted({{{among}}} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == loaded


def test_no_submodule_shares_its_name_with_a_public_name():
    """Python binds an imported submodule to its name in the package, which would hide the function."""
    submodules = {module.name for module in pkgutil.iter_modules(dsindex.__path__)}
    assert {"formats", "store"} <= submodules
    assert not submodules & set(dsindex.__all__)


GIVEN = {"tokenizer": "t", "output_prefix": "o"}


@pytest.mark.parametrize(("name", "arguments", "options", "message"), [
    ("build", ["a"], {**GIVEN, "freh": 1}, "no option 'freh'; did you mean 'fresh'"),
    ("build", ["a"], {"tokenizer_model": "t"}, "no option 'tokenizer_model'; did you mean 'tokenizer'"),
    ("build", ["a"], {"tokenizer": "t"}, "build: missing a required argument: 'output_prefix'"),
    ("build", ["a", "b"], GIVEN, "build: too many positional arguments"),
    ("build", [3], GIVEN, "input: expected a path, or several, got an int"),
    ("build", [[]], GIVEN, "build: input is required"),
    ("build", ["a"], {"tokenizer": 3, "output_prefix": "o"}, "tokenizer: expected a path or a tokenizers.Token"),
    ("build", ["a"], {**GIVEN, "index": dsindex.IndexOptions(epochs=2)}, "build: give seq_length, or like with"),
    ("build", ["a"], {**GIVEN, "epochs": 2},
     r"'epochs' is an option of the index caches; give index=dsindex.IndexOptions\(epochs=…\)"),
    ("IndexOptions", [], {"sed": 1}, "IndexOptions: there is no option 'sed'"),
    ("build", ["a"], {**GIVEN, "index": 3}, r"index: expected dsindex.IndexOptions\("),
    ("build", ["a"], {**GIVEN, "progress": 3}, "progress: expected True, False or"),
    ("build_index", ["a"], {"seq_length": 8}, "build_index: give one of epochs, num_samples, train_iters and"),
    ("build_index", [], {"seq_length": 8, "epochs": 1}, r"build_index: give data_path \(or train_data_path"),
    ("build_index", ["x.pbin"], {"seq_length": 8, "epochs": 1}, "data_path: expected datasets of .bin and .idx"),
    ("merge", [[]], {"output_prefix": "o"}, "input: expected at least one dataset, got none"),
    ("mix", [], {}, "mix: give at least one dataset"),
    ("mix", [{"a": 0.4}], {}, "source: expected an amount such as '40%', '2epochs' or '10B', or None, got 0.4"),
    ("verify", ["a"], {"sample": 0.5}, "verify: sample needs against_source=True: it is the share"),
    ("convert", ["a", "b"], {}, "convert: expected SRC or DST to end in .pbin, got a and b"),
    ("instruct", ["a"], {"config": 3}, "config: expected the path of a YAML file or a dict, got an int"),
    ("report", [[]], {"output": "o"}, "prefix: expected at least one dataset, got none"),
])  # fmt: skip
def test_misuse_is_said_in_the_words_of_python(name, arguments, options, message):
    with pytest.raises(dsindex.OptionsError, match=message) as raised:
        getattr(dsindex, name)(*arguments, **options)
    assert isinstance(raised.value, (dsindex.DsindexError, ValueError))
    assert "--" not in str(raised.value)
