import os
import shutil

import pytest

from dsindex.errors import FormatError, InputError, OutputError, PlanError
from dsindex.options.merge import MergeConfig
from tests.support.golden import GOLDEN_SETS, OWN
from tests.support.jobs import run_config


def merge_into(prefix, inputs, **options):
    return MergeConfig(**{"input": inputs, "output_prefix": str(prefix), "executor": "local", "workers": 2, **options})


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=lambda golden: golden.name)
@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_merge_equals_megatron(golden, executor, tmp_path):
    # Megatron's order is that of the names; the suffix may be typed, as a shell completes it.
    inputs = tuple(
        f"{prefix}{suffix}" for prefix, suffix in zip(golden.merge_inputs, ("", ".bin", ".idx"), strict=True)
    )
    report = run_config(merge_into(tmp_path / "m", inputs, executor=executor))
    for suffix in ("bin", "idx"):
        got = (tmp_path / f"m.{suffix}").read_bytes()
        assert got == golden.merged.with_name(f"merged.{suffix}").read_bytes()
    assert report.num_inputs == 3
    assert sorted(os.listdir(tmp_path)) == ["m.bin", "m.idx", "m.manifest.json", "m.progress.json"]


def test_merge_again_is_already_complete_and_other_inputs_are_refused(tmp_path):
    inputs = tuple(map(str, OWN.merge_inputs))
    run_config(merge_into(tmp_path / "m", inputs))
    assert run_config(merge_into(tmp_path / "m", inputs)).already_complete
    with pytest.raises(PlanError, match=r"is missing from --input.*--replace"):
        run_config(merge_into(tmp_path / "m", inputs[:2]))
    with pytest.raises(PlanError, match=r"inputs were added"):
        run_config(merge_into(tmp_path / "m", (*inputs, inputs[0])))
    assert not run_config(merge_into(tmp_path / "m", inputs[:2], replace=True)).already_complete
    assert not run_config(merge_into(tmp_path / "m", inputs[:2], fresh=True)).already_complete


def test_merge_refuses_what_makes_no_sense(tmp_path):
    source = OWN.merge_inputs[0]
    for suffix in ("bin", "idx"):
        shutil.copy(source.with_name(f"{source.name}.{suffix}"), tmp_path / f"a.{suffix}")
    with pytest.raises(InputError, match=r"nowhere\.idx: cannot be read.*check --input"):
        run_config(merge_into(tmp_path / "m", (str(tmp_path / "nowhere"),)))
    with pytest.raises(OutputError, match="expected an output that is none of the inputs"):
        run_config(merge_into(tmp_path / "a", (str(tmp_path / "a"),)))
    (tmp_path / "a.idx").write_bytes((tmp_path / "a.idx").read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"a\.idx: expected \d+ bytes .*damaged or cut off"):
        run_config(merge_into(tmp_path / "m", (str(tmp_path / "a"),)))
    (tmp_path / "m.bin").write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"m\.bin: exists already"):
        run_config(merge_into(tmp_path / "m", (str(source),)))
