"""The source of every job that reads JSONL text: inputs, tokenizer, engine and shards."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.engine.input_paths import find_paths
from dsindex.engine.inputs import (
    TEXT_PER_STORED_BYTE,
    check_shard_size,
    cut_inputs,
    look_at_inputs,
    look_inside,
    plan_shards,
)
from dsindex.engine.manifest import RecordedOptions, RecordedTokenizer
from dsindex.engine.standard_input import require_standard_input, store_standard_input, stored_input_path
from dsindex.errors import TokenizerError
from dsindex.json_text import show_name
from dsindex.options.config import work_folder_path
from dsindex.text.selection import Selection, open_selection, parse_key
from dsindex.text.tokenizer import TokenizerOptions, load_tokenizer, require_eod, shared_sentencepiece, shared_tokenizer
from dsindex.text.tokenizer_file import find_tokenizer, read_folder_config, token_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

    from dsindex.engine.inputs import Columns, InputFile
    from dsindex.engine.progress import Reporter
    from dsindex.engine.tasks import ShardTask
    from dsindex.options.build import BuildConfig
    from dsindex.options.config import TextConfig
    from dsindex.text.engines import Engine
    from dsindex.text.tokenizer import Tokenizer


# What a tokenizer's folder has beside its tokenizer.json that would give other tokens, and is worth telling.
#
# `dsindex.text.tokenizer_file` refuses folders whose files contradict each other. Here are files that another program
# may take instead: a SentencePiece model, or the class of transformers that tokenizer_config.json names. What these
# classes do was tried with transformers 5.23.

_TEXTS = (
    "The quick brown fox doesn't jump; it jumped.",
    " a space before, and  two spaces",
    "def f(x):\n    return x**2  # ok\n",
    "1234567890 3.14",
    "Grüße, Привет, 你好",
)
"""Ordinary texts, on which formats that hold the same tokenizer agree."""

_BEGINS_WITH_BOS = frozenset({"CodeLlamaTokenizer"})
_ADDS_SPACE = {"LlamaTokenizer": True, "CodeLlamaTokenizer": True, "GemmaTokenizer": False}
"""Classes that set up the space before a text themselves, and whether they add one if the folder does not say."""
_ADDS_SPACE_IF_TOLD = frozenset({"GPT2Tokenizer", "Qwen2Tokenizer"})
_FOLLOWS_THE_FOLDER = frozenset({"LlamaTokenizer", "CodeLlamaTokenizer", *_ADDS_SPACE_IF_TOLD})
"""Classes that heed `add_prefix_space`."""


def describe_folder(path: str, tokenizer: Tokenizer) -> list[str]:
    """Return sentences about what a folder has beside the tokenizer.json that was loaded from it; usually none.

    Args:
        path: What `load_tokenizer` was given.
        tokenizer: What it returned.
    """
    folder = find_tokenizer(path).path if tokenizer.library == "tokenizers" else None
    if folder is None or not os.path.isfile(os.path.join(folder, "tokenizer.json")):
        return []
    return [*_other_models(folder, tokenizer), *_other_class(folder, tokenizer)]


def _other_models(folder: str, tokenizer: Tokenizer) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        file = os.path.join(folder, name)
        if not name.endswith(".model") or not os.path.isfile(file):
            continue
        try:
            other = load_tokenizer(file)
        except TokenizerError:
            continue  # ranks that need an encoding, or a file that nobody asked for
        if other.library != "sentencepiece":
            continue
        for text in _TEXTS:
            ours = shared_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids
            if ours != shared_sentencepiece(other).encode(text):
                yield (
                    f"{folder}: tokenizer.json is used, and {name} beside it gives other tokens, as for {text!r}; to "
                    f"use that one, name it: --tokenizer-model {file}"
                )
                break


def _other_class(folder: str, tokenizer: Tokenizer) -> Iterator[str]:
    config = read_folder_config(folder)
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    beginning = f"{folder}: tokenizer.json is used as it is, and tokenizer_config.json names {name}, with which"
    loaded = shared_tokenizer(tokenizer)
    document = {"pre_tokenizer": _state(loaded.pre_tokenizer), "normalizer": _state(loaded.normalizer)}
    if name in _ADDS_SPACE and _has_byte_level(document):
        return  # such a class leaves a tokenizer.json of another family alone
    bos = loaded.token_to_id(token_text(config.get("bos_token")) or "")
    if name in _BEGINS_WITH_BOS and bos is not None and loaded.encode("a text").ids[:1] != [bos]:
        yield f"{beginning} transformers begins every text with {token_text(config.get('bos_token'))!r}"
    told = config.get("add_prefix_space") if name in _FOLLOWS_THE_FOLDER else None
    wanted = told if isinstance(told, bool) else _ADDS_SPACE.get(name)
    if wanted is not None and wanted != _adds_space(document):
        yield f"{beginning} transformers {'adds a' if wanted else 'adds no'} space before every text"


def _state(part: PreTokenizer | Normalizer | None) -> Any:  # noqa: ANN401 - JSON
    """Return a part of a loaded tokenizer as in its file, which takes long to parse."""
    return None if part is None else json.loads(part.__getstate__())


def _has_byte_level(document: dict[str, Any]) -> bool:
    return any(part.get("type") == "ByteLevel" for part in _parts(document.get("pre_tokenizer")))


def _adds_space(document: dict[str, Any]) -> bool:
    parts = [*_parts(document.get("pre_tokenizer")), *_parts(document.get("normalizer"))]
    return any(
        part.get("add_prefix_space") is True
        or part.get("prepend_scheme") in {"always", "first"}
        or part.get("type") == "Prepend"
        for part in parts
    )


def _parts(part: object) -> Iterator[dict[str, Any]]:
    """Yield a pre-tokenizer or normalizer, or those in a sequence of them."""
    if isinstance(part, dict):
        inner = [*(part.get("pretokenizers") or []), *(part.get("normalizers") or [])]
        yield part
        for entry in inner:
            yield from _parts(entry)


# What a build reads from its records, as its options say: opened, and described for the plan and the manifest.


def select(config: BuildConfig, tokenizer: Tokenizer) -> Selection:
    """Return the selection of a build.

    Raises:
        InputError: If a jq program does not compile, or uses a part of jq that is not allowed.
    """
    return open_selection(
        config.keys,
        where=config.where,
        join=config.join,
        vocabulary_size=None if config.token_ids is None else tokenizer.vocabulary_size,
    )


def wanted_columns(config: BuildConfig) -> dict[str, tuple[str, ...]] | None:
    """Return the columns of texts that a table must have; None if jq reads whole records, or ids are read."""
    keys = [parse_key(key) for key in config.keys]
    if config.token_ids is not None or config.where is not None or any(key.path is None for key in keys):
        return None
    return {key.name: key.path for key in keys if key.path is not None}


def holds_gil(selection: Selection) -> bool:
    """Tell whether the shards of a build hold the GIL so much that threads would wait for each other: jq does."""
    return selection.needs_jq


def plan_settings(config: BuildConfig) -> dict[str, Any]:
    """Return the selection's part of a plan's settings, named after the options that are used."""
    keys = {"json-keys": list(config.json_keys)} if config.token_ids is None else {"token-ids": config.token_ids}
    used = _used({"join": config.join, "where": config.where})
    return {**keys, **used, **({} if config.empty_documents == "keep" else {"empty-documents": config.empty_documents})}


def recorded_options(config: BuildConfig, output: int) -> dict[str, Any]:
    """Return the options of an output for its manifest, as fields of RecordedOptions.

    Args:
        config: The options of the build.
        output: Number of the output.
    """
    if config.token_ids is not None:
        keys: dict[str, Any] = {"token_ids": config.token_ids}
    elif config.join is not None:
        keys = {"json_keys": list(config.json_keys)}
    else:
        keys = {"json_key": config.json_keys[output]}
    own = None if config.empty_documents == "keep" else config.empty_documents
    return {**keys, **_used({"join": config.join, "where": config.where, "empty_documents": own})}


def _used(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# Inputs that are given more than once, under one name or several, which is allowed and worth telling.

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedInput:
    """A file that is an input more than once; its records are in the output as often."""

    path: str
    """The first path by which it is given."""
    times: int


def find_repeated(inputs: Sequence[InputFile]) -> tuple[RepeatedInput, ...]:
    """Return the files that are given more than once, in the order of their first paths.

    Links to a file, symbolic or hard, count as that file.
    """
    alike = Counter((file.size_bytes, file.version) for file in inputs)
    times: dict[tuple[int, int] | str, int] = {}
    paths: dict[tuple[int, int] | str, str] = {}
    for file in inputs:
        if alike[file.size_bytes, file.version] == 1:
            continue  # no other input is the same file, so it need not be looked at
        identity = _identity(file.absolute_path)
        times[identity] = times.get(identity, 0) + 1
        paths.setdefault(identity, file.path)
    return tuple(RepeatedInput(path=paths[identity], times=count) for identity, count in times.items() if count > 1)


def describe_repeated(repeated: Sequence[RepeatedInput]) -> list[str]:
    """Return a line of a summary; none if nothing is repeated.

    >>> describe_repeated([RepeatedInput(path="a.jsonl", times=2)])
    ['1 input is given more than once: a.jsonl (2 times)']
    """
    if not repeated:
        return []
    shown = [f"{show_name(file.path)} ({file.times:,} times)" for file in repeated[:_SHOWN]]
    if len(repeated) > _SHOWN:
        shown.append(f"and {len(repeated) - _SHOWN:,} more")
    count = "1 input is" if len(repeated) == 1 else f"{len(repeated):,} inputs are"
    return [f"{count} given more than once: {', '.join(shown)}"]


def _identity(path: str) -> tuple[int, int] | str:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return status.st_dev, status.st_ino


_NO_OPTIONS = TokenizerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """The inputs of a job, as found on disk, and the loaded tokenizer."""

    config: TextConfig
    inputs: tuple[InputFile, ...]
    tokenizer: Tokenizer
    engine: Engine
    eod_id: int | None
    shard_sizes: tuple[int, ...]
    """The shard size of each input."""
    joins_files: bool = True
    """Whether a shard may read several small inputs."""

    @property
    def total_bytes(self) -> int:
        """Size of all inputs as they are stored."""
        return sum(file.size_bytes for file in self.inputs)

    @property
    def text_bytes(self) -> int:
        """Size of the text of all inputs, which is an estimate where they are compressed."""
        return sum(map(_text_bytes, self.inputs))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about inputs that are given more than once."""
        return tuple(describe_repeated(find_repeated(self.inputs)))

    def first_notes(self, *, encodes: bool = True) -> tuple[str, ...]:
        """Return what should be known before the work begins, with the notes on the inputs.

        Args:
            encodes: Whether the job encodes texts.
        """
        fallback = self.engine.describe_fallback() if encodes else None
        folder = describe_folder(self.config.tokenizer_model, self.tokenizer) if encodes else []
        twice = self._describe_two_eods() if encodes else None
        return (*filter(None, [fallback, twice]), *folder, *self.notes)

    def _describe_two_eods(self) -> str | None:
        """Return a note if the post-processor ends texts with EOD, and another is appended; Megatron writes both."""
        if self.eod_id is None or self.tokenizer.library != "tokenizers" or not self.engine.add_special_tokens:
            return None
        if shared_tokenizer(self.tokenizer).encode("a text").ids[-1:] != [self.eod_id]:
            return None
        return (
            f"every document ends with {self.tokenizer.eod_token!r} twice, as with Megatron: the tokenizer's "
            "post-processor adds one, and --append-eod another; leave --append-eod out, or add "
            "--tokenizer-hf-no-include-special-tokens"
        )

    def tasks(self) -> list[ShardTask]:
        """Return all shards, in plan order."""
        return plan_shards(self.inputs, self.shard_sizes, joins=self.joins_files)

    def shard_options(self) -> dict[str, Any]:
        """Return the settings that the shards of every kind have."""
        return {
            "quarantine": self.config.on_bad_record == "quarantine",
            "max_record_bytes": self.config.max_record_size,
            "provenance": not self.config.no_provenance,
            "work_dir": work_folder_path(self.config),
        }

    def settings(self) -> dict[str, Any]:
        """Return the source's part of a plan's settings, named after the options."""
        config = self.config
        return {
            "tokenizer": self.tokenizer.sha256,
            "engine": [self.engine.name, self.engine.version, self.engine.reference_version],
            "append-eod": self.eod_id,
            "tokenizer-hf-no-include-special-tokens": config.tokenizer_hf_no_include_special_tokens,
            "shard-size": None if config.shard_size is None else self.shard_sizes[0],
            **({} if config.input_format == "auto" else {"input-format": config.input_format}),
            "no-provenance": config.no_provenance,
            "on-bad-record": config.on_bad_record,
            "max-record-size": config.max_record_size,
        }

    def describe_tokenizer(self) -> RecordedTokenizer:
        """Return the manifest's `tokenizer`."""
        options = self.config.tokenizer_options()
        given = {
            name: value
            for name in TokenizerOptions.__slots__
            if (value := getattr(options, name)) != getattr(_NO_OPTIONS, name)
        }
        if self.tokenizer.revision is None:
            given.pop("tokenizer_type", None)  # it chooses a file of a folder, but changes no token
        revision = self.tokenizer.revision
        more: dict[str, Any] = {"options": given} if given else {}
        more |= {} if revision is None else {"revision": revision}
        return RecordedTokenizer(
            name=self.tokenizer.name,
            sha256=self.tokenizer.sha256,
            vocabulary_size=self.tokenizer.vocabulary_size,
            eod_id=self.eod_id,
            **more,
        )

    def describe_options(self, **own: Any) -> RecordedOptions:  # noqa: ANN401 - fields of RecordedOptions
        """Return the options that the output depends on, for the manifest.

        Args:
            own: Options that only this kind of job has.
        """
        config = self.config
        return RecordedOptions(
            append_eod=self.eod_id is not None,
            tokenizer_hf_no_include_special_tokens=config.tokenizer_hf_no_include_special_tokens,
            on_bad_record=config.on_bad_record,
            max_record_size=config.max_record_size,
            **own,
        )


def open_tokenizer(config: TextConfig, *, append_eod: bool) -> tuple[Tokenizer, Engine, int | None]:
    """Return the tokenizer and the engine of a job, and the token that ends documents, if one is to be appended.

    Raises:
        TokenizerError: If the tokenizer cannot be used, or has no EOD where one is to be appended.
    """
    from dsindex.text.engines import choose_engine

    tokenizer = load_tokenizer(config.tokenizer_model, eod_token=config.eod_token, options=config.tokenizer_options())
    special = not config.tokenizer_hf_no_include_special_tokens
    engine = choose_engine(tokenizer, config.engine, add_special_tokens=special)
    return tokenizer, engine, require_eod(tokenizer) if append_eod else None


def open_source(
    config: TextConfig,
    *,
    append_eod: bool,
    reporter: Reporter | None = None,
    columns: Columns | None = None,
) -> TextSource:
    """Find the inputs and load the tokenizer; standard input is read last, into the work folder.

    Args:
        config: The options of the job.
        append_eod: Whether every document ends with EOD.
        reporter: Shows messages about standard input; None if the job writes nothing, so that it cannot read it.
        columns: The columns of texts that tables must have; None if any record may be read.

    Raises:
        InputError: If an input is missing, empty or not readable.
        PlanError: If standard input cannot be stored, since the work folder is another job's.
        TokenizerError: If the tokenizer cannot be used, or has no EOD where one is to be appended.
    """
    work_dir = work_folder_path(config)
    stored = None if reporter is None else stored_input_path(work_dir)
    paths = find_paths(
        config.input,
        lists=config.input_list,
        split=config.input_split,
        config=config.input_config,
        standard_input=stored,
    )
    if reporter is not None and len(paths) >= _MANY_INPUTS:
        reporter.say(f"looking at {len(paths):,} inputs, about a minute for a million")
    is_piped = any(path.is_standard_input for path in paths)
    inputs = look_at_inputs(path for path in paths if not path.is_standard_input)
    if is_piped:
        require_standard_input(work_dir)
    tokenizer, engine, eod_id = open_tokenizer(config, append_eod=append_eod)
    if is_piped and reporter is not None:
        store_standard_input(work_dir, say=reporter.say)
        inputs = look_at_inputs(paths)
    inputs = look_inside(inputs, wanted=config.input_format)
    if config.shard_size is not None:
        check_shard_size(sum(file.size_bytes for file in inputs), config.shard_size)
    inputs, shard_sizes = cut_inputs(inputs, config.shard_size, largest=config.largest_shard, columns=columns)
    return TextSource(
        config=config,
        inputs=tuple(inputs),
        tokenizer=tokenizer,
        engine=engine,
        eod_id=eod_id,
        shard_sizes=tuple(shard_sizes),
    )


_MANY_INPUTS = 50_000
"""From so many on, that they are looked at takes long enough to be told."""


def _text_bytes(file: InputFile) -> int:
    if file.parts is not None and file.parts.text_bytes is not None:
        return file.parts.text_bytes
    return file.size_bytes * (1 if file.form.container == "plain" else TEXT_PER_STORED_BYTE)
