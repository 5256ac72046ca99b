import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from dsindex.engine.tasks import ShardTask
from dsindex.engine.work_folder import write_marker
from dsindex.engine.worker import ShardSettings, tokenize_shard
from dsindex.text.engines import choose_engine
from dsindex.text.selection import select_keys
from dsindex.text.tokenizer import load_tokenizer, shared_tokenizer
from tests.support.golden import OWN


@pytest.mark.parametrize("num_ranges", [1, 2, 5])
def test_texts_of_the_reference_are_the_same_for_any_cut(tmp_path, num_ranges):
    new_letters = ["\u088f", "\u0c5c", "\ua7ce", "\U000323b0"]
    texts = [f"{number}{new_letters[number % 4] if number % 3 == 0 else 'x'}'s wheel\n\nturns" for number in range(90)]
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    whole, shared = task_of(path), settings_in(tmp_path)
    cuts = [whole.end * cut // num_ranges for cut in range(num_ranges + 1)]
    tokens = []
    for begin, end in itertools.pairwise(cuts):
        [key] = tokenize_shard(replace(whole, begin=begin, end=end), shared).keys
        tokens += np.fromfile(tmp_path / "work" / key.bin.name, "<u2").tolist()
    wanted = [encoding.ids for encoding in shared_tokenizer(shared.tokenizer).encode_batch(texts)]
    assert tokens == [token for ids in wanted for token in ids]


def task_of(path):
    size, version = path.stat().st_size, str(path.stat().st_mtime_ns)
    return ShardTask(shard=0, input=0, path=str(path), begin=0, end=size, input_size_bytes=size, input_version=version)


def settings_in(folder):
    tokenizer = load_tokenizer(str(OWN.plain_tokenizer))
    work_dir = folder / "work"
    work_dir.mkdir(exist_ok=True)
    write_marker(str(work_dir))
    return ShardSettings(
        tokenizer=tokenizer,
        engine=choose_engine(tokenizer, "gigatoken", add_special_tokens=True),
        keys=("text",),
        selection=select_keys(("text",)),
        dtype="<u2",
        eod_id=None,
        layout="megatron",
        quarantine=False,
        max_record_bytes=None,
        provenance=False,
        work_dir=str(work_dir),
    )
