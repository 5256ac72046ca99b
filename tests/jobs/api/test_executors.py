"""Functions on Ray, in threads, and in scripts."""

import os
import subprocess
import sys
import threading

import pytest
import tokenizers

import dsindex
from tests.jobs.api.calls import EOD, TOKENIZER, assert_golden, build
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN, ROOT


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_connected_ray_is_used_and_left_open():
    import ray

    loaded = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    built = build(tokenizer=loaded, eod_token=EOD)
    assert built.run.executor == "ray"
    assert_golden("out/docs_text_document")
    assert dsindex.build_index(built, seq_length=16, epochs=1, data_cache_path="cache").results
    assert dsindex.verify(built, against_source=True, tokenizer=loaded)
    assert ray.is_initialized()
    assert build("out/b", executor="local").run.executor == "local"


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_instruct_uses_connected_ray_unless_its_configuration_says_otherwise():
    def executor_of(prefix, **job):
        config = {**SPEC, "job": job}
        return dsindex.instruct(
            CONVERSATIONS, config=config, tokenizer=TOKENIZER, output_prefix=prefix, on_bad_record="quarantine"
        ).run.executor

    assert executor_of("out/a") == "ray"
    assert executor_of("out/b", executor="local") == "local"


@pytest.mark.ray
def test_ray_that_a_call_starts_leaves_nothing_behind():
    script = (
        "import os, dsindex, ray, dsindex.execution.ray_address as known\n"
        "known.NEWEST_RAY = '2.9.1'\n"
        "from ray._private.authentication.authentication_utils import is_token_auth_enabled\n"
        "enabled = is_token_auth_enabled()\n"
        "before = {name: os.environ.get(name) for name in ('OMP_NUM_THREADS', 'RAY_AUTH_MODE', 'RAY_AUTH_TOKEN')}\n"
        f"built = dsindex.build({str(OWN.docs)!r}, tokenizer={str(TOKENIZER)!r}, append_eod=True,\n"
        "    output_prefix='out/docs', executor='ray', workers=1, progress=True)\n"
        "after = {name: os.environ.get(name) for name in before}\n"
        "print(built.run.executor, ray.is_initialized(), before == after, is_token_auth_enabled() == enabled)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "ray False True True\n", done.stderr
    assert done.stderr.count("is newer than the newest that was tried, 2.9.1\n") == 1, done.stderr
    assert_golden("out/docs_text_document")


def test_functions_work_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(build()))
    thread.start()
    thread.join()
    assert [result.prefixes for result in results] == [("out/docs_text_document",)]
    assert_golden("out/docs_text_document")


@pytest.mark.exhaustive
def test_script_without_a_guard_works_in_processes(tmp_path):
    """Python would run the whole script once more in every process that it spawns."""
    script = tmp_path / "script.py"
    script.write_text(
        "import dsindex\n"
        "print('begins', flush=True)\n"
        f"built = dsindex.build({str(OWN.docs)!r}, tokenizer={str(TOKENIZER)!r}, append_eod=True,\n"
        "    output_prefix='out/docs', executor='processes', workers=2, shard_size='16KiB')\n"
        "print(built.run.executor)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("begins\nprocesses\n", 0), done.stderr
    assert_golden("out/docs_text_document")
