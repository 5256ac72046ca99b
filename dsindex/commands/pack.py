"""`dsindex pack`: tokenize JSONL into a `.pbin`, with the same shards, executors and work folder as a build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.commands.convert import TYPE_OF_SIZE
from dsindex.commands.results import MadeDataset, TextResult, outcome_fields
from dsindex.datasets.documents import shuffle_items
from dsindex.errors import TokenizerError
from dsindex.formats.pbin import PBIN_VERSIONS, PbinHeader, token_bytes_for_vocabulary, write_pbin_index
from dsindex.options.common import work_folder_path
from dsindex.runtime.dispatch import run_in_order
from dsindex.runtime.executors import Call
from dsindex.runtime.job import Output, open_job
from dsindex.runtime.merge import read_lengths, return_damage
from dsindex.runtime.plan import make_plan
from dsindex.runtime.preflight import check_room, examine_sample
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.runtime.tasks import Damaged, SourceFile
from dsindex.runtime.tokenize import ShardSettings
from dsindex.runtime.work_folder import SHARDS_FOLDER
from dsindex.store.protocol import open_output, replace_file
from dsindex.store.urls import absolute, join_path
from dsindex.text.selection import open_pattern
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.formats.pbin import PbinVersion
    from dsindex.options.pack import PackConfig
    from dsindex.runtime.progress import Reporter
    from dsindex.runtime.tasks import Segment
    from dsindex.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult(TextResult):
    """The result of packing."""

    engine: str
    """Name of the encoding library."""


def run_pack(config: PackConfig, *, reporter: Reporter) -> PackResult:
    """Pack JSONL into a `.pbin`; an interrupted run of the same plan is continued.

    Raises:
        DsindexError: If the input cannot be packed as requested; no file under a final name is then incomplete.
    """
    selection, version = open_pattern(config.jq_pattern), PBIN_VERSIONS[config.pbin_era]
    source = open_source(config, append_eod=True, reporter=reporter)
    token_bytes = choose_token_bytes(source.tokenizer, version)
    settings = source.settings()
    settings["eod-token"] = settings.pop("append-eod")
    settings |= {"jq-pattern": config.jq_pattern, "pbin-era": config.pbin_era}
    if config.shuffle_documents is not None:
        settings["shuffle-documents"] = config.shuffle_documents
    plan = make_plan(settings, source.files)
    head_path = join_path(work_folder_path(config), f"{SHARDS_FOLDER}/head")
    output = Output(
        prefix=absolute(config.output_prefix),
        plan_id=plan.plan_id,
        dtype=TYPE_OF_SIZE[token_bytes],
        head=SourceFile(path=head_path, size_bytes=version.header_bytes),
        seed=config.shuffle_documents,
    )
    uses_jq = selection.needs_jq
    with open_job(config, plan, [output], reporter=reporter, text_bytes=source.text_bytes, holds_gil=uses_jq) as job:
        if not job.already_complete:
            for note in source.first_notes():
                reporter.say(f"note: {note}")
            estimate = examine_sample(source, selection)
            is_shuffled = config.shuffle_documents is not None
            check_room(config, estimate, itemsize=output.dtype.itemsize, num_keys=1, is_shuffled=is_shuffled)
            shard_settings = ShardSettings(
                tokenizer=source.tokenizer,
                engine=source.engine,
                keys=selection.names,
                selection=selection,
                dtype=output.dtype.newbyteorder(version.byte_order).str,
                eod_id=source.eod_id,
                layout="pbin",
                **source.shard_options(),
            )
            shards = Shards(job, source, shard_settings)
            shards.tokenize_and_merge()
            _add_ends(shards, output, version)
            options = source.describe_options(
                jq_pattern=config.jq_pattern, pbin_era=config.pbin_era, shuffle_documents=config.shuffle_documents
            )
            shards.publish([{"token_dtype": np.dtype(f"u{token_bytes}").name, "options": options}])
    return PackResult(
        datasets=(MadeDataset.from_content(config.output, job.manifests[0].content),),
        engine=source.engine.name,
        **outcome_fields(source, job),
    )


def choose_token_bytes(tokenizer: Tokenizer, version: PbinVersion) -> int:
    """Return the bytes per token by Modalities' rule, which counts the vocabulary without added tokens.

    Raises:
        TokenizerError: If an added token's id does not fit that size.
    """
    hf_tokenizer = shared_tokenizer(tokenizer)
    vocabulary_size = hf_tokenizer.get_vocab_size(with_added_tokens=False)
    try:
        token_bytes = token_bytes_for_vocabulary(vocabulary_size) if version.names_token_size else 4
    except ValueError as error:
        raise TokenizerError(f"{tokenizer.name}: {error}", hint="choose another tokenizer") from error
    token, largest = max(hf_tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: (item[1], item[0]))
    if largest >= 1 << 8 * token_bytes:
        raise TokenizerError(
            f"{tokenizer.name}: the id {largest} of {token!r} does not fit {token_bytes} bytes, the size of a token in "
            f"Modalities for a vocabulary of {vocabulary_size} entries without added tokens",
            hint="`dsindex build` and then `dsindex convert` make a .pbin with larger tokens",
        )
    return token_bytes


# Besides tokens, a `.pbin` has a header before them and a pickled index after them.


def _add_ends(shards: Shards, output: Output, version: PbinVersion) -> None:
    """Write the `.pbin` header and index to the work folder, and append the index to the output."""
    data_bytes = sum(segment.bin.size_bytes for segment in output.segments)
    header = PbinHeader(version=version, token_bytes=output.dtype.itemsize, data_bytes=data_bytes)
    arguments = (output.segments, header, join_path(shards.job.work_dir, SHARDS_FOLDER), output.seed)
    call = Call(name="pack-index", place=output.prefix, function=_write_ends, arguments=arguments)
    [tail] = run_in_order(shards.job.executor, [call])
    if isinstance(tail, Damaged):
        shards.run(shards.remake_shard(tail))
        _add_ends(shards, output, version)
    else:
        output.append_source(tail)


@return_damage
def _write_ends(segments: Sequence[Segment], header: PbinHeader, folder: str, seed: int | None) -> SourceFile:
    """Write the header, and the index from the lengths in the shards' `.idx` files; return the index file.

    Args:
        segments: The shards; each of their documents has one sequence.
        header: The header.
        folder: The folder of both files.
        seed: Seed for a random order of the documents; None to keep their order.

    Raises:
        OutputError: If the work folder cannot be written.
    """
    replace_file(join_path(folder, "head"), header.to_bytes())
    path, lengths = join_path(folder, "index"), read_lengths(segments)
    if seed is not None:
        lengths = np.concatenate([lengths[:0], *shuffle_items(lengths, seed)])
    with open_output(path) as file:
        write_pbin_index(file, header, lengths)
    return SourceFile(path=path, size_bytes=file.size_bytes)
