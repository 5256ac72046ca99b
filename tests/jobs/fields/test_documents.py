"""The documents that paths, patterns, joined texts and token ids are stored as."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.datasets.indexed import IndexedDataset
from dsindex.errors import InputError
from tests.jobs.fields.field_builds import KINDS, TOKENIZER, config_of, good_records
from tests.support.jobs import run_config


def documents(prefix, name):
    """The sequences of each document."""
    dataset = IndexedDataset(str(prefix.with_name(f"{prefix.name}_{name}_document")))
    stops = dataset.document_indices.tolist()
    return [
        [np.asarray(dataset[sequence]).tolist() for sequence in range(begin, end)] for begin, end in pairwise(stops)
    ]


def encode(text):
    from dsindex.text.tokenizer import shared_tokenizer

    return shared_tokenizer(TOKENIZER).encode(text).ids


def closed(sequences):
    """A document as it is stored: without empty sequences, and with EOD at its end."""
    kept = [ids for ids in sequences if ids]
    return [*kept[:-1], [*kept[-1], TOKENIZER.eod_id]] if kept else []


def test_paths_and_patterns_are_what_json_says(source, tmp_path):
    run_config(config_of(source, tmp_path, **KINDS["jq"]))
    records = good_records(source)
    assert documents(tmp_path / "x", "both") == [closed([encode(r["text"] + r["meta"]["text"])]) for r in records]
    assert documents(tmp_path / "x", "list") == [
        closed([encode(r["text"]), encode(r["meta"]["text"])]) for r in records
    ]


def test_joined_texts_are_one_document(source, tmp_path):
    run_config(config_of(source, tmp_path, **KINDS["join"]))
    assert documents(tmp_path / "x", "text") == [
        closed([encode("\n".join([r["text"], r["meta"]["text"], "\n".join(r["meta"]["tags"])]))])
        for r in good_records(source)
    ]


def test_token_ids_are_stored_as_they_are(source, tmp_path):
    run_config(config_of(source, tmp_path, token_ids=".meta.ids"))
    assert documents(tmp_path / "x", "meta.ids") == [closed([r["meta"]["ids"]]) for r in good_records(source)]
    report = run_config(config_of(source, tmp_path / "lists", token_ids="lists", append_eod=False))
    assert documents(tmp_path / "lists" / "x", "lists") == [
        [ids for ids in r["lists"] if ids] for r in good_records(source)
    ]
    assert report.run.engine is None


@pytest.mark.parametrize("key", ["lists", ".meta.ids"])
def test_token_ids_of_a_table_are_those_of_its_lines(key, source, tmp_path):
    records = [record | {"text": record["text"] * 50} for record in good_records(source)]
    records[7] = records[7] | {"lists": [[1], [-1]], "meta": records[7]["meta"] | {"ids": [10**9]}}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet", row_group_size=30)
    for name in ("a.jsonl", "a.parquet"):
        config = config_of(source, tmp_path / name[2:], input=(str(tmp_path / name),), token_ids=key)
        report = run_config(config)
        assert (report.counts.kept, report.counts.quarantined) == (len(records) - 1, 1)
    for suffix in ("bin", "idx"):
        [of_lines] = (tmp_path / "jsonl").glob(f"*.{suffix}")
        [of_table] = (tmp_path / "parquet").glob(f"*.{suffix}")
        assert of_lines.read_bytes() == of_table.read_bytes()


def test_table_without_the_column_of_ids_is_refused(source, tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    config = config_of(source, tmp_path, input=(str(tmp_path / "a.parquet"),), token_ids="ids")
    with pytest.raises(InputError, match=r"a\.parquet: expected the column 'ids', got no such column; .*text"):
        run_config(config)


def test_ids_equal_the_texts_that_they_encode(source, tmp_path):
    """A tokenized corpus gives the same files as its text."""
    lines = [json.dumps({"ids": encode(record["text"])}) for record in good_records(source)]
    (tmp_path / "ids.jsonl").write_text("\n".join(lines))
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": r["text"]}) for r in good_records(source)))
    ids = config_of(source, tmp_path, input=(str(tmp_path / "ids.jsonl"),), token_ids="ids")
    run_config(ids)
    run_config(config_of(source, tmp_path, input=(str(tmp_path / "text.jsonl"),)))
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"x_ids_document.{suffix}").read_bytes() == (
            tmp_path / f"x_text_document.{suffix}"
        ).read_bytes()
