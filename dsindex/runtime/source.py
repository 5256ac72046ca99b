"""The text that a job reads: its inputs, its tokenizer, and the shards that the inputs are cut into."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.formats.manifest import RecordedOptions, RecordedTokenizer
from dsindex.messages import show_name
from dsindex.options.common import work_folder_path
from dsindex.runtime.input_paths import find_paths, piped_input
from dsindex.runtime.plan import choose_shard_size, choose_smallest_shard, cut_input, examine_inputs, plan_shards
from dsindex.runtime.work_folder import STDIN_FILE, hold_work_folder, read_shard_size
from dsindex.store.protocol import find, open_output, store_of
from dsindex.store.read import has_stamped_content, stamp_content
from dsindex.store.urls import join_path
from dsindex.text.streams import LARGEST_RECORD_BYTES
from dsindex.text.tokenizer import load_tokenizer, require_eod, shared_tokenizer, tokens_around

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.options.common import TextConfig
    from dsindex.runtime.plan import InputFile
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.tasks import ShardTask
    from dsindex.text.engines import Engine
    from dsindex.text.input_format import TextPart
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """The inputs of a job and its tokenizer."""

    config: TextConfig
    inputs: tuple[InputFile, ...]
    tokenizer: Tokenizer
    engine: Engine
    eod_id: int | None
    smallest_shard: int
    """The smallest shard size: recorded in the work folder, or chosen from the size of the job."""
    folders: tuple[str, ...]
    """Sentences about the files that are read from each folder."""

    @property
    def files(self) -> list[TextPart]:
        """Size and version of each input, as seen during planning."""
        return [file.parts[0] for file in self.inputs]

    @property
    def total_bytes(self) -> int:
        """Total size of the inputs as they are stored."""
        return sum(file.size_bytes for file in self.inputs)

    @property
    def text_bytes(self) -> int:
        """Total size of the text; an estimate for compressed inputs."""
        return sum(file.text_bytes for file in self.inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about inputs that may be a mistake: repeated, empty, or large and compressed."""
        num_uses = Counter(file.path for file in self.files)
        compressed_files = (file for file in self.files if file.form.container != "plain")
        paths_by_warning = {
            "inputs that are given more than once": [f"{path} ({n:,} times)" for path, n in num_uses.items() if n > 1],
            "empty inputs": [file.path for file in self.files if not file.size_bytes],
            "large compressed inputs, each read by one worker; split them to save hours": [
                file.path for file in compressed_files if file.size_bytes > _LARGE_BYTES
            ],
        }
        return tuple(
            f"{warning}: {', '.join(map(show_name, paths[:_SHOWN]))}"
            + (f", and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else "")
            for warning, paths in paths_by_warning.items()
            if paths
        )

    def first_notes(self, *, encodes: bool = True) -> tuple[str, ...]:
        """Return the notes to show before the work begins.

        Args:
            encodes: Whether the job encodes texts.
        """
        encoding = [self.engine.describe_fallback(), self._describe_ends(), self.tokenizer.note] if encodes else []
        return (*self.folders, *filter(None, encoding), *self.notes)

    def _describe_ends(self) -> str | None:
        """Return a note if documents of a build end without a special token, or with two EOD tokens."""
        last = None
        if self.tokenizer.library == "tokenizers" and self.engine.add_special_tokens:
            _, suffix = tokens_around(shared_tokenizer(self.tokenizer)) or ((), ())
            last = suffix[-1] if suffix else None
        if self.eod_id is None and last is None and not getattr(self.config, "append_eod", True):
            return "documents run together, since no EOD token ends them; add --append-eod to separate them"
        if self.eod_id is None or last != self.eod_id:
            return None
        return (
            f"every document ends with {self.tokenizer.eod_token!r} twice, as with Megatron: the tokenizer's "
            "post-processor adds one, and --append-eod another; leave --append-eod out, or add "
            "--tokenizer-hf-no-include-special-tokens"
        )

    def tasks(self, dataset_begins: Sequence[int] = (0,)) -> list[ShardTask]:
        """Return all shards, in plan order; `dataset_begins` is the number of each dataset's first input."""
        config = self.config
        chosen_bytes = choose_shard_size(0, smallest=self.smallest_shard, largest=config.largest_shard)
        shard_bytes = config.shard_size or chosen_bytes
        return plan_shards(self.inputs, shard_bytes=shard_bytes, dataset_begins=dataset_begins)

    def shard_options(self) -> dict[str, Any]:
        """Return the settings that all kinds of shards share."""
        return {
            "quarantine": self.config.on_bad_record == "quarantine",
            "max_record_bytes": self.config.max_record_size or LARGEST_RECORD_BYTES,
            "provenance": not self.config.no_provenance,
            "work_dir": work_folder_path(self.config),
        }

    def settings(self) -> dict[str, Any]:
        """Return the plan's settings for the inputs and the tokenizer, named after the options."""
        config = self.config
        return {
            "tokenizer": self.tokenizer.sha256,
            "engine": [self.engine.name, self.engine.version, self.engine.reference_version],
            "append-eod": self.eod_id,
            "tokenizer-hf-no-include-special-tokens": config.tokenizer_hf_no_include_special_tokens,
            **({} if config.input_format == "auto" else {"input-format": config.input_format}),
            "no-provenance": config.no_provenance,
            "on-bad-record": config.on_bad_record,
            "max-record-size": config.max_record_size,
        }

    def describe_tokenizer(self) -> RecordedTokenizer:
        """Return the tokenizer as manifests record it."""
        config = self.config.tokenizer_options()
        values = {
            field.name: value for field in fields(config) if (value := getattr(config, field.name)) != field.default
        }
        if self.tokenizer.revision is None:
            values.pop("tokenizer_type", None)  # it selects a file of a folder, but changes no token
        return RecordedTokenizer(
            name=self.tokenizer.name,
            sha256=self.tokenizer.sha256,
            vocabulary_size=self.tokenizer.vocabulary_size,
            eod_id=self.eod_id,
            options=values or None,
            revision=self.tokenizer.revision,
        )

    def describe_options(self, **job_options: Any) -> RecordedOptions:  # noqa: ANN401 - fields of RecordedOptions
        """Return the options that the output depends on, for the manifest.

        Args:
            job_options: Options that only this kind of job has.
        """
        config = self.config
        return RecordedOptions(
            append_eod=self.eod_id is not None,
            tokenizer_hf_no_include_special_tokens=config.tokenizer_hf_no_include_special_tokens,
            on_bad_record=config.on_bad_record,
            max_record_size=config.max_record_size,
            **job_options,
        )


def open_source(
    config: TextConfig, *, append_eod: bool, reporter: Reporter | None = None, selection: Selection | None = None
) -> TextSource:
    """Load the tokenizer and find the inputs; standard input is read last, into the work folder.

    Args:
        config: The options of the job.
        append_eod: Whether every document ends with EOD.
        reporter: Shows messages; None for a command that writes nothing, which cannot read standard input.
        selection: The record fields that the job reads; None if it may read all.

    Raises:
        InputError: If an input is missing, empty or not readable.
        PlanError: If standard input cannot be stored because the work folder belongs to another job.
        TokenizerError: If the tokenizer cannot be used, or has no EOD where one is to be appended.
    """
    from dsindex.text.engines import choose_engine

    tokenizer = load_tokenizer(config.tokenizer_model, eod_token=config.eod_token, options=config.tokenizer_options())
    special = not config.tokenizer_hf_no_include_special_tokens
    engine = choose_engine(tokenizer, config.engine, add_special_tokens=special)
    eod_id = require_eod(tokenizer) if append_eod else None
    work_dir = work_folder_path(config)
    stdin_path = join_path(work_dir, STDIN_FILE)
    paths = find_paths(
        config.input,
        lists=config.input_list,
        split=config.input_split,
        config=config.input_config,
        exclude=config.exclude,
        standard_input=None if reporter is None else stdin_path,
        say=(folder_sentences := list[str]()).append,
    )
    if reporter is not None and len(paths) >= _MANY_INPUTS:
        reporter.say(f"looking at {len(paths):,} inputs, about a minute for a million")
    examine = partial(examine_inputs, input_format=config.input_format, selection=selection)
    input_files = examine(path for path in paths if not path.is_standard_input)
    for number, path in enumerate(paths):
        if path.is_standard_input and reporter is not None:
            _store_standard_input(work_dir, stdin_path, say=reporter.say)
            input_files[number:number] = examine([path])
    smallest = read_shard_size(work_dir) or choose_smallest_shard(sum(file.text_bytes for file in input_files))
    cut = partial(cut_input, shard_size=config.shard_size, smallest=smallest, largest=config.largest_shard)
    return TextSource(
        config=config,
        inputs=tuple(map(cut, input_files)),
        tokenizer=tokenizer,
        engine=engine,
        eod_id=eod_id,
        smallest_shard=smallest,
        folders=tuple(folder_sentences),
    )


# Standard input is stored as a file of the work folder, since a file can be read in parts, in parallel, and repeatedly.
#
# The file is complete or absent. Its version (the modification time on a disk, the ETag in a bucket) is derived from
# its content, so the same text gives the same plan whenever it is piped. A run that continues treats it like any other
# input: if it is unchanged, its shards are kept; otherwise they are made again.


def _store_standard_input(work_dir: str, path: str, *, say: Callable[[str], None]) -> None:
    """Store standard input in the work folder; if nothing is piped, keep what an interrupted run stored.

    Raises:
        InputError: If standard input is empty or cannot be read, and nothing intact is stored.
        PlanError: If the folder belongs to another program or another driver.
        OutputError: If it cannot be stored.
    """
    stored_status = find(path)
    try:
        stream = piped_input()
        with hold_work_folder(work_dir):
            say("reading standard input to its end, into the work folder")
            leftovers = (status.path for status in store_of(path).list(work_dir) if status.path.startswith(f"{path}."))
            store_of(path).delete(leftovers)  # leftovers of a killed driver
            with open_output(path) as file:
                while chunk := stream.read1(_READ_BYTES):  # Ctrl-C takes effect between reads
                    file.write(chunk)
                if not file.size_bytes:
                    raise InputError("-: standard input is empty", hint="check the pipe")
            stamp_content(path, file.hexdigest())
    except OSError as error:
        raise InputError(f"-: standard input cannot be read ({error.strerror})", hint="check the pipe") from error
    except InputError:
        if stored_status is None:
            raise
        if not has_stamped_content(stored_status):
            problem = "nothing is piped, and what an interrupted run stored is damaged"
            raise InputError(f"{path}: {problem}", hint="pipe the input again") from None
        say(f"nothing is piped: continuing with the {stored_status.size_bytes:,} bytes of standard input in {path}")


_SHOWN = 5
_READ_BYTES = 1 << 20
_LARGE_BYTES = 30 << 30
"""A compressed input of this size keeps a worker busy for 5 to 15 minutes."""
_MANY_INPUTS = 50_000
"""From this many inputs on, examining them takes long enough for a message."""
