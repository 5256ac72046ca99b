from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsindex.demo.run import train_demo_tokenizer, write_demo_jsonl

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text and tokenizer that `dsindex demo` leaves in demo-output, which the examples begin with."""
    folder = tmp_path_factory.mktemp("demo") / "demo-output"
    train_demo_tokenizer(write_demo_jsonl(folder / "text"), folder / "tokenizer")
    return folder
