"""Ray Data: `dsindex.datasink`, which builds a dataset of rows, and `dsindex.ray_datasource`, the documents of one.

ray.data needs pandas, which dsindex does not require; it is imported when a function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.api.boundary import OptionsError, api_function, join_connected_cluster
from dsindex.api.index import index_options
from dsindex.api.progress import open_reporter
from dsindex.api.subjects import list_text_prefixes
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.errors import MissingPackageError
from dsindex.options.build import BuildConfig
from dsindex.options.index import split_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from dsindex.api.index import IndexOptions
    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subject
    from dsindex.api.tokenizers import TokenizerLike
    from dsindex.jobs.build import BuildResult
    from dsindex.jobs.rows import MadeBlock

RayDataset: TypeAlias = Any
"""A `ray.data.Dataset`; Ray's types are not read."""
_OF_FILES = ("input_list", "input_split", "input_config", "input_format", "shard_size")


def is_rows(value: object) -> bool:
    """Tell whether a value is a Dataset of Ray Data, which is not imported for it."""
    return any(f"{kind.__module__}.{kind.__name__}" == "ray.data.dataset.Dataset" for kind in type(value).__mro__)


def build_rows(rows: Any, options: dict[str, Any]) -> BuildResult:  # noqa: ANN401 - a Dataset
    """Build a Dataset of Ray Data, given the arguments of `datasink`."""
    built: BuildResult = _ray_source("build").write_rows(rows, datasink(**options))
    return built


@api_function(BuildConfig, leave_out={"check", "input", *_OF_FILES})
def datasink(
    *,
    tokenizer: TokenizerLike,
    index: IndexOptions | None = None,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of BuildConfig
) -> Any:  # noqa: ANN401 - ray.data has no types
    """Return a `ray.data.Datasink` that builds a dataset of the rows, for `Dataset.write_datasink`.

    Keys are names of columns, of texts or, with `token_ids`, of lists of ids. Each block is tokenized on the node that
    has it; the documents are in the order of the rows, which Ray Data keeps if it is asked to (`preserve_order`). After
    the last block, shards are merged and published: a pipeline that fails leaves nothing under a final name, and one
    that is run again tokenizes only what is missing. Afterwards, the attribute `result` has what `build` returns. All
    nodes must have dsindex, and see the output's folder under the same path.

    Args:
        tokenizer: As for `build`, as are all others.
        index: As for `build`.
        progress: As for `build`; shown once all blocks are tokenized.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the tokenizer cannot be used. When rows are written, as `build`.
        MissingPackageError: If ray.data cannot be imported; it needs pandas.
    """
    ray_source = _ray_source("datasink")
    from dsindex.engine.input_paths import ROWS_INPUT
    from dsindex.jobs.rows import RowBuild

    given = join_connected_cluster({**options, "input": (ROWS_INPUT,)})
    with tokenizer_in_place(given, tokenizer) as placed:
        config, of_index = split_options(placed | index_options(index))
        rows = RowBuild(config, of_index)

    def finish(blocks: Sequence[MadeBlock]) -> BuildResult:
        with open_reporter(progress) as reporter:
            return rows.finish(blocks, reporter)

    return ray_source.BlockSink(begin=rows.begin, make=rows.shards.make, finish=finish, give_up=rows.give_up)


@api_function()
def ray_datasource(prefix: Subject) -> Any:  # noqa: ANN401 - ray.data has no types
    """Return a `ray.data.Datasource` of a dataset's documents, for `ray.data.read_datasource`.

    Rows have two columns: `document`, the number of the document, and `tokens`, a list in the type of the dataset. They
    are in the order of documents. Read tasks have ranges of documents of about equal size and read the files
    themselves, so all nodes must have dsindex and see the files under the same path.

    Args:
        prefix: An MMIDIDX dataset, or a result with one.

    Raises:
        OptionsError: If `prefix` is not such a dataset.
        FormatError: If the dataset is damaged.
        MissingPackageError: If ray.data cannot be imported; it needs pandas.
    """
    found = list_text_prefixes("prefix", prefix)
    if len(found) > 1:
        raise OptionsError(f"prefix: expected one dataset, got {len(found)} ({', '.join(found)}); choose one")
    return _ray_source("ray_datasource").DocumentSource(found[0])


def _ray_source(name: str) -> ModuleType:
    try:
        from dsindex.execution import ray_source
    except ImportError as error:
        msg = f"{name} needs ray.data, which cannot be imported ({error}); install it: pip install pandas"
        raise MissingPackageError(msg) from error
    return ray_source
