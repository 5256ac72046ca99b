"""`dsindex.verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import OptionsError, api_function, join_connected_cluster, plain_value, seen_from_anywhere
from dsindex.api.progress import open_reporter
from dsindex.api.subjects import list_prefixes
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.jobs.index import IndexResult
from dsindex.options.config import validated
from dsindex.options.datasets import VerifyCommand, VerifyConfig
from dsindex.tools.results import VerifyResult
from dsindex.tools.verify import verify_dataset

if TYPE_CHECKING:
    import os

    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subjects
    from dsindex.api.tokenizers import TokenizerLike


@api_function(VerifyConfig)
def verify(
    prefix: Subjects,
    *,
    cache: str | os.PathLike[str] | IndexResult | None = None,
    tokenizer: TokenizerLike | None = None,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of VerifyConfig
) -> VerifyResult:
    """Prove that datasets are intact, as `dsindex verify` does.

    Damage raises no exception: the result is true if there are no findings, and lists them otherwise.

    Args:
        prefix: Datasets: prefixes, `.pbin` files or results. A result means all its datasets.
        cache: Index caches to check against the data: their folder, or the result of `build_index`.
        tokenizer: The tokenizer of the dataset; read from the path in the manifest if None.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If the checks for `against_source` or `cache` cannot be made.
        TokenizerError: If the tokenizer is not the one that the dataset was made with.
    """
    if cache is not None:
        options["cache"] = find_folder("cache", cache) if isinstance(cache, IndexResult) else plain_value(cache)
    prefixes = list_prefixes("prefix", prefix)
    with tokenizer_in_place(join_connected_cluster(options), tokenizer) as placed:
        config = validated({**placed, "prefix": prefixes}, VerifyCommand)
        if config.cache is not None:
            config = config.model_copy(update={"cache": seen_from_anywhere(config, config.cache)})
        reports = []
        for found in prefixes:
            with open_reporter(progress) as reporter:
                reports.append(verify_dataset(seen_from_anywhere(config, found), config, reporter=reporter))
    return VerifyResult(reports=tuple(reports))


def find_folder(option: str, caches: IndexResult) -> str:
    """Return the folder of index caches.

    Raises:
        OptionsError: If there are none or several.
    """
    if len(caches.folders) != 1:
        where = ", ".join(caches.folders) or "none, since nothing was built"
        raise OptionsError(f"{option}: expected caches in one folder, got {where}; pass one folder")
    return caches.folders[0]
