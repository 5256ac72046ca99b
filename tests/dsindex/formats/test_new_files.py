import errno
import os

import pytest

from dsindex.errors import FormatError, OutputError
from dsindex.formats.new_files import NewFiles


def write(folder, *, or_same=False, content=b"new"):
    with NewFiles([str(folder / name) for name in ("a", "b")], or_same=or_same) as files:
        for new in files:
            new.file.write(content)


def there(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusing(function, code, *, at=0):
    """The function that fails at its call number `at` and later."""
    count = 0

    def refused(*arguments, **options):
        nonlocal count
        count += 1
        if count > at:
            raise OSError(code, os.strerror(code))
        return function(*arguments, **options)

    return refused


def test_files_appear_together_under_their_own_names(tmp_path):
    with NewFiles([str(tmp_path / name) for name in ("a", "b")]) as files:
        for new in files:
            new.file.write(b"new")
        assert not there(tmp_path).keys() & {"a", "b"}
    assert there(tmp_path) == {"a": b"new", "b": b"new"}


@pytest.mark.parametrize("seam", ["fsync", "link"])
@pytest.mark.parametrize("at", [0, 1])
def test_error_leaves_nothing(tmp_path, monkeypatch, seam, at):
    monkeypatch.setattr(f"dsindex.formats.new_files.os.{seam}", refusing(getattr(os, seam), errno.ENOSPC, at=at))
    name = "ab"[at]
    with pytest.raises(
        OutputError, match=rf"/{name}: cannot be written \(No space.*run the same command again; nothing"
    ):
        write(tmp_path)
    monkeypatch.undo()
    assert there(tmp_path) == {}
    write(tmp_path)


def test_error_of_the_block_leaves_nothing(tmp_path):
    paths = [str(tmp_path / "a")]
    with pytest.raises(FormatError, match="damaged"), NewFiles(paths):
        raise FormatError("damaged")
    with pytest.raises(OutputError, match=r"Input/output error.*nothing was kept") as refused, NewFiles(paths):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    assert refused.value.transient
    with pytest.raises(KeyboardInterrupt), NewFiles(paths):
        raise KeyboardInterrupt
    assert there(tmp_path) == {}


@pytest.mark.parametrize("taken", ["a", "b"])
def test_name_that_is_taken_meanwhile_is_left_alone(tmp_path, taken):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    with pytest.raises(OutputError, match=f"/{taken}: expected a file that does not exist yet"), NewFiles(paths):
        (tmp_path / taken).write_bytes(b"mine")
    assert there(tmp_path) == {taken: b"mine"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_file_system_without_hard_links(tmp_path, monkeypatch, code):
    monkeypatch.setattr("dsindex.formats.new_files.os.link", refusing(os.link, code))
    write(tmp_path)
    assert there(tmp_path) == {"a": b"new", "b": b"new"}
    (tmp_path / "a").unlink()
    paths = [str(tmp_path / "a"), str(tmp_path / "c")]
    with pytest.raises(OutputError, match="/c: expected a file that does not exist yet"), NewFiles(paths):
        (tmp_path / "c").write_bytes(b"mine")
    assert there(tmp_path) == {"b": b"new", "c": b"mine"}


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling link", "pipe"])
def test_name_that_is_taken_is_refused(tmp_path, kind):
    path = tmp_path / "b"
    {
        "file": lambda: path.write_bytes(b"mine"),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(tmp_path),
        "dangling link": lambda: path.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    with pytest.raises(OutputError, match="/b: expected a file that does not exist yet; remove it"):
        write(tmp_path)
    assert os.listdir(tmp_path) == ["b"]


def test_same_bytes_may_be_there(tmp_path):
    (tmp_path / "a").write_bytes(b"new")
    before = (tmp_path / "a").stat().st_ino
    write(tmp_path, or_same=True)
    assert there(tmp_path) == {"a": b"new", "b": b"new"}
    assert (tmp_path / "a").stat().st_ino == before
    for content in (b"old", b"older"):
        with pytest.raises(OutputError, match="/a: exists and differs from the new file; remove it"):
            write(tmp_path, or_same=True, content=content)
    assert there(tmp_path) == {"a": b"new", "b": b"new"}
