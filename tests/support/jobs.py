"""Run jobs with the options that most tests use."""

from typing import TYPE_CHECKING, TypeVar

from dsindex.commands.build import run_build
from dsindex.commands.instruct import run_instruct
from dsindex.commands.merge import run_merge
from dsindex.commands.pack import run_pack
from dsindex.options.build import BuildConfig
from dsindex.options.datasets import MergeConfig
from dsindex.options.instruct import InstructConfig
from dsindex.options.pack import PackConfig
from dsindex.runtime.progress import Reporter
from tests.support.golden import OWN

if TYPE_CHECKING:
    from dsindex.options.common import Options

Config = TypeVar("Config", bound="Options")


def config_of(kind, source, **options):
    """Return options for one input or a tuple of inputs, two local workers and the plain golden tokenizer."""
    inputs = source if isinstance(source, tuple) else (str(source),)
    defaults = {"input": inputs, "tokenizer_model": str(OWN.plain_tokenizer), "executor": "local", "workers": 2}
    return kind(**{**defaults, **options})


def run_config(config, *more):
    """Run the job that matches the type of a configuration, without showing progress."""
    jobs = {BuildConfig: run_build, InstructConfig: run_instruct, MergeConfig: run_merge, PackConfig: run_pack}
    run = jobs[type(config)]
    return run(config, *more, reporter=Reporter())
