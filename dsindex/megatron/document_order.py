"""Document indices in orders other than Megatron's: packed, by length, or read from a file.

Sample k takes the input tokens [k * L, (k + 1) * L) of the documents laid end to end. In Megatron's order these borders
fall anywhere; the packed order arranges documents so that few borders fall inside a document:

    L = 8, lengths 5 6 3 4 2 4: Megatron's order, for example, 5 (3|3) 3 (2|2) 2 4; packed 6 2 | 5 3 | 4 4

A document of k * L + r tokens, with r in [1, L], fills k whole samples and r tokens of one more, wherever it begins, if
the open sample has r free tokens. So this is exact bin packing of the sizes r into bins of L tokens. The largest
document opens a bin, more follow in random order, and one document, two, or a subset that fits exactly closes it.
If nothing fits, a document is cut, preferably one longer than L.

Each epoch is a permutation of the documents. The next epoch fills the room left in the last sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from dsindex.errors import FormatError, InputError
from dsindex.formats.dtypes import DAMAGED_ARRAY_ERRORS
from dsindex.megatron.arrays import shuffle_in_place
from dsindex.megatron.epochs import DOCUMENT_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.megatron.epochs import DocumentOrder

GROUP = 1 << 18
"""Number of documents packed at a time."""
RESERVE = 1 << 14
"""Documents that a group leaves to the next one, so that its last bins can still be filled exactly."""
TAIL = 1 << 11
"""Number of documents at the end of an epoch that are packed in several orders."""
MAX_ATTEMPTS = 32
"""Most orders to try; the search stops early once no document of at most L tokens is cut."""
MAX_CANDIDATES = 64
"""Most documents to try as one of a pair that fills a bin, and most documents whose subset sums are tried."""
NUM_SCANNED = 1 << 12
"""Documents to scan for these candidates."""
SUM_WORK = 64
"""Most steps of the subset-sum search, per document."""
MAX_OPEN = 1 << 12
"""Documents of an open bin that are shuffled together; a larger bin is shuffled in runs of this size."""


def build_ordered_document_index(
    lengths: NDArray[np.int32],
    num_epochs: int,
    *,
    begin: int,
    sequence_length: int,
    order: DocumentOrder,
    rng: np.random.RandomState,
) -> NDArray[np.int32]:
    """Order the documents of each epoch separately.

    Args:
        lengths: Tokens of the sequences [begin, begin + n), shape [n].
        num_epochs: At least 1.
        begin: The sequence id of lengths[0].
        sequence_length: L.
        order: Any order but `shuffled` with samples shuffled together, which is Megatron's.
        rng: Freshly seeded with the job's seed.

    Returns:
        Sequence ids, shape [num_epochs * n].

    Raises:
        InputError: If the order's file does not have each document once per epoch.
        FormatError: If it cannot be read.
    """
    documents = np.empty((num_epochs, len(lengths)), DOCUMENT_DTYPE)
    if order.digest is not None:
        documents[:] = read_order(order.documents, begin, len(lengths), num_epochs)
        return documents.reshape(-1)
    room = sequence_length
    for number, epoch in enumerate(documents):
        epoch[:] = np.arange(begin, begin + len(lengths), dtype=DOCUMENT_DTYPE)
        room = order_epoch(
            epoch, lengths, begin=begin, length=sequence_length, room=room, epoch=number, order=order, rng=rng
        )
    return documents.reshape(-1)


def read_order(path: str, begin: int, count: int, num_epochs: int) -> NDArray[np.integer[Any]]:
    """Read an order file: the numbers of the documents [begin, begin + count), for one epoch or for all.

    Returns:
        Numbers, shape [1 or num_epochs, count].

    Raises:
        InputError: If the file does not have each document once per epoch.
        FormatError: If it cannot be read.
    """
    try:
        if path.endswith(".npy"):
            numbers = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            import pyarrow.parquet as pq

            table = pq.read_table(path)
            name = "document" if "document" in table.column_names else table.column_names[0]
            numbers = table.column(name).to_numpy()
    except DAMAGED_ARRAY_ERRORS as error:
        raise FormatError(f"{path}: cannot be read as document numbers ({error})") from error
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or len(numbers) not in {count, num_epochs * count}:
        hint = f"it needs {count} integers for every epoch, or {num_epochs * count} for all {num_epochs} epochs"
        raise InputError(f"{path} has {numbers.dtype} of shape {numbers.shape}", hint=hint)
    epochs: NDArray[np.integer[Any]] = numbers.reshape(-1, count)
    for number, epoch in enumerate(epochs):
        uses = np.bincount(epoch[(epoch >= begin) & (epoch < begin + count)].astype(np.int64) - begin, minlength=count)
        if not uses.all():
            hint = f"each number from {begin} to {begin + count - 1} has to occur once per epoch"
            raise InputError(f"{path}: document {begin + int(np.argmin(uses))} is not in epoch {number}", hint=hint)
    return epochs


def order_epoch(
    documents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    *,
    begin: int,
    length: int,
    room: int,
    epoch: int,
    order: DocumentOrder,
    rng: np.random.RandomState,
) -> int:
    """Rearrange the documents of one epoch in place, in any order that is not read from a file.

    Args:
        documents: Ids from `begin` on, ascending.
        lengths: Tokens of each sequence, shape [n].
        begin: The id of lengths[0].
        length: L.
        room: Free tokens in the sample in which the epoch begins, in [1, L].
        epoch: Number of the epoch. In every second epoch, a pair of documents is preferred to the only document that
            fills a sample exactly; otherwise documents of rare sizes would share a sample in every epoch.
        order: How documents are arranged after a shuffle.
        rng: Shuffles the documents, and packed documents within a sample.

    Returns:
        Free tokens in the sample in which a packed epoch ends, in [1, L].
    """
    shuffle_in_place(documents, rng=rng)
    if order.documents == "length":
        documents[:] = documents[np.argsort(lengths[documents - begin], kind="stable")]
    if order.documents != "packed":
        return room
    width, seed = int(min(length, lengths.max(initial=1))), np.uint64(rng.randint(1 << 31))
    room, num_packed, _ = _pack_documents(documents, lengths, begin, length, width, room, epoch, seed, TAIL)
    # Few documents have few sums, so the last ones are packed in several orders and the best one is kept.
    tail, fewest_cut, last_room = documents[num_packed:].copy(), len(documents) + 1, room
    for attempt in range(MAX_ATTEMPTS):
        candidate = tail.copy() if attempt == 0 else rng.permutation(tail)
        end_room, _, num_cut = _pack_documents(candidate, lengths, begin, length, width, room, epoch, seed, 0)
        if num_cut < fewest_cut:
            documents[num_packed:], last_room, fewest_cut = candidate, end_room, num_cut
        if num_cut == 0:
            break
    return int(last_room)


class _Pool(NamedTuple):
    ids: NDArray[np.int32]
    sizes: NDArray[np.int32]
    """Size r of each document, in [1, L]; 0 for an empty document."""
    is_long: NDArray[np.uint8]
    used: NDArray[np.uint8]
    by_size: NDArray[np.int32]
    """Places of the documents in the pool, sorted by size."""
    ends: NDArray[np.int32]
    """Size → end of its unused documents in by_size; used ones may remain below it."""
    unused: NDArray[np.int32]
    """Size → number of its unused documents."""
    chosen: NDArray[np.int64]
    """Places of the documents to put into the open bin next."""
    candidates: NDArray[np.int64]
    sums: NDArray[np.int8]


@njit(cache=True, nogil=True)
def _pack_documents(
    documents: NDArray[np.int32],
    lengths: NDArray[np.int32],
    begin: int,
    length: int,
    width: int,
    room: int,
    epoch: int,
    random: np.uint64,
    tail: int,
) -> tuple[int, int, int]:
    """Pack all documents but the last `tail`; return the room, the number packed, and the number of short ones cut."""
    num_documents = documents.shape[0]
    capacity = min(num_documents, GROUP + RESERVE)
    pool = _Pool(
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int32),
        np.empty(capacity, np.uint8),
        np.empty(capacity, np.uint8),
        np.empty(capacity, np.int32),
        np.empty(width + 1, np.int32),
        np.empty(width + 1, np.int32),
        np.empty(MAX_CANDIDATES, np.int64),
        np.empty(MAX_CANDIDATES, np.int64),
        np.empty(2 * width + 2, np.int8),
    )
    opened = np.empty(MAX_OPEN + MAX_CANDIDATES, np.int64)
    num_read: Any = 0
    num_written: Any = 0
    num_unpacked: Any = 0
    num_cut: Any = 0
    while num_read < num_documents:
        count = num_unpacked + min(GROUP, num_documents - num_read)
        for place in range(num_unpacked, count):
            pool.ids[place] = documents[num_read + place - num_unpacked]
        num_read += count - num_unpacked
        num_kept = min(tail, count) if num_read == num_documents else RESERVE
        tokens = _sort_by_size(pool, lengths, begin, length, count)
        room, pool_cut, random = _pack_pool(
            pool, documents[num_written:], opened, count, num_kept, tokens, length, room, epoch, random
        )
        num_cut += pool_cut
        num_written += count - num_kept
        num_unpacked = 0
        for place in range(count):
            if not pool.used[place]:
                pool.ids[num_unpacked] = pool.ids[place]
                num_unpacked += 1
    documents[num_written:] = pool.ids[:num_unpacked]
    return room, num_written, num_cut


@njit(cache=True, nogil=True)
def _pack_pool(
    pool: _Pool,
    packed: NDArray[np.int32],
    opened: NDArray[np.int64],
    count: int,
    num_kept: int,
    tokens: int,
    length: int,
    room: int,
    epoch: int,
    random: np.uint64,
) -> tuple[int, int, np.uint64]:
    """Pack all but `num_kept` pooled documents; return the room, the number of short ones cut, and the generator."""
    width = pool.ends.shape[0] - 1
    num_remaining, num_written, num_opened, num_cut = count, 0, 0, 0
    cursor: Any = 0
    largest: Any = width
    work: Any = SUM_WORK * count
    while num_remaining > num_kept:
        while pool.used[cursor]:
            cursor += 1
        pool.chosen[0], num_chosen = cursor, 1
        size: Any = np.int64(pool.sizes[cursor])
        if size == 0 or (num_kept == 0 and tokens <= room):
            pass  # an empty document, or all that is left fits
        elif room == length:
            while pool.unused[largest] == 0:
                largest -= 1
            pool.chosen[0] = _find_unused(pool, largest)
        elif size > room or (room - size) * num_remaining < tokens:
            # It does not fit, or leaves less room than a mean document: search for documents that fill it exactly.
            by_two = num_opened > 0 and (pool.ids[opened[0]] ^ epoch) & 1 == 1
            num_chosen, work_done = _fill_room(pool, cursor, count, room, width, work, by_two)
            work -= work_done
        for step in range(min(num_chosen, num_remaining - num_kept)):
            place = pool.chosen[step]
            size = np.int64(pool.sizes[place])
            pool.used[place] = 1
            pool.unused[size] -= 1
            tokens -= size
            num_remaining -= 1
            room -= size
            opened[num_opened] = place
            num_opened += 1
        is_cut = room < 0
        num_cut += is_cut and not pool.is_long[opened[num_opened - 1]]
        room += length if room <= 0 else 0
        if is_cut or room == length or num_opened > MAX_OPEN or num_remaining == num_kept:
            # Any order of a bin's documents fills it, but a document that is cut comes last.
            random = _shuffle_first(opened, num_opened - is_cut, random)
            for step in range(num_opened):
                packed[num_written + step] = pool.ids[opened[step]]
            num_written += num_opened
            num_opened = 0
    return room, num_cut, random


@njit(cache=True, nogil=True)
def _sort_by_size(pool: _Pool, lengths: NDArray[np.int32], begin: int, length: int, count: int) -> int:
    """Sort the first `count` documents of the pool by size; return the sum of their sizes."""
    pool.unused[:] = 0
    tokens: Any = 0
    for place in range(count):
        num_tokens = lengths[np.uint32(pool.ids[place]) - np.uint32(begin)]
        size = (num_tokens - 1) % length + 1 if num_tokens else 0
        pool.sizes[place] = size
        pool.is_long[place] = num_tokens > length
        pool.used[place] = 0
        pool.unused[size] += 1
        tokens += size
    start = 0
    for size in range(pool.ends.shape[0]):
        pool.ends[size] = start
        start += pool.unused[size]
    for place in range(count):
        size = pool.sizes[place]
        pool.by_size[pool.ends[size]] = place
        pool.ends[size] += 1
    return int(tokens)


@njit(cache=True, nogil=True, forceinline=True)
def _shuffle_first(places: NDArray[np.int64], count: int, random: np.uint64) -> np.uint64:
    """Shuffle the first `count` places; return the generator's next state. Source: Knuth's MMIX, the upper bits."""
    for step in range(count - 1, 0, -1):
        random = random * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        other = np.int64(((random >> np.uint64(33)) * np.uint64(step + 1)) >> np.uint64(31))
        places[step], places[other] = places[other], places[step]
    return random


@njit(cache=True, nogil=True, forceinline=True)
def _find_unused(pool: _Pool, size: int) -> int:
    """Return an unused document of a size that has one."""
    while True:
        place = np.int64(pool.by_size[pool.ends[size] - 1])
        if not pool.used[place]:
            return int(place)
        pool.ends[size] -= 1


@njit(cache=True, nogil=True, forceinline=True)
def _fill_room(pool: _Pool, cursor: int, count: int, room: int, width: int, work: int, by_two: bool) -> tuple[int, int]:
    """Choose documents that fill the room exactly, or one to be cut; return how many, and the work of finding them."""
    num_fitting = pool.unused[room] if room <= width else 0
    if (num_fitting == 0 or (num_fitting == 1 and by_two)) and _fill_with_two(pool, cursor, count, room, width):
        return 2, 0
    if num_fitting:
        pool.chosen[0] = _find_unused(pool, room)
        return 1, 0
    num_chosen, work_done = _fill_with_many(pool, cursor, count, room) if work > 0 else (0, 0)
    if num_chosen:
        return num_chosen, work_done
    # Cut a long document if one is near, otherwise the next document that does not fit.
    pool.chosen[0] = cursor
    for place in range(cursor, min(count, cursor + NUM_SCANNED)):
        if not pool.used[place] and pool.sizes[place] > room:
            if pool.is_long[place]:
                pool.chosen[0] = place
                break
            if pool.sizes[pool.chosen[0]] <= room:
                pool.chosen[0] = place
    return 1, work_done


@njit(cache=True, nogil=True)
def _fill_with_two(pool: _Pool, cursor: int, count: int, room: int, width: int) -> bool:
    """Choose two documents that fill the room together; return whether there are any."""
    num_tried = 0
    chosen_size: Any = 0
    for place in range(cursor, min(count, cursor + NUM_SCANNED)):
        size: Any = np.int64(pool.sizes[place])
        if pool.used[place] or size == 0:
            continue
        if 0 < room - size <= width and pool.unused[room - size] > (room == 2 * size):
            chosen_size = size
            break
        num_tried += 1
        if num_tried == MAX_CANDIDATES:
            break
    if not chosen_size:
        for size in range(max(1, room - width), room // 2 + 1):
            if pool.unused[size] > (room == 2 * size) and pool.unused[room - size]:
                chosen_size = size
                break
    if chosen_size:
        pool.chosen[0] = _find_unused(pool, chosen_size)
        pool.used[pool.chosen[0]] = 1  # so that the second is a different document
        pool.chosen[1] = _find_unused(pool, room - chosen_size)
        pool.used[pool.chosen[0]] = 0
    return bool(chosen_size)


@njit(cache=True, nogil=True)
def _fill_with_many(pool: _Pool, cursor: int, count: int, room: int) -> tuple[int, int]:
    """Choose a subset of the next documents whose sizes sum to the room; return how many, and the work."""
    sums, num_candidates, step = pool.sums, 0, 0
    for place in range(cursor, min(count, cursor + NUM_SCANNED)):
        if num_candidates == MAX_CANDIDATES:
            break
        if not pool.used[place] and 0 < pool.sizes[place] < room:
            pool.candidates[num_candidates] = place
            num_candidates += 1
    sums[: room + 1] = -1
    highest: Any = 0
    while step < num_candidates and sums[room] < 0:
        size = np.int64(pool.sizes[pool.candidates[step]])
        highest += size
        # sums[s] is the candidate that completed the sum s when it was first reached.
        for total in range(min(room, highest), size - 1, -1):
            if sums[total] < 0 and (total == size or sums[total - size] >= 0):
                sums[total] = step
        step += 1
    num_chosen: Any = 0
    total = room
    while sums[room] >= 0 and total > 0:
        pool.chosen[num_chosen] = pool.candidates[sums[total]]
        total -= pool.sizes[pool.chosen[num_chosen]]
        num_chosen += 1
    return num_chosen, step * room
