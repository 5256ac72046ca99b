"""The trainers' own readers open the exports of instruction data and learn as many tokens as the masks say."""

import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dsindex.chat.config import check_config
from dsindex.chat.tokens import ChatTokenizer
from dsindex.datasets.indexed import IndexedDataset
from dsindex.options.instruct import InstructConfig
from tests.peers.test_trainers import EmptyPackages
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config

LENGTH = 4096
BRIDGE = os.environ.get("MEGATRON_BRIDGE")
"""A checkout of Megatron-Bridge, whose package cannot be installed without CUDA."""
RANKS = [1, 2, 4, 8, 16]
"""Context-parallel ranks; a conversation is cut into twice as many pieces."""


def export(folder, instruction, **options):
    defaults = {"output_prefix": str(folder / "chat"), "seq_length": LENGTH, "split": "9,1,0"}
    config = config_of(InstructConfig, CONVERSATIONS, **{**defaults, **options})
    run_config(config, check_config(instruction, source="test"))
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    instruction = {**SPEC, "max_length": LENGTH}
    folder = tmp_path_factory.mktemp("made")
    export(folder, instruction, export=("parquet",), seq_length=None)
    return export(folder, instruction, export=("parquet", "bridge"))


def targets(folder, split="train"):
    """Trainable tokens that are not the first of their sequence, counted in the masks."""
    return sum(int(mask[1:].sum()) for mask in IndexedDataset(folder / f"chat_{split}_loss_mask"))


def tokenizer():
    from transformers import PreTrainedTokenizerFast

    path = Path(OWN.plain_tokenizer) / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def tiny_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_embd": 16, "n_layer": 1, "n_head": 1, "n_inner": 16}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer()), n_positions=LENGTH, **size))


def trained(batches):
    return sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)


def datasets_of(folder, cache):
    return pytest.importorskip("datasets").load_dataset(str(folder / "chat_parquet"), cache_dir=str(cache))


def test_datasets_has_the_rows_of_both_splits(exported, tmp_path):
    splits = datasets_of(exported, tmp_path)
    assert set(splits) == {"train", "validation"}
    for name, split in (("train", "train"), ("validation", "valid")):
        texts = IndexedDataset(exported / f"chat_{split}_text_document")
        assert [row["input_ids"] for row in splits[name]] == [tokens.tolist() for tokens in texts]
        assert sum(label != -100 for row in splits[name] for label in row["labels"][1:]) == targets(exported, split)


def test_trl_trains_a_step_and_learns_the_trainable_tokens(exported, tmp_path):
    trl = pytest.importorskip("trl")
    short = {"max_steps": 1, "per_device_train_batch_size": 2, "max_length": None, "save_strategy": "no"}
    args = trl.SFTConfig(output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, report_to=[], **short)
    rows = datasets_of(exported, tmp_path)["train"]
    trainer = trl.SFTTrainer(model=tiny_model(), args=args, train_dataset=rows, processing_class=tokenizer())
    assert trained(trainer.get_train_dataloader()) == targets(exported)
    assert np.isfinite(trainer.train().training_loss)


def test_collator_of_trl_keeps_the_conversations_of_packs_apart(exported):
    """Its labels agree with the masks, and positions begin at 0 in each conversation, as attention without padding
    needs it."""
    trainer = pytest.importorskip("trl.trainer.sft_trainer")
    rows = rows_of(exported / f"chat_parquet_{LENGTH}")
    collate = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    for row in rows:
        batch = collate([row])
        assert batch["input_ids"].tolist() == [row["input_ids"]]
        assert batch["position_ids"].tolist() == [row["position_ids"]]
        assert batch["labels"].tolist() == [row["labels"]]
    assert sum(label != -100 for row in rows for label in row["labels"]) == targets(exported)


MEGATRON_SFT = os.environ.get("MEGATRON_SFT")
"""A checkout of Megatron-LM's pull request 5017, whose SFTDataset reads tokens from `.bin/.idx`."""


def test_megatron_reads_the_tokens_and_finds_masks_by_itself(tmp_path):
    """It finds replies by ChatML's strings, whatever our masks say: with a template of ChatML, it learns of each reply
    what ours has, apart from its first token, to which its mask is not shifted, and the newline at its end."""
    if MEGATRON_SFT is None:
        pytest.skip("MEGATRON_SFT names no checkout of Megatron-LM's pull request 5017")
    pytest.importorskip("megatron.core")
    path = Path(MEGATRON_SFT, "megatron/core/datasets/sft_dataset.py")
    spec = importlib.util.spec_from_file_location("sft_dataset", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    model = chat_tokenizer(tmp_path)
    folder = export(tmp_path, {"chat_template": "chatml"}, tokenizer_model=str(model), split=None)
    texts, masks = (IndexedDataset(folder / f"chat_{name}") for name in ("text_document", "loss_mask"))
    encode = ChatTokenizer.from_path(model).encode
    chat = theirs.Nemotron3ChatTemplateConfig()
    starts = {role: encode(getattr(chat, f"{role}_start_str")).ids.tolist() for role in ("system", "user", "assistant")}
    markers = ("think_start", "think_end", "tool_call_start", "tool_call_end", "tool_response_start")
    marker_ids = [encode(getattr(chat, f"{name}_str")).ids.tolist() for name in ("end", *markers)]
    for tokens, mask in zip(texts, masks, strict=True):
        segments = theirs.extract_segments(tokens.tolist(), starts, *marker_ids)
        reply_mask = np.zeros(len(tokens), np.int64)
        for segment in segments:
            if segment["role"] == "assistant":
                reply_mask[segment["start"] : segment["end"]] = 1
        trained = np.flatnonzero(reply_mask[:-1]) + 1  # as its __getitem__ pairs loss_mask[:-1] with tokens[1:]
        begins = np.flatnonzero(np.diff(mask.astype(int), prepend=0) == 1)
        ends = np.flatnonzero(np.diff(mask.astype(int), append=0) == -1)
        assert trained.tolist() == np.setdiff1d(np.flatnonzero(mask), [*begins, *ends]).tolist()


def chat_tokenizer(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(OWN.plain_tokenizer) / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def as_packages(root, names):
    """Let modules of a checkout be imported without running the packages above them, which import CUDA libraries."""
    for name in names:
        module = ModuleType(name)
        module.__path__ = [str(Path(root, *name.split(".")))]
        sys.modules[name] = module


@pytest.fixture(scope="module")
def bridge():
    """Megatron-Bridge's dataset class and its own packer, of a release from 0.4 on."""
    if BRIDGE is None:
        pytest.skip("MEGATRON_BRIDGE names no checkout of Megatron-Bridge")
    pytest.importorskip("datasets")
    packages = ["", ".data", ".data.packing", ".data.datasets"]
    packages += [".training", ".training.tokenizers", ".training.utils", ".utils"]
    as_packages(Path(BRIDGE, "src"), [f"megatron.bridge{package}" for package in packages])
    stubs = {
        "megatron.bridge.training.tokenizers.tokenizer": {"MegatronTokenizer": object},
        "megatron.bridge.training.utils.visual_inputs": {"GenericVisualInputs": object},
        "megatron.bridge.utils.common_utils": dict.fromkeys(("get_local_rank_preinit", "get_rank_safe"), lambda: 0),
    }
    if importlib.util.find_spec("megatron.core.msc_utils") is None:
        no_client = type("MultiStorageClientFeature", (), {"is_enabled": staticmethod(lambda: False)})
        stubs["megatron.core.msc_utils"] = {"MultiStorageClientFeature": no_client}
    for name, contents in stubs.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(contents)
    is_old = not Path(BRIDGE, "src/megatron/bridge/data/packing/offline.py").exists()
    names = ["datasets.packed_parquet", "datasets.packed_sequence", "datasets.packing_utils"]
    names = names if is_old else ["packing.parquet", "packing.offline", "packing.algorithms"]
    parquet, offline, algorithms = (importlib.import_module(f"megatron.bridge.data.{name}") for name in names)
    yield SimpleNamespace(
        reader=parquet.GPTSFTPackedParquetDataset,
        pad=getattr(offline, "_pre_pad_data_point", None),  # since 0.6; before, it padded by another rule
        create_hist=algorithms.create_hist,
        create_packing_strategy=algorithms.create_packing_strategy,
        fill_packing_strategy=algorithms.fill_packing_strategy,
    )
    for name in [name for name in sys.modules if name.startswith("megatron.bridge")]:
        del sys.modules[name]


def bridge_batch(bridge, folder, eos=0, **options):
    """All packs of a folder, as its reader has them, and the batch of its collate function."""
    dataset = bridge.reader(
        str(folder / "train-*.idx.parquet"),
        SimpleNamespace(eos_id=eos),
        max_seq_length=LENGTH,
        pad_to_max_length=True,
        pack_metadata_file_path=str(folder / "packed_metadata.json"),
        prompt_template="{text} {answer}",
        label_key="answer",
        **options,
    )
    rows = [dataset[number] for number in range(len(dataset))]
    for number, row in enumerate(rows):
        dataset.validate_row(number, row["input_ids"], row["loss_mask"], row["seq_boundaries"][:-1])
    return rows, dataset.collate_fn(rows)


def cut_for_rank(batch, ends, ranks, rank):
    """The part of a pack for one rank: pieces `rank` from the front and from the back of each conversation.

    Source: Transformer Engine, thd_get_partitioned_indices, which Megatron's get_batch_on_this_cp_rank calls.
    """
    places = []
    for begin, end in itertools.pairwise(ends):
        size, remainder = divmod(end - begin, 2 * ranks)
        assert remainder == 0
        for piece in (rank, 2 * ranks - 1 - rank):
            places += range(begin + piece * size, begin + (piece + 1) * size)
    return {name: batch[name][places] for name in ("tokens", "labels", "loss_mask")}


def trained_pairs(batch):
    keep = batch["loss_mask"] != 0
    return sorted(zip(batch["tokens"][keep].tolist(), batch["labels"][keep].tolist(), strict=True))


def padded_export(exported, ranks):
    """Export packs for context parallelism; return their folder and the multiple that conversations are padded to."""
    multiple = 1 if ranks == 1 else 2 * ranks
    export(exported, {**SPEC, "max_length": LENGTH}, export=("bridge",), pad_to_multiple=multiple)
    return exported / (f"chat_bridge_{LENGTH}" + (f"_pad{multiple}" if ranks > 1 else "")), multiple


def rows_of(folder):
    return [row for path in sorted(folder.glob("train-*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_megatron_bridge_cuts_packs_for_context_parallelism(exported, bridge, ranks):
    folder, multiple = padded_export(exported, ranks)
    texts = IndexedDataset(exported / "chat_train_text_document")
    rows, batch = bridge_batch(bridge, folder, pad_seq_to_mult=multiple)
    assert int(batch["loss_mask"].sum()) == targets(exported)
    is_new = "cu_seqlens_q" in batch
    names = ("cu_seqlens_q_padded", "cu_seqlens_q") if is_new else ("cu_seqlens", "cu_seqlens_unpadded")
    for number, written in zip(range(len(rows)), rows_of(folder), strict=True):
        row = {name: batch[name][number] for name in ("tokens", "labels", "loss_mask")}
        conversations = [texts[sequence] for sequence in written["sequences"]]
        physical, logical = (batch[name][number].tolist()[: len(conversations) + 1] for name in names)
        # The reader ends a conversation at the last token before those that are EOS, and never has the last token of
        # one that needs no padding.
        real = [[*tokens[:-1], *([] if (len(tokens) - 1) % multiple == 0 else tokens[-1:])] for tokens in conversations]
        assert np.diff(physical).tolist() == [-(-(len(tokens) - 1) // multiple) * multiple for tokens in conversations]
        assert np.diff(logical).tolist() == [int(np.flatnonzero(tokens)[-1]) + 1 for tokens in real]
        ends = [*physical, *([LENGTH] if physical[-1] < LENGTH else [])]
        parts = [cut_for_rank(row, ends, ranks, rank) for rank in range(ranks)]
        assert {len(part["tokens"]) for part in parts} == {LENGTH // ranks}
        assert sorted(pair for part in parts for pair in trained_pairs(part)) == trained_pairs(row)


def samples_of(rows):
    """The conversations of packs with the masks of their next tokens, in any order."""
    return sorted(
        (row["input_ids"][begin:end], [int(learns) for learns in row["loss_mask"][begin:end]])
        for row in rows
        for begin, end in itertools.pairwise([*row["seq_start_id"], len(row["input_ids"])])
    )


@pytest.mark.parametrize("algorithm", ["first_fit_decreasing", "first_fit_shuffle"])
@pytest.mark.parametrize("ranks", RANKS)
def test_packs_have_the_samples_of_megatron_bridges_packer_and_are_as_full(exported, bridge, ranks, algorithm):
    if ranks > 1 and bridge.pad is None:
        pytest.skip("a release that pads by another rule")
    folder, multiple = padded_export(exported, ranks)
    texts, masks = (IndexedDataset(exported / f"chat_train_{name}") for name in ("text_document", "loss_mask"))
    pairs = zip(texts, masks, strict=True)
    data = [{"input_ids": tokens.tolist(), "loss_mask": mask.astype(bool).tolist()} for tokens, mask in pairs]
    for chat in data if ranks > 1 else ():
        bridge.pad(chat, LENGTH, -(-(len(chat["input_ids"]) - 1) // multiple) * multiple + 1, 0)
    sequences, histogram = bridge.create_hist(data, LENGTH)
    np.random.seed(0)
    assignments, facts = bridge.create_packing_strategy(histogram, LENGTH, algorithm)
    theirs = bridge.fill_packing_strategy(assignments, sequences, LENGTH, 0)
    assert samples_of(rows_of(folder)) == samples_of(theirs)
    metadata = json.loads((folder / "packed_metadata.json").read_text())[0]
    assert metadata["packing_efficiency"] >= facts["packing_efficiency"]
    assert metadata.keys() >= facts.keys()
    assert metadata["dataset_max_seqlen"] == facts["dataset_max_seqlen"]


@pytest.mark.parametrize("pads_boundaries", [False, True])
def test_megatron_bridge_learns_the_trainable_tokens(exported, bridge, pads_boundaries):
    rows, batch = bridge_batch(bridge, exported / f"chat_bridge_{LENGTH}", pad_cu_seqlens=pads_boundaries)
    assert int(batch["loss_mask"].sum()) == targets(exported)
    assert batch["tokens"].shape == batch["labels"].shape == (len(rows), LENGTH)
    texts = IndexedDataset(exported / "chat_train_text_document")
    assert sum(batch["token_count"]) == texts.num_tokens - len(texts)


def test_llamafactory_loads_the_rows_as_tokenized(exported, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [EmptyPackages(), *sys.meta_path])
    loader = pytest.importorskip("llamafactory.data.loader")
    rows = datasets_of(exported, tmp_path / "cache")
    rows.save_to_disk(str(tmp_path / "disk"))
    options = SimpleNamespace(tokenized_path=str(tmp_path / "disk"), streaming=False)
    splits = loader.get_dataset(None, None, options, None, "sft", None)
    assert splits["train_dataset"].to_list() == rows["train"].to_list()
    assert splits["eval_dataset"].to_list() == rows["validation"].to_list()
