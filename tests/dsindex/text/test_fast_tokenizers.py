"""The objects of gigatoken that a process keeps, and threads that share them."""

import copy
import os
import signal
import threading

import numpy as np
import pytest

from dsindex.text import fast_tokenizers
from dsindex.text.encoders import choose_engine, make_encoder
from dsindex.text.tokenizer import reference_of
from tests.dsindex.text.encoded_texts import SUITABLE, TEXTS, encoded, expected
from tests.support import text_tokenizers as trained

pytestmark = pytest.mark.usefixtures("alone")


def count_loads(monkeypatch):
    import gigatoken

    loaded = []
    from_json = gigatoken.Tokenizer.from_json
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda data: loaded.append(data) or from_json(data))
    return loaded


@pytest.mark.parametrize(
    ("resident", "most_bytes"),
    [([100, 100 + 193 * 1024**2], 1 << 30), ([None, None], 1 << 30), ([100, 100], 1000)],
    ids=["grown", "unknown", "much text"],
)
def test_gigatoken_is_built_again_and_says_the_same(monkeypatch, resident, most_bytes):
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    sizes = iter([*resident, 0])
    monkeypatch.setattr(fast_tokenizers, "_SHARED", {})
    monkeypatch.setattr(fast_tokenizers, "REBUILD_AFTER_BYTES", most_bytes)
    monkeypatch.setattr(fast_tokenizers, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(fast_tokenizers, "REBUILD_AFTER_SECONDS", 0)
    built = count_loads(monkeypatch)
    encoder = make_encoder(tokenizer, engine)
    first = encoded(encoder, TEXTS[:50])
    assert len(built) == 1
    assert encoded(encoder, TEXTS[:50]) == first
    assert len(built) == 2


def test_gigatoken_is_kept_while_the_process_does_not_grow(monkeypatch):
    monkeypatch.setattr(fast_tokenizers, "resident_bytes", lambda: 100)
    loaded = count_loads(monkeypatch)
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)  # loads it, to try it
    first = encoded(make_encoder(tokenizer, engine), TEXTS[:50])
    assert encoded(make_encoder(copy.deepcopy(tokenizer), engine), TEXTS[:50]) == first
    assert len(loaded) == 1


def test_what_learns_nothing_is_never_built_again(monkeypatch):
    monkeypatch.setattr(fast_tokenizers, "REBUILD_AFTER_BYTES", 0)
    loaded = count_loads(monkeypatch)
    for name, loads in [("sentencepiece-bpe", 1), ("bos", 3)]:
        tokenizer = trained.as_tokenizer(SUITABLE[name])
        engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
        for _ in range(2):
            assert encoded(make_encoder(tokenizer, engine), TEXTS[:50]) == expected(SUITABLE[name], TEXTS[:50])
        assert len(loaded) == loads
        loaded.clear()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["bos", "nfc", "stripping-tokens", "sentencepiece-bpe"])
def test_threads_share_an_object_and_each_gets_its_own_tokens(name, monkeypatch):
    """More threads than CPUs, with calls of little text, of much, and a rebuild now and then in between."""
    monkeypatch.setattr(fast_tokenizers, "REBUILD_AFTER_BYTES", 1 << 20)
    monkeypatch.setattr(fast_tokenizers, "_UNDIVIDED_BYTES", 4000)
    tokenizer = trained.as_tokenizer(SUITABLE[name])
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "gigatoken", add_special_tokens=True))
    wanted = expected(SUITABLE[name], TEXTS)
    wrong = []
    began = threading.Barrier(6)

    def work(thread):
        began.wait()
        for step in range(60):
            first = (thread * 211 + step * 37) % len(TEXTS)
            last = min(len(TEXTS), first + (5, 60, 400)[step % 3])
            if encoded(encoder, TEXTS[first:last]) != wanted[first:last]:
                wrong.append(first)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(("name", "wanted"), [("byte-level", [False, True]), ("sentencepiece-bpe", [False, False])])
def test_calls_at_the_same_time_do_not_wait_for_each_other(monkeypatch, name, wanted):
    """Two calls meet inside of gigatoken: one of them by a table of its pool, where it has tables."""
    met = threading.Barrier(2, timeout=240)
    seen = []

    def meet(*_, parallel):
        met.wait()
        seen.append(parallel)
        return np.empty(0, np.uint32), np.zeros(1, np.int64)

    monkeypatch.setattr(fast_tokenizers, "encode_ragged", meet)
    shared = fast_tokenizers.fast_tokenizer(trained.as_tokenizer(SUITABLE[name]))
    arguments = (np.array([0, 3]), np.frombuffer(b"abc", np.uint8))
    threads = [threading.Thread(target=shared.encode, args=arguments) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == wanted


def test_much_text_stays_in_the_calling_thread_and_waits_for_no_other(monkeypatch):
    """gigatoken would divide it among threads of its own; so each call that is left over gets an object of its own."""
    met = threading.Barrier(4, timeout=240)
    seen = []

    def meet(fast, *_, parallel):
        seen.append((fast, parallel))
        met.wait()
        return np.empty(0, np.uint32), np.zeros(1, np.int64)

    monkeypatch.setattr(fast_tokenizers, "encode_ragged", meet)
    loaded = count_loads(monkeypatch)
    shared = fast_tokenizers.fast_tokenizer(trained.as_tokenizer(trained.byte_level()))
    text = np.zeros(fast_tokenizers._UNDIVIDED_BYTES, np.uint8)
    for _ in range(2):
        threads = [threading.Thread(target=shared.encode, args=(np.array([0, len(text)]), text)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) == 8
    assert not any(parallel for _, parallel in seen)
    assert len({id(fast) for fast, _ in seen[:4]}) == len({id(fast) for fast, _ in seen}) == len(loaded) == 4


def test_the_last_few_tokenizers_are_kept():
    contents = [SUITABLE[name] for name in ("bos", "eos", "both")]
    first, second, third = map(fast_tokenizers.fast_tokenizer, map(trained.as_tokenizer, contents))
    assert fast_tokenizers.fast_tokenizer(trained.as_tokenizer(contents[1])) is second
    assert fast_tokenizers.fast_tokenizer(trained.as_tokenizer(contents[2])) is third
    assert fast_tokenizers.fast_tokenizer(trained.as_tokenizer(contents[0])) is not first


def test_a_forked_process_waits_for_no_lock_of_its_parent():
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    wanted = expected(SUITABLE["bos"], TEXTS[:5])
    with fast_tokenizers.fast_tokenizer(tokenizer)._lock, fast_tokenizers._SHARED_LOCK:  # as if a thread encoded
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if encoded(make_encoder(tokenizer, engine), TEXTS[:5]) == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_of_ours_keep_tokenizers_in_each(monkeypatch):
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "tokenizers", add_special_tokens=True)
    for before, after in [(None, "false"), ("true", "true")]:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
        if before is not None:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        reference_of.cache_clear()  # another test may have left one
        make_encoder(tokenizer, engine)
        assert os.environ.get("TOKENIZERS_PARALLELISM") == after
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
