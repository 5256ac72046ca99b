"""A delivery: one YAML file that ties a mixture's datasets, digests, weights, tokenizer, job and caches together.

`dsindex mix --write` writes it and `dsindex index` adds the caches; verify, index, report and trace take it in place of
their paths. Its first line has the digest of the rest, so a change by hand is found, and no other file is replaced.
Paths are relative to the file's folder unless they are absolute.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import xxhash
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dsindex.engine.manifest import LARGEST_MANIFEST_BYTES, read_manifest
from dsindex.errors import InputError, OutputError
from dsindex.formats.mmididx import read_header
from dsindex.index.job_tokenizer import find_identifiers
from dsindex.options.index import TOKENIZER_NAMES
from dsindex.store.config_files import parse_yaml
from dsindex.store.reading import digest_file, is_stored, stored_size
from dsindex.store.storage import atomic_writer, make_folder, open_file
from dsindex.store.urls import is_absolute, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.index.job_tokenizer import JobTokenizer
    from dsindex.options.mix import MixConfig

_HEAD = b"# dsindex delivery 1, xxh3_128 %s\n"
_KNOWN_HEAD = re.compile(rb"# dsindex delivery \d+, xxh3_128 ([0-9a-f]{32})\n")
_NOTE = "# Prove it where it arrives: dsindex verify %s\n"
DELIVERY_SUFFIXES = (".yaml", ".yml")
_SPLITS = ("train", "valid", "test")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class DeliveredFile(_Part):
    """A file by size and content."""

    size_bytes: int = Field(ge=0, lt=2**63)
    xxh3_128: str = Field(pattern=r"^[0-9a-f]{32}$")


class DeliveredDataset(_Part):
    """A dataset of a split."""

    path: str = Field(min_length=1)
    """The prefix."""
    weight: str | None = Field(default=None, pattern=r"^[0-9.e+-]{1,40}$")
    """As written for Megatron."""
    documents: int
    tokens: int
    token_type: str
    files: dict[str, DeliveredFile]
    """By suffix: `bin` and `idx`."""


class DeliveredTokenizer(_Part):
    """The tokenizer of the datasets, as their manifests have it."""

    name: str
    sha256: str
    vocabulary_size: int
    eod_id: int | None = None


class DeliveredJob(_Part):
    """The settings of the training job, under Megatron's names."""

    seq_length: int
    train_samples: int
    global_batch_size: int | None = None
    eval_interval: int | None = None
    eval_iters: int | None = None
    seed: int | None = None
    megatron_release: str | None = None
    tokenizer: dict[str, Any] | None = None
    """The flags of the job's tokenizer."""

    @field_validator("tokenizer")
    @classmethod
    def _known_flags(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse other names: they become options, and words that people paste into a shell."""
        for name in value or {}:
            if name not in TOKENIZER_NAMES:
                raise ValueError(f"there is no flag {name!r} of a tokenizer")
        return value


class DeliveredCaches(_Part):
    """Index caches of the job."""

    path: str = Field(min_length=1)
    files: dict[str, DeliveredFile] = {}
    """By name; empty until they are built."""


class Delivery(_Part):
    """The content of the file."""

    train: list[DeliveredDataset] = Field(min_length=1)
    valid: list[DeliveredDataset] | None = None
    """Datasets of their own, such as what was held out; None to take the part that `split` says."""
    test: list[DeliveredDataset] | None = None
    split: str | None = None
    """None if splits have datasets of their own."""
    tokenizer: DeliveredTokenizer | None = None
    job: DeliveredJob
    caches: DeliveredCaches | None = None

    @property
    def datasets(self) -> list[DeliveredDataset]:
        """All datasets, each once."""
        return list({each.path: each for name in _SPLITS for each in getattr(self, name) or ()}.values())

    def blend(self, split: str, places: dict[str, str]) -> list[str] | None:
        """Return the words of Megatron's flag for a split, with the paths of this machine."""
        chosen: list[DeliveredDataset] | None = getattr(self, split)
        words = [(each.weight, places[each.path]) for each in chosen or ()]
        return None if chosen is None else [word for pair in words for word in pair if word is not None]


def is_delivery(path: str) -> bool:
    """Tell whether a path leads to a delivery, whatever was changed in it."""
    if not path.endswith(DELIVERY_SUFFIXES) or not os.path.isfile(path):
        return False
    with open_file(path) as file:
        return file.read(len(_HEAD % (b"0" * 32)) + 8).startswith(_HEAD.partition(b" 1,")[0])


def read_delivery(path: str) -> tuple[Delivery, bool]:
    """Return a delivery, and whether it is as dsindex wrote it.

    Raises:
        InputError: If it is something else, or was damaged.
    """
    try:
        with open_file(path) as file:
            content = file.read(LARGEST_MANIFEST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        delivery = Delivery.model_validate(parse_yaml(content, source=path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        msg = f"{path}: expected a valid {place} in a delivery, got another ({first['msg']}); ask for the file again"
        raise InputError(msg) from error
    head = _KNOWN_HEAD.match(content)
    return delivery, head is not None and head[1] == xxhash.xxh3_128_hexdigest(content[head.end() :]).encode()


def write_delivery(path: str, delivery: Delivery) -> None:
    """Write a delivery; one that nobody has changed is replaced.

    Raises:
        OutputError: If another file is there, or it cannot be written.
    """
    if not path.endswith(DELIVERY_SUFFIXES):
        raise OutputError(f"{path}: expected the name of a YAML file, such as delivery.yaml; choose another")
    if os.path.lexists(path) and not (os.path.isfile(path) and is_delivery(path) and read_delivery(path)[1]):
        msg = f"{path}: exists already and is no unchanged delivery of dsindex; remove it, or choose another name"
        raise OutputError(msg)
    body = (_NOTE % os.path.basename(path)).encode() + yaml.safe_dump(
        delivery.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True, width=10**6
    ).encode("utf-8")
    make_folder(os.path.dirname(path) or ".")
    with atomic_writer(path) as file:
        file.write(_HEAD % xxhash.xxh3_128_hexdigest(body).encode() + body)


# Make a delivery of a mixture.


def make_delivery(
    output: str,
    config: MixConfig,
    *,
    train: Sequence[tuple[str | None, str]],
    valid: Sequence[tuple[str | None, str]] | None,
    test: Sequence[tuple[str | None, str]] | None,
    split: str | None,
    train_samples: int,
) -> Delivery:
    """Return the delivery of a mixture, with the digests of its files: those in manifests, or else computed.

    Args:
        output: Where it will be written.
        config: The options of the mixture.
        train: Weight and prefix of each dataset.
        valid: The same of valid; None to take the part of each dataset that `split` says.
        test: The same of test.
        split: As the job has it.
        train_samples: Samples of the run.

    Raises:
        InputError: If datasets have different tokenizers, or one differs from its manifest, or the job's release could
            not make its tokenizer, so that `dsindex index` would refuse the delivery.
        FormatError: If a file is damaged.
    """
    if config.job_tokenizer is not None and config.megatron_release is not None:
        find_identifiers(config.job_tokenizer, config.megatron_release)
    folder = os.path.dirname(os.path.abspath(output))
    tokenizers: dict[str, tuple[DeliveredTokenizer, str]] = {}

    def describe(pairs: Sequence[tuple[str | None, str]] | None) -> list[DeliveredDataset] | None:
        return None if pairs is None else [_describe(prefix, weight, folder, tokenizers) for weight, prefix in pairs]

    described = {"train": describe(train), "valid": describe(valid), "test": describe(test)}
    if len(tokenizers) > 1:
        (one, first), (other, second), *_ = tokenizers.values()
        raise InputError(
            f"{second}: expected the tokenizer {one.name!r} (sha256 {one.sha256[:16]}…) that {first} was made with, "
            f"got {other.name!r} ({other.sha256[:16]}…); a job has one tokenizer: build one of them again"
        )
    caches = None
    if config.data_cache_path is not None:
        caches = DeliveredCaches(path=_relative(config.data_cache_path, folder))
    return Delivery.model_validate(
        described
        | {
            "split": split,
            "tokenizer": next((each for each, _ in tokenizers.values()), None),
            "caches": caches,
            "job": DeliveredJob(
                seq_length=config.seq_length,
                train_samples=train_samples,
                global_batch_size=config.global_batch_size,
                eval_interval=config.eval_interval,
                eval_iters=config.eval_iters,
                seed=config.seed,
                megatron_release=config.megatron_release,
                tokenizer=None if config.job_tokenizer is None else _given_flags(config.job_tokenizer),
            ),
        }
    )


def _given_flags(tokenizer: JobTokenizer) -> dict[str, Any]:
    return {each.name: value for each in fields(tokenizer) if (value := getattr(tokenizer, each.name)) != each.default}


def _describe(
    prefix: str, weight: str | None, folder: str, tokenizers: dict[str, tuple[DeliveredTokenizer, str]]
) -> DeliveredDataset:
    header = read_header(f"{prefix}.idx")
    manifest = read_manifest(prefix)
    files = {}
    for suffix in ("bin", "idx"):
        path = f"{prefix}.{suffix}"
        size_bytes = stored_size(path)
        known = None if manifest is None else manifest.content.digests.get(suffix)
        if known is not None and known.size_bytes != size_bytes:
            msg = f"{path}: expected {known.size_bytes:,} bytes as in its manifest, got {size_bytes:,}; verify it first"
            raise InputError(msg)
        files[suffix] = DeliveredFile(
            size_bytes=size_bytes, xxh3_128=digest_file(path) if known is None else known.digest
        )
    recorded = None if manifest is None else manifest.content.tokenizer
    if recorded is not None:
        tokenizer = DeliveredTokenizer(
            name=recorded.name,
            sha256=recorded.sha256,
            vocabulary_size=recorded.vocabulary_size,
            eod_id=recorded.eod_id,
        )
        tokenizers.setdefault(recorded.sha256, (tokenizer, prefix))
    return DeliveredDataset(
        path=_relative(prefix, folder),
        weight=weight,
        documents=header.num_documents,
        tokens=files["bin"].size_bytes // header.dtype.itemsize,
        token_type=header.dtype.name,
        files=files,
    )


def _relative(path: str, folder: str) -> str:
    """Return a path as seen from a folder; it stays absolute, or an address, if it was typed so."""
    return path if is_absolute(path) else os.path.relpath(path, folder)


def record_caches(path: str, folder: str, names: Iterable[str]) -> bool:
    """Add the files of caches to a delivery; return whether that was possible: not if the file was changed.

    Raises:
        OutputError: If it cannot be written.
    """
    delivery, is_own = read_delivery(path)
    if not is_own or delivery.caches is None:
        return False
    places = find_datasets(path, delivery)[0]
    if any(not _is_same(places[each.path], _from_file(path, each.path)) for each in delivery.datasets):
        return False  # the caches of other paths are another machine's
    files = {
        name: DeliveredFile(size_bytes=os.path.getsize(full), xxh3_128=digest_file(full))
        for name in sorted(set(names))
        for full in [os.path.join(folder, name)]
    }
    write_delivery(
        path, delivery.model_copy(update={"caches": DeliveredCaches(path=delivery.caches.path, files=files)})
    )
    return True


# Find what a delivery names on this machine.


def find_datasets(path: str, delivery: Delivery, folders: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Return where the datasets of a delivery are here, and which have none of their files in any place.

    A dataset is looked for in the folders, under as much of its path as there is, then where the delivery says, and
    then beside the delivery.
    """
    places, missing = {}, []
    for each in delivery.datasets:
        candidates = [joined(folder, end) for folder in folders for end in _ends(each.path)]
        candidates += [_from_file(path, each.path)]
        candidates += [os.path.join(os.path.dirname(path), end) for end in _ends(each.path)]
        found = next((place for place in candidates if is_stored(f"{place}.idx") or is_stored(f"{place}.bin")), None)
        places[each.path] = _from_file(path, each.path) if found is None else found
        if found is None:
            missing.append(each.path)
    return places, missing


def _ends(path: str) -> Iterator[str]:
    """Yield the ends of a path, the longest first.

    >>> list(_ends("/data/web/text_document"))
    ['data/web/text_document', 'web/text_document', 'text_document']
    """
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
    return ("/".join(parts[place:]) for place in range(len(parts)))


def _from_file(path: str, named: str) -> str:
    folder = os.path.dirname(path)
    return named if is_absolute(named) or not folder else os.path.normpath(os.path.join(folder, named))


def _is_same(one: str, other: str) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)


def cache_folder(path: str, delivery: Delivery, folders: Sequence[str] = ()) -> str | None:
    """Return the folder of the caches; None if the delivery has none."""
    if delivery.caches is None:
        return None
    own = _from_file(path, delivery.caches.path)
    candidates = [os.path.join(folder, end) for folder in folders for end in _ends(delivery.caches.path)]
    return next((each for each in candidates if os.path.isdir(each)), own)


def index_options(path: str) -> dict[str, Any]:
    """Return the options of `dsindex index` that a delivery says, under their names.

    Raises:
        InputError: If a dataset is missing.
    """
    delivery, _ = read_delivery(path)
    places, missing = find_datasets(path, delivery)
    if missing:
        msg = f"{path}: expected the dataset {missing[0]}, found none there or beside the file; restore its files"
        raise InputError(msg)
    job, blends = delivery.job, {split: delivery.blend(split, places) for split in _SPLITS}
    options: dict[str, Any] = {"seq_length": job.seq_length, "seed": job.seed, "split": delivery.split}
    options |= dict(job.tokenizer or {}) | {"megatron_release": job.megatron_release}
    if delivery.split is None:
        options |= {f"{split}_data_path": words for split, words in blends.items()}
    else:
        options["data_path"] = blends["train"]
    if job.global_batch_size is not None and job.eval_interval is not None:
        options |= {name: getattr(job, name) for name in ("train_samples", "global_batch_size", "eval_interval")}
        options["eval_iters"] = job.eval_iters
    else:
        # Nothing says how much a weighted blend draws; other datasets are read once.
        others = [
            getattr(delivery, split) or ([] if delivery.split is None else delivery.train) for split in _SPLITS[1:]
        ]
        options["num_samples"] = (
            job.train_samples,
            *(0 if len(each) > 1 and each[0].weight else None for each in others),
        )
    options["data_cache_path"] = cache_folder(path, delivery)
    if job.megatron_release is None:
        options["plain_names"] = True
    return {name: value for name, value in options.items() if value is not None}


def mix_config(path: str) -> MixConfig:
    """Return the options of `dsindex mix` that explain a delivery's blend.

    Raises:
        InputError: If a dataset is missing.
    """
    from dsindex.options.mix import MixConfig

    delivery, _ = read_delivery(path)
    places, _ = find_datasets(path, delivery)
    own = {
        name: words for split in _SPLITS if (words := delivery.blend(split, places)) for name in [f"{split}_data_path"]
    }
    own["data_path"] = own.pop("train_data_path")
    split = delivery.split if delivery.split is not None or len(own) > 1 else "1"
    job = delivery.job
    lengths = {name: getattr(job, name) for name in ("seq_length", "train_samples", "global_batch_size")}
    return MixConfig.model_validate({**own, **lengths, "split": split})


def job_flags(path: str, delivery: Delivery, folders: Sequence[str] = ()) -> list[str]:
    """Return the flags for the training script, each with its values, with the paths of this machine."""
    places, _ = find_datasets(path, delivery, folders)
    job = delivery.job
    if delivery.split is None:
        found = [(f"{split}-data-path", delivery.blend(split, places)) for split in _SPLITS]
    else:
        found = [("data-path", delivery.blend("train", places)), ("split", [delivery.split])]
    folder = cache_folder(path, delivery, folders)
    found += [
        (name.replace("_", "-"), None if (value := getattr(job, name)) is None else [str(value)]) for name in _FLAGS
    ]
    found += [("data-cache-path", None if folder is None else [folder])]
    for name, value in (job.tokenizer or {}).items():
        values = [] if value is True else list(map(str, value)) if isinstance(value, list) else [str(value)]
        found.append((name.replace("_", "-"), values))
    return [" ".join([f"--{name}", *map(shlex.quote, values)]) for name, values in found if values is not None]


_FLAGS = ("seq_length", "seed", "train_samples", "global_batch_size", "eval_interval", "eval_iters")
