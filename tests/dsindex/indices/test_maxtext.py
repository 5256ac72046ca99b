from dsindex.index.epochs import EpochCounts
from dsindex.index.maxtext import blend_files, index_stem

EPOCHS = EpochCounts(
    tokens_per_epoch=9, num_epochs=3, num_samples=5, separate_final_epoch=True, shuffled_together=2
)  # fmt: skip


def test_names_are_those_of_maxtext():
    """Both hashes were printed by MaxText."""
    stem = index_stem("/data/web", epochs=EPOCHS, seed=1234, sequence_length=2048, split="99,1", part=1)
    assert stem == "cded622465f5ba54bb44eed7b3efc183"
    files, _ = blend_files("c", weights=[0.25, 0.75], lengths=[10, 30], size=40, split="train")
    assert files.array("dataset_index") == "c/c046f1280ebe5843cb8f2e8b9dee73aa-dataset_index.npy"
