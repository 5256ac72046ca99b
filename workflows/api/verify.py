"""`dsindex.verify` and `dsindex.repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from workflows.api.boundary import OptionsError, api_function, given_options, join_connected_cluster, seen_from_anywhere
from workflows.api.progress import open_reporter
from workflows.api.results import IndexResult, PackedRepairResult, RepairResult, VerifyResult, fields_of
from workflows.api.subjects import find_prefix, list_prefixes
from workflows.api.tokenizers import tokenizer_in_place
from workflows.commands.options import validated
from workflows.commands.repair import with_fitting_output
from workflows.commands.verify import as_prefix, check_options, verify_dataset
from workflows.jobs.repair import RepairConfig, run_pbin_repair, run_repair
from workflows.jobs.verify import VerifyConfig
from workflows.options.pack import PBIN_SUFFIX

if TYPE_CHECKING:
    import os

    from workflows.api.progress import Progress
    from workflows.api.subjects import Subject, Subjects
    from workflows.api.tokenizers import TokenizerLike


@api_function
def verify(
    prefix: Subjects,
    *,
    cache: str | os.PathLike[str] | IndexResult | None = None,
    against_source: bool = False,
    sample: float | str = 1.0,
    tokenizer: TokenizerLike | None = None,
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto",
    executor: Literal["auto", "local", "processes", "ray"] = "auto",
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> VerifyResult:
    """Prove that datasets are intact, as `dsindex verify` does.

    Damage is no exception: the result is true where nothing was found, and says what was found.

    Args:
        prefix: Datasets: prefixes, `.pbin` files or results. A result stands for all its datasets.
        cache: A folder with index caches to check against the data, or what `build_index` returned.
        against_source: Tokenize the inputs again and compare.
        sample: Compare only a share of the documents, such as 0.01 or "1%".
        tokenizer: What the dataset was made with; from where the manifest says if None.
        engine: What tokenizes again; `tokenizers` is slow, and the reference.
        executor: As for `build`.
        address: The Ray cluster to join.
        installed: The cluster's nodes have dsindex: do not send them this one's code.
        workers: Tasks that run at once; all CPUs if None.
        shard_deadline: Seconds after which a slower task is dispatched a second time.
        progress: As for `build`.

    Raises:
        OptionsError: If the options make no sense.
        InputError: If `against_source` or `cache` asks for what cannot be done.
        TokenizerError: If the tokenizer is not the one that the dataset was made with.
    """
    options = join_connected_cluster(given_options(verify, locals()))
    options.pop("prefix")
    if isinstance(cache, IndexResult):
        options["cache"] = _find_folder(cache)
    prefixes = list_prefixes("prefix", prefix)
    with tokenizer_in_place(options) as placed:
        config = validated(placed, VerifyConfig)
        check_options(prefixes, config)
        if config.cache is not None:
            config = config.model_copy(update={"cache": seen_from_anywhere(config, config.cache)})
        reports = []
        for found in prefixes:
            with open_reporter(progress) as reporter:
                reports.append(verify_dataset(seen_from_anywhere(config, found), config, reporter=reporter))
    return VerifyResult(reports=tuple(reports))


@api_function
def repair(
    prefix: Subject,
    *,
    output: str | os.PathLike[str],
    way: Literal["auto", "shards", "index", "bin", "source"] = "auto",
    index_only: bool = False,
    work_dir: str | os.PathLike[str] | None = None,
    tokenizer: TokenizerLike | None = None,
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto",
    guess: bool = False,
    eod_id: int | None = None,
    dtype: Literal["uint8", "uint16", "int32", "int64"] | None = None,
    executor: Literal["auto", "local", "processes", "ray"] = "auto",
    address: str | None = None,
    installed: bool = False,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> RepairResult | PackedRepairResult:
    """Make an intact dataset of a damaged one, in new files, as `dsindex repair` does.

    Args:
        prefix: The dataset: a prefix, a `.pbin` that Modalities joined, or a result with one dataset.
        output: The new prefix, or the new `.pbin`.
        way: What to make it of, `--from` on the command line: the first that is certain, or the one named.
        index_only: Write the `.idx` alone; the `.bin` is intact and stays.
        work_dir: The build's work folder; beside the dataset if None.
        tokenizer: What the dataset was made with; from where the manifest says if None.
        engine: What tokenizes again.
        guess: Go on where nothing is certain, and say so.
        eod_id: The id of EOD, where no manifest says it.
        dtype: The type of the tokens, where nothing says it.
        executor: As for `build`.
        address: The Ray cluster to join.
        installed: The cluster's nodes have dsindex: do not send them this one's code.
        workers: Tasks that run at once; all CPUs if None.
        shard_deadline: Seconds after which a slower task is dispatched a second time.
        progress: As for `build`.

    Raises:
        OptionsError: If the options make no sense.
        FormatError: If no way is certain, saying of each why not.
        OutputError: If an output exists or cannot be written.
    """
    options = join_connected_cluster(given_options(repair, locals()))
    options.pop("prefix")
    found = find_prefix("prefix", prefix)
    with tokenizer_in_place(options) as placed:
        config = with_fitting_output(found, validated(placed, RepairConfig))
        found = seen_from_anywhere(config, found)
        config = config.model_copy(update={"output": seen_from_anywhere(config, config.output)})
        with open_reporter(progress) as reporter:
            if found.endswith(PBIN_SUFFIX):
                num_joints = run_pbin_repair(found, config)
                return PackedRepairResult(source=found, target=config.output, num_joints=num_joints)
            found = as_prefix(found)
            account = run_repair(found, config, reporter=reporter)
    return RepairResult(**fields_of(account), source=found, target=config.output)


def _find_folder(caches: IndexResult) -> str:
    """Return the folder of index caches.

    Raises:
        OptionsError: If there are several.
    """
    if len(caches.folders) != 1:
        where = ", ".join(caches.folders) or "none, since nothing was built"
        msg = f"cache: expected caches in one folder, got {where}; give one folder"
        raise OptionsError(msg)
    return caches.folders[0]
