import pytest

from dsindex.demo.run import train_demo_tokenizer, write_demo_jsonl


@pytest.fixture(scope="session")
def demo_output(tmp_path_factory):
    """The text and tokenizer that `dsindex demo` leaves in demo-output, which the examples begin with."""
    folder = tmp_path_factory.mktemp("demo") / "demo-output"
    train_demo_tokenizer(write_demo_jsonl(folder / "text"), folder / "tokenizer")
    return folder
