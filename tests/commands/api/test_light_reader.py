"""What a training image needs: numpy, msgspec and xxhash, in a real environment with nothing else."""

import contextlib
import io
import json
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import numpy
import pytest
import xxhash

import dsindex
from tests.commands.api.calls import TOKENIZER, build
from tests.support.golden import OWN

READ = """
import hashlib, json, pickle, sys
import dsindex
from dsindex.datasets import GPTDataset, IndexedDataset, SampleOptions

def digest(arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()

documents = dsindex.open("out/docs_text_document")
train = dsindex.open("cache")
assert type(documents) is IndexedDataset and type(train) is GPTDataset
order = list(range(len(train)))[::-1]
padded = dsindex.open("cache", split="valid", options=SampleOptions(pad_token=0))
lines, packed = dsindex.open("docs.idx"), dsindex.open("x.pbin", block_size=16)
print(json.dumps({
    "documents": digest(documents), "taken": digest(documents.take([5, 1, -1, 5])), "none": digest(documents.take([])),
    "batch": digest([train.batch(order)]), "padded": digest([padded.batch(range(len(padded)))]),
    "samples": digest(array for k in order for array in pickle.loads(pickle.dumps(train))[k].values()),
    "parts": [[part.sequence for part in train.parts(k)] for k in order[:5]],
    "lines": [len(line) for line in lines], "blocks": len(packed),
}))
"""


def run(*command, **variables):
    environment = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_four_packages_read_what_all_packages_read():
    """In an environment that has three packages, and dsindex as `pip install --no-deps` leaves it."""
    venv.create("light", symlinks=True)
    [site] = Path("light").glob("lib/python*/site-packages")
    for package in (numpy, msgspec, xxhash, dsindex):
        package_folder = Path(str(package.__file__)).parent
        for folder in (package_folder, package_folder.with_name(f"{package_folder.name}.libs")):
            if folder.exists():
                (site / folder.name).symlink_to(folder)
    built = build()
    options = {"epochs": 2.5, "split": "90,9,1", "keep_partial_validation": True}
    dsindex.build_index(built, seq_length=16, **options, data_cache_path="cache")
    dsindex.convert(built, "x.pbin")
    Path("docs.jsonl").write_text('{"text": "a"}\n{"text": "and more"}\n')
    dsindex.raw_index("docs.jsonl")
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(READ, {})
    process = run("light/bin/python", "-c", READ)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == json.loads(stream.getvalue())


@pytest.mark.parametrize(("package", "words"), [
    ("ray", ["--executor", "ray"]),
    ("pyarrow", []),
])  # fmt: skip
def test_a_build_names_the_package_that_it_misses(package, words):
    absent = Path("absent", f"{package}.py")  # found before the one that is installed, also by other processes
    absent.parent.mkdir()
    absent.write_text(f"""raise ModuleNotFoundError("No module named '{package}'", name='{package}')""")
    flags = ["--input", str(OWN.docs), "--tokenizer-model", str(TOKENIZER), "--append-eod", "--output-prefix", "out/x"]
    process = run(sys.executable, "-m", "dsindex", "build", *flags, *words, PYTHONPATH="absent")
    message = f"error: the package {package!r} is not installed, which dsindex needs\nhint: pip install '"
    assert (process.returncode, message in process.stderr) == (1, True), process.stderr
    assert "Traceback" not in process.stderr
