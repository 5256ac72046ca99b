"""Whether the input of a shard is still the one of the plan, and its fingerprint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import xxhash

from dsindex.errors import InputError
from dsindex.objects.urls import OWN_VERSION, is_url
from dsindex.readable import input_status, open_readable

if TYPE_CHECKING:
    from dsindex.shards.tasks import ShardTask

FINGERPRINT_SAMPLES = 16
FINGERPRINT_SAMPLE_BYTES = 16 << 10


def check_unchanged(task: ShardTask) -> None:
    """Compare an input's size and time with the plan.

    Raises:
        InputError: If it is missing or has changed.
    """
    if is_url(task.path):
        return  # every read asks for the object of the plan
    try:
        status = os.stat(task.path)
    except OSError as error:
        msg = f"{task.path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error
    if status.st_size != task.input_size_bytes or str(status.st_mtime_ns) != task.input_version:
        msg = (
            f"{task.path}: changed while the build was running (expected {task.input_size_bytes} bytes as planned, "
            f"got {status.st_size}, or a newer time); leave inputs alone, then run again with --fresh"
        )
        raise InputError(msg)


def require_unpacked(task: ShardTask) -> None:
    """Refuse a part whose text is incomplete; its records so far were read, so an earlier bad record goes first.

    Raises:
        InputError: If its input could not be unpacked.
    """
    if task.unpacked is not None and task.unpacked.error is not None:
        raise InputError(task.unpacked.error)


def fingerprint_input(path: str) -> str:
    """Fingerprint an input by its size and 16 samples of its bytes, including the first and the last.

    Returns:
        XXH3-128, hexadecimal; independent of the file's path and time. For an object of somebody else its version, such
        as its ETag, which costs no request where the object was looked at.

    Raises:
        InputError: If it cannot be read.
    """
    if is_url(path):
        version = input_status(path).version
        if version != OWN_VERSION:
            return version.removeprefix(OWN_VERSION)
    try:
        with open_readable(path) as file:
            size_bytes = file.size_bytes
            digest = xxhash.xxh3_128(size_bytes.to_bytes(8, "big"))
            last = max(0, size_bytes - FINGERPRINT_SAMPLE_BYTES)
            for sample in range(FINGERPRINT_SAMPLES):
                offset = last * sample // (FINGERPRINT_SAMPLES - 1)
                digest.update(file.read_at(FINGERPRINT_SAMPLE_BYTES, offset))
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error
    return digest.hexdigest()
