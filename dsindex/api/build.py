"""`dsindex.build`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import api_function, input_options, join_connected_cluster
from dsindex.api.index import index_options
from dsindex.api.progress import open_reporter
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.jobs.build import BuildResult, run_build
from dsindex.options.build import BuildConfig
from dsindex.options.index import split_options

if TYPE_CHECKING:
    from dsindex.api.boundary import Paths
    from dsindex.api.index import IndexOptions
    from dsindex.api.progress import Progress
    from dsindex.api.tokenizers import TokenizerLike


@api_function(BuildConfig, leave_out={"dry_run"})
def build(
    input: Paths = (),
    *,
    tokenizer: TokenizerLike,
    index: IndexOptions | None = None,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of BuildConfig
) -> BuildResult:
    """Tokenize text and merge it into one dataset per key, as `dsindex build` does.

    Repeating an interrupted call continues it; repeating a finished one returns at once.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        index: Also build the index caches of every dataset.
        progress: True to show progress as the command line does, or a function to call with each Snapshot.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    with tokenizer_in_place(join_connected_cluster(input_options(options, input)), tokenizer) as placed:
        config, of_index = split_options(placed | index_options(index))
        with open_reporter(progress) as reporter:
            return run_build(config, reporter=reporter, index=of_index)
