from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from workflows.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_demo_runs_from_text_to_a_traced_sample_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["demo", "--output", str(tmp_path / "demo"), "--documents", "300"]) == 0
        shown = capsys.readouterr().out
        assert "demo_text_document: whole" in shown
        assert ", ray executor, " in shown
        assert "of 3 epochs" in shown
        assert f"{tmp_path}/demo/text/demo-" in shown
