"""The file of `--per-dataset-sequences-path`: written once the caches are there, or compared by --explain."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.errors import InputError, OutputError
from dsindex.indices.explain import Finding
from dsindex.indices.start_up import (
    MAX_UINT16_VOCABULARY,
    count_sequences,
    read_sequences,
    sequence_faults,
    token_type_fault,
)
from dsindex.json_file import read_object
from dsindex.storage import make_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workflows.options.index import IndexConfig


def find_type_faults(config: IndexConfig, prefixes: Mapping[str, str]) -> list[str]:
    """Return sentences about datasets whose tokens a job with such a file would read in another type."""
    faults = (token_type_fault(prefix, _vocabulary_size(config, prefix)) for prefix in prefixes.values())
    return [fault for fault in faults if fault is not None]


def write_sequences(path: str, prefixes: Mapping[str, str]) -> str:
    """Write the file, and return a note about it. A file that has the same numbers is kept.

    Args:
        path: The file.
        prefixes: Prefix as the job types it → prefix on this machine.

    Raises:
        OutputError: If another file is there, or it cannot be written.
    """
    wanted = count_sequences(prefixes)
    if os.path.lexists(path):
        try:
            faults = sequence_faults(read_sequences(path), wanted)
        except InputError as error:
            msg = f"{error}; it was not replaced: move it away, or choose another --per-dataset-sequences-path"
            raise OutputError(msg) from error
        if faults:
            msg = (
                f"{path}: {'; '.join(faults)}; the file was not replaced: move it away, or choose another "
                "--per-dataset-sequences-path"
            )
            raise OutputError(msg)
        return f"{path} has the sequences of all datasets already"
    make_folder(os.path.dirname(path) or ".")
    write_whole(path, json.dumps(wanted).encode())
    return f"{path} has the sequences of {count(len(wanted), 'dataset')}, for the job's --per-dataset-sequences-path"


def explain_sequences(config: IndexConfig, path: str, prefixes: Mapping[str, str]) -> Finding:
    """Compare the file with the datasets, as a preflight of the job that reads it."""
    faults = find_type_faults(config, prefixes)
    found = os.path.isfile(path)
    if not found:
        faults.append("there is no such file; leave out --explain to write it")
    else:
        try:
            faults += sequence_faults(read_sequences(path), count_sequences(prefixes))
        except InputError as error:
            faults.append(str(error))
    said = faults or ["it has what the job reads"]
    return Finding(name=path, found=found, sound=not faults, sentences=tuple(said))


def _vocabulary_size(config: IndexConfig, prefix: str) -> int | None:
    """Return the size of the job's vocabulary, by its flags or by the manifest of a dataset that dsindex built."""
    tokenizer = config.job_tokenizer
    if tokenizer is not None and tokenizer.tokenizer_type == "NullTokenizer" and tokenizer.vocab_size:
        return tokenizer.vocab_size + (config.megatron_release in {"0.16", "0.17"})
    if tokenizer is not None and tokenizer.tokenizer_type == "TikTokenizer":
        return tokenizer.vocab_size or 2 * MAX_UINT16_VOCABULARY
    manifest = f"{prefix}.manifest.json"
    if not os.path.isfile(manifest):
        return None
    try:
        recorded = read_object(manifest).get("tokenizer")
    except InputError:
        return None  # verify says what is wrong with it
    size = recorded.get("vocabulary_size") if isinstance(recorded, dict) else None
    return size if type(size) is int else None
