"""What a worker is sent: the settings of all shards once, and a task per shard; and what it sends back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsindex.objects.requests import RequestCounts  # noqa: TC001 - the ledger parses results by their annotations
from dsindex.storage import StoredFile  # noqa: TC001 - as above
from dsindex.text.forms import JSON_LINES, InputForm, TextPart

if TYPE_CHECKING:
    from dsindex.text.engines import Engine
    from dsindex.text.patterns import TextPattern
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """The settings that all shards of a build share; sent to every worker once."""

    tokenizer: Tokenizer
    engine: Engine
    keys: tuple[str, ...]
    pattern: TextPattern | None = None
    """Selects the one text of a record; its column is then the only key."""
    selection: Selection | None = None
    """The records to keep and the values to read; the keys are its outputs."""
    dtype: str
    """Token type on disk."""
    eod_id: int | None
    """Appended to every document that has tokens; None to append nothing."""
    empty_documents: Literal["keep", "eod"] = "keep"
    """What a document without tokens becomes in the layout of Megatron, as `lay_out_documents` says."""
    layout: Literal["megatron", "pbin"]
    """`megatron` keeps empty documents and always appends EOD; `pbin` drops them and never repeats a final EOD."""
    quarantine: bool
    """Whether bad records are quarantined; otherwise the first one is an error."""
    max_record_bytes: int | None
    provenance: bool
    work_dir: str
    """The work folder, which holds the files of attempts."""
    sample: float | None = None
    """Share of the records of every input to keep; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedText:
    """The text of a part that the driver unpacked for it."""

    path: str
    """A plain file with the part's lines."""
    size_bytes: int
    decoder: str
    """Name and version of the decompressor, on which it depends where the text of a part ends."""
    error: str | None = None
    """Why the input could not be unpacked beyond this text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """A part of an input: the lines that begin in the byte range [begin, end), or row groups of a table."""

    shard: int
    """Number in plan order, over all inputs."""
    input: int
    """Number of the input in plan order."""
    path: str
    begin: int
    end: int
    input_size_bytes: int
    input_version: str
    """Modification time in ns when the job was planned."""
    form: InputForm = JSON_LINES
    is_of_stream: bool = False
    """Whether the part can only be decoded after all parts before it; then `unpacked` has its text."""
    stored_bytes: int = 0
    """Size of its part of the file, for progress."""
    unpacked: UnpackedText | None = None
    share: float | None = None
    """Share of the input's records to keep; None: all."""

    @property
    def text_bytes(self) -> int | None:
        """Size of its text, as far as it is known before it is read."""
        if self.unpacked is not None:
            return self.unpacked.size_bytes
        return self.end - self.begin if self.form.container == "plain" and not self.form.is_table else None

    @property
    def part(self) -> TextPart:
        """The part of a file to read."""
        if self.unpacked is not None:
            form = InputForm(format=self.form.format)
            return TextPart(
                path=self.unpacked.path,
                begin=0,
                end=self.unpacked.size_bytes,
                form=form,
                expected_size=self.unpacked.size_bytes,
                is_file_start=self.begin == 0,
                name=self.path,
            )
        return TextPart(
            path=self.path,
            begin=self.begin,
            end=self.end,
            form=self.form,
            expected_size=self.input_size_bytes,
            is_file_start=self.begin == 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """One key's part of a shard."""

    key: str
    num_sequences: int
    num_documents: int
    num_tokens: int
    num_empty_documents: int
    """Documents whose texts have no tokens; they keep a boundary and have no sequence, or one of EOD alone."""
    eod_in_text: int
    """Tokens equal to EOD that came from the text itself."""
    bin: StoredFile
    idx: StoredFile
    provenance: StoredFile | None = None
    """Provenance of this key's documents if they differ from those of the other keys."""
    num_reference_texts: int = 0
    """Texts that `tokenizers` encoded because gigatoken, the engine in use, may differ on them."""
    is_aligned: bool = False
    """Whether the part holds a value for each token of another key, such as a loss mask, instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """The result of one attempt at a shard: small, and all that the driver needs."""

    shard: int
    num_lines: int
    num_blank: int
    num_records: int
    """Records kept."""
    num_quarantined: int
    text_bytes: int = 0
    """Size of its lines in the unpacked text."""
    keys: tuple[KeyResult, ...]
    provenance: StoredFile | None
    quarantine: StoredFile | None
    input_fingerprint: str | None
    """Fingerprint of the whole input when this shard was read."""
    num_filtered: int = 0
    """Records that `--where` or a sample leaves out."""
    decoder: str | None = None
    """The decompressor of a part of a stream; with another one, the part might end elsewhere."""
    counts: tuple[tuple[str, int], ...] = ()
    """Further named counts of a kind of shard, to be added up over shards."""
    requests: RequestCounts | None = None
    """The requests to object stores that this process has made so far; for the driver, and not recorded."""
