"""The functions of `import dsindex`. Their arguments are the options of the commands, typed and by keyword.

The arguments are the fields of the command's model in `dsindex.options`. The command line calls the same functions.
"""

from __future__ import annotations

import contextlib
import inspect as inspection
import re
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args

from dsindex.errors import DsindexError, UsageError
from dsindex.options.build import BuildConfig, BuildFlags
from dsindex.options.common import ExecutorConfig
from dsindex.options.datasets import (
    ConvertCommand,
    InspectConfig,
    MergeConfig,
    RawIndexConfig,
    ReportConfig,
    TraceConfig,
    VerifyConfig,
)
from dsindex.options.index import IndexConfig
from dsindex.options.instruct import InstructConfig, InstructFlags
from dsindex.options.mix import MixConfig
from dsindex.options.model import Option, Options, options_of
from dsindex.options.pack import JoinConfig, PackConfig
from dsindex.runtime.dispatch import make_executor, wants_ray
from dsindex.runtime.progress import BAR_SECONDS, Display, Reporter, choose_display
from dsindex.store.errors import read_error
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.commands.build import BuildResult, EstimateResult
    from dsindex.commands.convert import ConvertResult
    from dsindex.commands.findings import ConsumedTokens, InspectResult, TracedSamples, VerifyResult
    from dsindex.commands.index import IndexResult
    from dsindex.commands.instruct import InstructResult
    from dsindex.commands.merge import MergeResult
    from dsindex.commands.mix import MixResult
    from dsindex.commands.pack import PackResult
    from dsindex.commands.raw_index import RawIndexAccount
    from dsindex.commands.report import ReportResult
    from dsindex.formats.pbin import PbinHeader
    from dsindex.options.common import Progress
    from dsindex.runtime.progress import Snapshot

show_html: Callable[[Any], str] | None = None
"""Renders a result in a notebook; the package sets it."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Config = TypeVar("Config", bound=Options)


def takes(
    model: Callable[Arguments, Config],
) -> Callable[[Callable[[Config, Reporter], Result]], Callable[Arguments, Result]]:
    """Turn a function that takes an option model into one that takes the model's fields as keyword arguments."""
    options = cast("type[Options]", model)  # type checkers see a callable with the model's parameters

    def decorate(run: Callable[[Config, Reporter], Result]) -> Callable[Arguments, Result]:
        def command(*arguments: Arguments.args, **values: Arguments.kwargs) -> Result:
            config = model(*arguments, **values)
            try:
                with open_reporter(getattr(config, "progress", False)) as reporter:
                    return run(use_connected_cluster(config), reporter)
            except OSError as error:  # of a disk, where no other code expects it
                if error.errno is None or error.filename is None:
                    raise
                raise read_error(str(error.filename), error) from error

        def call(*arguments: Arguments.args, **values: Arguments.kwargs) -> Result:
            try:
                result = command(*arguments, **values)
            except DsindexError as error:
                error.args = tuple(_FLAG.sub(partial(_argument_of, options), str(line)) for line in error.args)
                raise
            if show_html is not None:
                setattr(type(result), "_repr_html_", show_html)  # noqa: B010 - notebooks call it
            return result

        call.command = command  # type: ignore[attr-defined]  # for the command line, whose messages name flags
        call.__name__ = call.__qualname__ = run.__name__
        call.__doc__ = _document(run.__doc__ or "", options)
        call.__signature__ = _signature(run, options)  # type: ignore[attr-defined]
        return call

    return decorate


_FLAG = re.compile(r"--([a-z][a-z-]*)(:?)(?: (\w+))?")


def _argument_of(model: type[Options], match: re.Match[str]) -> str:
    """Return the keyword argument for a flag in a message; flags of other programs are unchanged."""
    name, rest = match[1].replace("-", "_"), match[0].removeprefix(f"--{match[1]}")
    option = options_of(model).get(name)
    if option is None:
        return match[0]
    name = option.alias or name
    if match[3] in get_args(option.kind):
        return f"{name}={match[3]!r}"
    return f"{name}=True{rest}" if option.kind is bool and not match[2] else name + rest


def _signature(run: Callable[..., object], model: type[Options]) -> inspection.Signature:
    """Return the signature that type checkers see, for `help`."""
    kinds = {True: inspection.Parameter.KEYWORD_ONLY, False: inspection.Parameter.POSITIONAL_OR_KEYWORD}
    parameters = [
        inspection.Parameter(
            option.alias or name,
            kinds[option.kw_only],
            default=inspection.Parameter.empty if option.default is ... else option.default,
            annotation=_type_of(option),
        )
        for name, option in options_of(model).items()
    ]
    parameters.sort(key=lambda parameter: (parameter.kind, parameter.default is not inspection.Parameter.empty))
    return inspection.Signature(parameters, return_annotation=_Annotation(run.__annotations__["return"]))


class _Annotation(str):
    """The text of a type, which `help` shows without quotes because of its `repr`."""

    __slots__ = ()
    __repr__ = str.__str__


def _type_of(option: Option) -> str:
    """Return the type of an option's value, for `help`."""
    is_plain = isinstance(option.kind, type) and not get_args(option.kind)
    name = option.kind.__name__ if is_plain else str(option.kind).replace("typing.", "")
    return _Annotation(f"{name} | None" if option.default is None else name)


def _document(text: str, model: type[Options]) -> str:
    """Append the help text of each option to a docstring."""
    lines = [f"    {option.alias or name}: {option.help}" for name, option in options_of(model).items() if option.help]
    if "progress" in options_of(model):
        lines.append("    progress: True shows bars or lines; a function is called with each Snapshot of the progress.")
    return "\n".join([inspection.cleandoc(text), "", "Args:", *lines])


@dataclass(frozen=True, slots=True, kw_only=True)
class RawIndexResult:
    """Number of lines of a JSONL file in its index, and of lines left out."""

    file: str
    account: RawIndexAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """A `.pbin` that was joined from several files."""

    path: str
    header: PbinHeader
    num_files: int


# Progress and clusters.


class FunctionDisplay(Display):
    """Calls the user's function with snapshots; if it raises, the command stops and can be continued."""

    seconds = BAR_SECONDS

    def __init__(self, function: Callable[[Snapshot], object]) -> None:
        self._function = function

    def show(self, snapshot: Snapshot, *, ended: bool) -> None:  # noqa: ARG002 - share is 1 then
        """Call the function."""
        self._function(snapshot)


def open_reporter(progress: Progress) -> contextlib.AbstractContextManager[Reporter]:
    """Return the reporter for a value of `progress`.

    Raises:
        UsageError: If it is neither a bool nor a function.
    """
    if isinstance(progress, bool):
        return Reporter().show_on(*([choose_display()] if progress else []))
    if callable(progress):
        return Reporter().show_on(FunctionDisplay(progress))
    raise UsageError(f"progress: {progress!r} is neither a bool nor a function that takes a Snapshot")


def use_connected_cluster(config: Config) -> Config:
    """Use the Ray cluster that this process is connected to, unless the options name an executor.

    If the cluster has several nodes, `address` is set too, which makes workers check that they see the same files.
    """
    ray = sys.modules.get("ray")
    is_open = isinstance(config, ExecutorConfig) and not {"executor", "address"} & config.given_names
    if not is_open or ray is None or not ray.is_initialized():
        return config
    has_others = sum(node["Alive"] for node in ray.nodes()) > 1
    return config.copy_with(executor="ray", **({"address": "auto"} if has_others else {}))


def _path_for_workers(config: ExecutorConfig, path: str) -> str:
    """Return a path for workers; absolute on Ray, where they may run in another working folder."""
    return absolute(path) if wants_ray(config) else path


# The functions.


@takes(BuildConfig)
def build(config: BuildConfig, reporter: Reporter) -> BuildResult:
    """Tokenize text and merge it into one dataset per key, as `dsindex build` does.

    Repeating an interrupted call continues it; repeating a finished call returns at once. With options of index caches,
    the caches of each dataset are built as well.
    """
    from dsindex.commands.build import run_build

    return run_build(config, reporter=reporter)


@takes(BuildFlags)
def estimate(config: BuildConfig, _: Reporter) -> EstimateResult:
    """Estimate the size of a build, as `dsindex build --dry-run` does."""
    from dsindex.commands.build import estimate_build

    return estimate_build(config)


@takes(MergeConfig)
def merge(config: MergeConfig, reporter: Reporter) -> MergeResult:
    """Merge datasets of .bin and .idx into one, as `dsindex merge` does."""
    from dsindex.commands.merge import run_merge

    return run_merge(config, reporter=reporter)


@takes(IndexConfig)
def build_index(config: IndexConfig, reporter: Reporter) -> IndexResult:
    """Build the index caches that a Megatron training job looks for, as `dsindex index` does."""
    from dsindex.commands.index import run_index

    with contextlib.closing(make_executor(config)) as tasks:
        reporter.follow(tasks)
        result = run_index(config, executor=tasks, reporter=reporter)
    command_notes = () if config.command is None else tuple(config.command.notes)
    return replace(result, notes=(*command_notes, *result.notes))


@takes(MixConfig)
def mix(config: MixConfig, _: Reporter) -> MixResult:
    """Plan a mixture from the token counts of datasets, as `dsindex mix` does.

    `source` may be a mapping: `{"web": "60%", "books": "2epochs", "code": "10B", "other": None}`; None takes the rest.
    """
    from dsindex.commands.mix import run_mix

    return run_mix(config)


@takes(PackConfig)
def pack(config: PackConfig, reporter: Reporter) -> PackResult:
    """Tokenize text into a `.pbin` file for Modalities, as `dsindex pack` does."""
    from dsindex.commands.pack import run_pack

    return run_pack(config, reporter=reporter)


@takes(JoinConfig)
def join_packed(config: JoinConfig, _: Reporter) -> JoinResult:
    """Join `.pbin` files, as `dsindex pack --merge` does."""
    from dsindex.commands.convert import join_pbin_files
    from dsindex.formats.pbin import PBIN_VERSIONS

    header = join_pbin_files(
        config.merge, config.output, version=PBIN_VERSIONS[config.pbin_era], seed=config.shuffle_documents
    )
    return JoinResult(path=config.output, header=header, num_files=len(config.merge))


@takes(InstructConfig)
def instruct(config: InstructConfig, reporter: Reporter) -> InstructResult:
    """Turn conversations into tokens, loss masks and packed blocks, as `dsindex instruct` does.

    `config` says how records become prompts: a YAML file, or a dict with the same content. Its section `job` may hold
    the other options; arguments override it. Without it, the tokenizer's own chat template is used.
    """
    from dsindex.commands.instruct import instruction_of, run_instruct

    instruction = instruction_of(config)
    return run_instruct(config, instruction, reporter=reporter)


@takes(InstructFlags)
def show_conversations(config: InstructFlags, _: Reporter) -> InspectResult:
    """Show the first conversations as the model will see them, as `dsindex instruct --show` does."""
    from dsindex.commands.instruct import instruction_of, show_records

    return show_records(config, instruction_of(config))


@takes(ConvertCommand)
def convert(config: ConvertCommand, _: Reporter) -> ConvertResult:
    """Convert a dataset without loss, as `dsindex convert` does: `.bin/.idx` to `.pbin`, back, or between versions."""
    from dsindex.commands.convert import convert_dataset

    return convert_dataset(config)


@takes(RawIndexConfig)
def raw_index(config: RawIndexConfig, _: Reporter) -> RawIndexResult:
    """Write Modalities' index of the lines of a JSONL file, as `dsindex raw-index` does."""
    from dsindex.commands.raw_index import create_raw_index

    account = create_raw_index(config.file, config.output, drop_faulty_entries=config.drop_faulty_entries)
    return RawIndexResult(file=config.file, account=account)


@takes(InspectConfig)
def inspect(config: InspectConfig, _: Reporter) -> InspectResult:
    """Show the content of a dataset, index cache, export or work folder, as `dsindex inspect` does.

    Damage raises no exception: it is listed in `findings`, and `ok` is false.
    """
    from dsindex.commands.inspect import run_inspect

    return run_inspect(config)


@takes(TraceConfig)
def trace(config: TraceConfig, _: Reporter) -> TracedSamples | ConsumedTokens:
    """Trace samples and steps back to documents and lines, as `dsindex trace` does."""
    from dsindex.commands.trace import run_trace

    return run_trace(config)


@takes(VerifyConfig)
def verify(config: VerifyConfig, reporter: Reporter) -> VerifyResult:
    """Check that datasets are intact, as `dsindex verify` does.

    Damage raises no exception: it is listed in `findings`, and the result is false.
    """
    from dsindex.commands.findings import VerifyResult
    from dsindex.commands.verify import verify_dataset

    paths = {name: getattr(config, name) for name in ("cache", "same_as")}
    worker_paths = {name: _path_for_workers(config, path) for name, path in paths.items() if path is not None}
    config = config.copy_with(**worker_paths)
    prefixes = (_path_for_workers(config, prefix) for prefix in config.prefix)
    return VerifyResult(reports=tuple(verify_dataset(prefix, config, reporter=reporter) for prefix in prefixes))


@takes(ReportConfig)
def report(config: ReportConfig, reporter: Reporter) -> ReportResult:
    """Write an HTML report about datasets, as `dsindex report` does.

    Damage raises no exception: it is on the page, and `ok` is false.
    """
    from dsindex.commands.report import run_report

    return run_report(config, reporter=reporter)
