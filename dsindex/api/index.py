"""`dsindex.build_index`."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dsindex.api.boundary import (
    OptionsError,
    api_function,
    join_connected_cluster,
    name_type,
    option_parameters,
    plain_value,
    respell,
)
from dsindex.api.progress import open_reporter
from dsindex.api.subjects import Result, list_text_prefixes
from dsindex.engine.start import make_executor
from dsindex.jobs.index import IndexResult, OrderFunction, order_by, run_index
from dsindex.options.config import validated, validation_message
from dsindex.options.index import IndexConfig
from dsindex.options.index import IndexOptions as _IndexOptions

if TYPE_CHECKING:
    from dsindex.api.progress import Progress
    from dsindex.api.subjects import Subject

    Blend = Subject | Iterable[Subject | float]
    """A dataset, or datasets with weights before each or none."""


class IndexOptions(_IndexOptions):
    """The options of the index caches that `dsindex.build` builds beside its datasets."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the model
        """Check the options.

        Raises:
            OptionsError: If they are invalid.
        """
        plain: dict[str, Any] = {name: plain_value(value) for name, value in options.items()}
        try:
            super().__init__(**plain)
        except ValidationError as error:
            signature = inspect.Signature(option_parameters(_IndexOptions.model_fields))
            told = respell(validation_message(error, _IndexOptions), signature)
            raise OptionsError(f"IndexOptions: {told}") from None


def index_options(index: object) -> dict[str, Any]:
    """Return the options of index caches that are given.

    Raises:
        OptionsError: If something else than IndexOptions is given.
    """
    if index is None:
        return {}
    if not isinstance(index, IndexOptions):
        raise OptionsError(f"index: expected dsindex.IndexOptions(…), got {name_type(index)}")
    return index.model_dump(exclude_unset=True)


@api_function(IndexConfig)
def build_index(
    data_path: Blend | None = None,
    *,
    train_data_path: Blend | None = None,
    valid_data_path: Blend | None = None,
    test_data_path: Blend | None = None,
    document_order: str | os.PathLike[str] | OrderFunction = "shuffled",
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of IndexConfig
) -> IndexResult:
    """Build the index caches that a Megatron training job looks for, as `dsindex index` does.

    Args:
        data_path: A dataset, or a blend: `[0.3, "a", 0.7, "b"]` with weights, `["a", "b"]` in proportion to their
            lengths. Datasets are prefixes or results; a result with several datasets means all of them.
        train_data_path: The same for train only.
        valid_data_path: The same for valid only.
        test_data_path: The same for test only.
        document_order: "shuffled", Megatron's order; "packed", in which samples end where documents end, and hardly a
            document that fits a sample is cut; "length", the shortest first; a .npy or .parquet file with the numbers
            of the documents; or a function that returns them, for one epoch or for all, from a pyarrow table of one
            dataset's documents with the columns `document`, `length` in tokens, and `source`, `line` and `offset` if
            the dataset has provenance. A pair of numbers and of each document's times per epoch, 0 to leave it out,
            states repeats.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        DsindexError: If the job cannot be done as asked.
    """
    function = document_order if callable(document_order) else None
    if document_order != "shuffled":
        options["document_order"] = plain_value(document_order) if function is None else "function.npy"
    blends = blend_options(
        data_path=data_path,
        train_data_path=train_data_path,
        valid_data_path=valid_data_path,
        test_data_path=test_data_path,
    )
    config = validated(join_connected_cluster(options) | blends, IndexConfig)
    with open_reporter(progress) as reporter:
        reporter.stage("index", total=1, unit="jobs")
        with contextlib.ExitStack() as stack:
            tasks = stack.enter_context(contextlib.closing(make_executor(config)))
            if function is not None:
                config = stack.enter_context(order_by(config, function, executor=tasks))
            report = run_index(config, executor=tasks)
        reporter.advance(1)
    return report


def blend_options(**blends: object) -> dict[str, tuple[str, ...]]:
    """Return the blends that are given, as on the command line."""
    return {name: blend_words(name, blend) for name, blend in blends.items() if blend is not None}


def blend_words(option: str, blend: Any) -> tuple[str, ...]:  # noqa: ANN401 - anything the caller passed
    """Return prefixes and weights as on the command line.

    Raises:
        OptionsError: If something is neither, or a result with several datasets has one weight.
    """
    if isinstance(blend, str | os.PathLike | Result) or not isinstance(blend, Iterable):
        return tuple(list_text_prefixes(option, blend))
    words: list[str] = []
    after_weight = False
    for part in blend:
        if isinstance(part, int | float):
            words.append(repr(part))
            after_weight = True
            continue
        prefixes = list_text_prefixes(option, [part]) if not _is_number(part) else [str(part)]
        if after_weight and len(prefixes) > 1:
            msg = f"{option}: expected a weight for each dataset, got one for {len(prefixes)} ({', '.join(prefixes)})"
            raise OptionsError(msg)
        words += prefixes
        after_weight = False
    return tuple(words)


def _is_number(part: object) -> bool:
    """Tell whether a part is a weight written as a string, as on the command line."""
    try:
        float(part) if isinstance(part, str) else None
    except ValueError:
        return False
    return isinstance(part, str)
