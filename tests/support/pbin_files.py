"""`.pbin` files for tests, written byte by byte from the specification in docs/formats.md §3."""

import pickle

VERSION_NAMES = ["spec", "2024-01-30", "2024-04", "current"]
DOCUMENTS = [[1, 2, 3], [], [200, 9], [4], [], []]


def pbin_bytes(documents, *, version, token_bytes=4):
    order = "big" if version in {"spec", "2024-01-30"} else "little"
    header_bytes = 8 if version == "spec" else 12
    data = b"".join(token.to_bytes(token_bytes, order) for document in documents for token in document)
    offset = 0 if version == "current" else header_bytes
    index = []
    for document in documents:
        index.append((offset, len(document) * token_bytes))
        offset += len(document) * token_bytes
    head = len(data).to_bytes(8, order) + (b"" if version == "spec" else token_bytes.to_bytes(4, order))
    return head + data + pickle.dumps(index, protocol=4)


def joined_by_modalities(files):
    """Join current files as Modalities does: each offset is too low by 12 bytes for every file before its own."""
    sizes = [int.from_bytes(file[:8], "little") for file in files]
    index, base = [], 0
    for file, size in zip(files, sizes, strict=True):
        index += [(offset + base, length) for offset, length in pickle.loads(file[12 + size :])]  # noqa: S301 - ours
        base += size - 12
    data = b"".join(file[12 : 12 + size] for file, size in zip(files, sizes, strict=True))
    return sum(sizes).to_bytes(8, "little") + files[0][8:12] + data + pickle.dumps(index, protocol=4)


def write_pbin(path, documents, *, version="current", token_bytes=4):
    path.write_bytes(pbin_bytes(documents, version=version, token_bytes=token_bytes))
    return str(path)
