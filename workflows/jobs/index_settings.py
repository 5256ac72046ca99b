"""The settings that all caches of an index job share, the tokenizer's identifiers among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.indices.cache import BLENDED_CLASS, GPT_CLASSES, read_description
from dsindex.indices.job_tokenizer import AUTOMODEL, tokenizer_identifiers
from dsindex.indices.needed_caches import CacheSettings
from dsindex.indices.releases import name_releases, possible_releases
from dsindex.indices.splits import SplitMatrix, parse_split, split_matrix
from dsindex.json_file import read_object
from workflows.options.index import DEFAULT_SPLIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workflows.options.index import IndexConfig

NO_IDENTIFIERS = "the tokenizer's identifiers are not known (--tokenizer-identifiers or --like)"


def cache_settings(config: IndexConfig) -> CacheSettings:
    """Return the settings of the description that `--like` names, overridden by options.

    Raises:
        FormatError: If that file is not a description.
        InputError: If the tokenizer's identifiers cannot be read, or the split is not valid.
    """
    like: Mapping[str, Any] = {}
    if config.like is not None:
        like = read_description(config.like)
        like = like if like["class"] != BLENDED_CLASS else like["datasets"][0]
    tokenizer = job_identifiers(config, like.get("tokenizer"))
    split: str | None = None
    matrix: SplitMatrix | None = None
    if not any(config.paths_per_split):
        split = config.split or like.get("split") or DEFAULT_SPLIT
        try:
            matrix = split_matrix(parse_split(split))
        except ValueError as error:
            msg = f"--split: {error}"
            raise InputError(msg) from error
    return CacheSettings(
        sequence_length=config.seq_length or int(like["sequence_length"]),
        seed=config.seed if config.seed is not None else int(like.get("random_seed", 1234)),
        extra_token=not config.no_extra_token,
        keep_partial_validation=config.keep_partial_validation,
        threshold=config.final_epoch_threshold,
        surplus=config.mid_level_dataset_surplus,
        split=split,
        matrix=matrix,
        tokenizer=tokenizer,
        class_name=config.dataset_class,
        multiple_validation_sets=config.multiple_validation_sets,
    )


def job_identifiers(config: IndexConfig, described: Any) -> Any:  # noqa: ANN401 - whatever a description says
    """Return the identifiers of the job's tokenizer; None if they are not known.

    Args:
        config: The options.
        described: The identifiers in the description that `--like` names.

    Raises:
        InputError: If they cannot be read, or are not those of the job's release.
    """
    release = config.megatron_release
    if config.tokenizer_identifiers is not None:
        return _read_identifiers(config.tokenizer_identifiers)
    if release is None:
        return described
    if config.job_tokenizer is not None and release == AUTOMODEL:
        if config.job_tokenizer.tokenizer_model is None:
            msg = "--megatron-release nemo-automodel needs --tokenizer-model, the tokenizer's name_or_path in the job"
            raise InputError(msg)
        return config.job_tokenizer.tokenizer_model
    if config.job_tokenizer is not None:
        metadata = config.job_tokenizer.tokenizer_metadata
        try:
            return tokenizer_identifiers(
                config.job_tokenizer, release, metadata=None if metadata is None else read_object(metadata)
            )
        except ValueError as error:
            raise InputError(str(error)) from error
    written_by = possible_releases(described)
    if written_by and release not in written_by:
        msg = (
            f"{config.like}: expected a description that Megatron {release} wrote (--megatron-release), got one of "
            f"{name_releases(written_by)}, whose tokenizer has other identifiers; give the job's --tokenizer-type and "
            "its other flags of the tokenizer as well"
        )
        raise InputError(msg)
    return described


def _read_identifiers(path: str) -> dict[str, Any]:
    identifiers = read_object(path)
    if identifiers.get("class") in {*GPT_CLASSES, BLENDED_CLASS}:
        msg = f"{path}: expected the tokenizer's identifiers as a JSON object; for a whole description use --like"
        raise InputError(msg)
    return identifiers
