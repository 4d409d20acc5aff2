"""Files are written whole or not at all, and read strictly."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading

import pytest

from apportion.errors import InputError
from apportion.files import (
    atomic_path,
    atomic_write,
    check_writable,
    read_json,
    write_json,
    write_text,
)


def only(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_and_bytes_are_written_as_given(tmp_path):
    write_text(tmp_path / "a.txt", "अ\r\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == "अ\r\nb\n".encode()
    with atomic_write(tmp_path / "b.bin", "wb") as handle:
        handle.write(b"\x00\xff")
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert only(tmp_path) == ["a.txt", "b.bin"]


def test_a_path_may_be_a_string_relative_to_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("a.txt", "x")
    assert only(tmp_path) == ["a.txt"]


def test_mode_is_that_of_an_ordinary_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "x")
        (tmp_path / "b.txt").write_text("x")
        assert os.umask(0o027) == 0o027  # the umask is left as it was
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")}
    assert modes == {0o640}


def test_until_the_block_ends_readers_see_the_old_content(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with atomic_write(path) as handle:
        handle.write("new")
        handle.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_what_opens_files_by_name_gets_one_of_the_same_kind(tmp_path):
    path = tmp_path / "a.bin"
    write_text(path, "old")
    with atomic_path(path) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_bytes(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert only(tmp_path) == ["a.bin"]
    (tmp_path / "b.bin").write_text("x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.bin", "b.bin")}
    assert len(modes) == 1

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "new"
    assert only(tmp_path) == ["a.bin", "b.bin"]
    with pytest.raises(InputError, match="got a folder"), atomic_path(tmp_path):
        pass


@pytest.mark.parametrize("error", [KeyError("x"), InputError("x"), KeyboardInterrupt()])
def test_an_error_in_the_block_passes_and_leaves_the_old_content(tmp_path, error):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def write():
        with atomic_write(path) as handle:
            handle.write("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert only(tmp_path) == ["a.txt"]


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "a.json"
    values = [{"size": size, "body": "x" * size} for size in (10, 100_000)]
    write_json(path, values[0])
    stop = threading.Event()
    seen: list[int] = []
    broken: list[str] = []

    def read():
        while not stop.is_set():
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                broken.append(repr(error))
                return
            seen.append(value["size"])

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        write_json(path, values[turn % 2])
    stop.set()
    reader.join()
    assert not broken
    assert seen


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    code = (
        "import sys, time; from apportion.files import atomic_write\n"
        f"with atomic_write({str(path)!r}) as handle:\n"
        "    handle.write('half'); handle.flush(); print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
    assert path.read_text() == "old"


@pytest.mark.parametrize("name", ["missing/a.txt", "folder", "a.txt/b.txt", "x" * 300])
def test_what_cannot_be_written_can_be_known_before(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(InputError, match="cannot write") as before:
        check_writable(tmp_path / name)
    with pytest.raises(InputError) as after:
        write_text(tmp_path / name, "new")
    assert str(before.value) == str(after.value)
    assert only(tmp_path) == ["a.txt", "folder"]


def test_asking_changes_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for name in ("a.txt", "new.txt"):
        check_writable(tmp_path / name)
    assert only(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_said_and_loses_nothing(tmp_path, monkeypatch, call, code):
    path = tmp_path / "a.json"
    write_json(path, "old")

    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(InputError) as error:
        write_json(path, "new")
    monkeypatch.undo()
    assert str(path) in str(error.value)
    assert os.strerror(code) in str(error.value)
    assert "name another output path" in str(error.value)
    assert read_json(path) == "old"
    assert only(tmp_path) == ["a.json"]


def test_a_write_that_finds_no_space_is_said_and_loses_nothing(tmp_path, monkeypatch):
    """The bytes really go to a full device: the temporary file is opened on /dev/full."""
    path = tmp_path / "a.txt"
    write_text(path, "old")
    make = tempfile.mkstemp

    def on_full_device(**options):
        descriptor, name = make(**options)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, descriptor)
        os.close(full)
        return descriptor, name

    monkeypatch.setattr(tempfile, "mkstemp", on_full_device)
    with pytest.raises(InputError, match="No space left on device"):
        write_text(path, "new" * 100_000)
    assert path.read_text() == "old"
    assert only(tmp_path) == ["a.txt"]


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    # Permission bits do not bind root, so these are folders in which nobody can write.
    for target, reason in [
        (tmp_path / "missing" / "a.txt", "No such file or directory"),
        (tmp_path / "file" / "a.txt", "Not a directory"),
        ("/proc/a.txt", "No such file or directory|Permission denied"),
    ]:
        with pytest.raises(InputError, match=reason) as error:
            write_text(target, "x")
        assert str(target) in str(error.value)
    assert only(tmp_path) == ["file"]


def test_only_files_are_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = os.stat("/dev/full")
    for target in (tmp_path / "folder", tmp_path / "pipe", "/dev/full"):
        with pytest.raises(InputError, match="expected the name of a file, got a "):
            write_text(target, "x")
    assert os.stat("/dev/full").st_rdev == before.st_rdev
    assert only(tmp_path) == ["folder", "pipe"]


def test_json_survives_the_round_trip(tmp_path):
    value = {"é": [1, 2.5, None, True, "二"], "tiny": 5e-324, "third": 1 / 3}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "二" in (tmp_path / "a.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [-float("inf")]])
def test_json_that_is_not_strict_is_not_written(tmp_path, value):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", value)
    assert only(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1,\n "b" 2}', r"line 2, column 6: expected JSON, but expecting"),
        (b"", r"line 1, column 1: expected JSON"),
        (b'{"a": NaN}', "expected finite numbers, found NaN"),
        (b"[-Infinity]", "expected finite numbers, found -Infinity"),
        (b'{"a": 1e999}', "expected finite numbers, found 1e999"),
        (b'{"a": "\xff"}', "not UTF-8 at offset 7"),
        (b"[" * 100_000, "nested"),
        (b"1" * 5000, "digits"),
    ],
)
def test_json_that_cannot_be_read_names_the_place(tmp_path, content, said):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as error:
        read_json(path)
    assert str(path) in str(error.value)


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="No such file or directory"):
        read_json(tmp_path / "missing.json")
    with pytest.raises(InputError, match="Is a directory"):
        read_json(tmp_path)
