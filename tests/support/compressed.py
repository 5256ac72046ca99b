"""Compressed files in every supported format, in the variants that common tools write."""

import bz2
import gzip
import lzma
import struct
import sys
import zlib

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_BGZF_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def _cut(data, size):
    return [data[begin : begin + size] for begin in range(0, len(data), size)] or [b""]


def bgzf(data, size=0xFF00):
    """Compress like bgzip: gzip members whose headers have their sizes, and an empty member at the end."""
    members = []
    for piece in _cut(data, size):
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        body = deflate.compress(piece) + deflate.flush()
        header = struct.pack("<4sIBBHBBHH", b"\x1f\x8b\x08\x04", 0, 0, 255, 6, 66, 67, 2, len(body) + 25)
        members.append(header + body + struct.pack("<II", zlib.crc32(piece), len(piece)))
    return b"".join(members) + _BGZF_END


def zstd_frames(data, size):
    """Compress to several frames, like `pzstd` or `cat *.zst`, with a skippable frame after the first."""
    frames = [zstd.compress(piece, options={zstd.CompressionParameter.checksum_flag: 1}) for piece in _cut(data, size)]
    frames.insert(1, struct.pack("<II", 0x184D2A53, 5) + b"jump!")
    return b"".join(frames)


def zstd_stream(data):
    """Compress like `zstd` from a pipe: one frame whose header does not have the size of its content."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(data) + compressor.flush()


COMPRESSORS = {
    "one.gz": lambda data: gzip.compress(data, 6, mtime=0),
    "members.gz": lambda data: b"".join(gzip.compress(piece, mtime=0) for piece in _cut(data, 1500)),
    "padded.gz": lambda data: gzip.compress(data, mtime=0) + bytes(700),
    "blocks.gz": lambda data: bgzf(data, 700),
    "one.zst": zstd_stream,
    "frames.zst": lambda data: zstd_frames(data, 900),
    "one.bz2": bz2.compress,
    "streams.bz2": lambda data: b"".join(map(bz2.compress, _cut(data, 2000))),
    "one.xz": lambda data: lzma.compress(data, preset=1),
    "streams.xz": lambda data: b"".join(lzma.compress(piece) + bytes(8) for piece in _cut(data, 2000)),
}
"""File name → function that compresses the file's content."""
