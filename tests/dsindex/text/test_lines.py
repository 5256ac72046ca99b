from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dsindex.errors import InputError
from dsindex.text import lines
from dsindex.text.lines import count_lines

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("either_way")


@pytest.mark.parametrize("piece", [1, 3, 4 << 20])
def test_count_lines_gives_the_number_of_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(lines, "_COUNT_BYTES", piece)
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"a\n\nbcd\r\n\ne")
    assert [count_lines(str(path), offset) for offset in (0, 2, 3, 8, 9)] == [1, 2, 3, 4, 5]


def test_count_lines_refuses_a_file_that_ends_before(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"a\n")
    with pytest.raises(InputError, match=r"some\.jsonl: expected 3 bytes"):
        count_lines(str(path), 3)
