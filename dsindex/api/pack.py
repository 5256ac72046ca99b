"""`dsindex.pack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import api_function, input_options, join_connected_cluster
from dsindex.api.progress import open_reporter
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.jobs.pack import PackResult, run_pack
from dsindex.options.config import validated
from dsindex.options.pack import PackConfig

if TYPE_CHECKING:
    from dsindex.api.boundary import Paths
    from dsindex.api.progress import Progress
    from dsindex.api.tokenizers import TokenizerLike


@api_function(PackConfig, leave_out={"output_prefix"})
def pack(
    input: Paths = (),
    *,
    tokenizer: TokenizerLike,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of PackConfig
) -> PackResult:
    """Tokenize text into packed data for Modalities, as `dsindex pack` does.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    with tokenizer_in_place(join_connected_cluster(input_options(options, input)), tokenizer) as placed:
        config = validated(placed, PackConfig)
        with open_reporter(progress) as reporter:
            return run_pack(config, reporter=reporter)
