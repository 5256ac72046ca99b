import pytest

from workflows.demo_text import write_demo_jsonl
from workflows.pretraining import train_tokenizer


@pytest.fixture(scope="session")
def demo_output(tmp_path_factory):
    """The text and tokenizer that `make demo` leaves in demo-output, which the examples begin with."""
    folder = tmp_path_factory.mktemp("demo") / "demo-output"
    train_tokenizer(write_demo_jsonl(folder / "text"), folder / "tokenizer")
    return folder
