"""Files appear whole or not at all, and replace nothing unasked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from escc.compiler.text.files import file_stem, refuse_existing, write_files
from escc.ir.diagnostics import InputError


def test_files_are_written_into_a_folder_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    written = write_files(folder, {"p.txt": "one\n", "q.txt": "zwei ü\n"})
    assert written == (folder / "p.txt", folder / "q.txt")
    assert [path.read_text(encoding="utf-8") for path in written] == ["one\n", "zwei ü\n"]
    assert sorted(os.listdir(folder)) == ["p.txt", "q.txt"]


def test_an_existing_file_stops_all_of_them_and_every_one_is_named(tmp_path: Path) -> None:
    for name in ("b.txt", "c.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError) as error:
        write_files(tmp_path, {"a.txt": "x", "b.txt": "x", "c.txt": "x"})
    assert [str(tmp_path / name) in str(error.value) for name in ("a.txt", "b.txt", "c.txt")] == [False, True, True]
    assert sorted(os.listdir(tmp_path)) == ["b.txt", "c.txt"]
    assert (tmp_path / "b.txt").read_text() == "mine"


def test_force_writes_over_files_but_not_over_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    write_files(tmp_path, {"a.txt": "new"}, force=True)
    assert (tmp_path / "a.txt").read_text() == "new"
    (tmp_path / "b.txt").mkdir()
    with pytest.raises(InputError, match="in the way"):
        write_files(tmp_path, {"a.txt": "newer", "b.txt": "x"}, force=True)
    assert (tmp_path / "a.txt").read_text() == "new"


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("old")

    def full(_from: Path, _to: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_files(tmp_path, {"a.txt": "new", "b.txt": "x"}, force=True)
    assert os.listdir(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


INTERRUPTED = """
import signal, sys
from pathlib import Path
from escc.compiler.text.files import write_files

signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the command has it
opened, given = Path.open, []

class Slow:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()
    def write(self, data):
        self.file.write(data[:3])
        self.file.flush()
        given.append(data)
        if len(given) == 2:
            print([path.name for path in Path(sys.argv[1]).iterdir() if path.name.startswith(".")], flush=True)
            signal.raise_signal(signal.SIGINT)
        self.file.write(data[3:])

Path.open = lambda self, mode="r": Slow(opened(self, mode))
write_files(Path(sys.argv[1]), {"a.csv": "first, new", "b.csv": "second, new"}, force=True)
print("written")
"""


def test_an_interrupt_in_the_middle_of_a_file_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("old")
    command = [sys.executable, "-P", "-c", INTERRUPTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count(".csv.") == 2 and "written" not in done.stdout  # both were begun
    assert done.returncode == -signal.SIGINT, done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("b.csv", "old")]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none/of/it", "nul\0"])
def test_what_is_no_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"folder|cannot be written"):
        write_files(tmp_path / place, {"a.txt": "x"})


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="in the way"):
        refuse_existing(tmp_path, ["a.txt"], force=True)


@pytest.mark.parametrize(
    ("parts", "stem"),
    [
        (("palm-540b", "decode"), "palm_540b_decode"),
        (("../../etc/passwd", "main"), "etc_passwd_main"),
        (("", "main"), "program_main"),
        (("a b\x1b[31m", "main"), "a_b_31m_main"),
        (("x" * 300, "main"), "x" * 80 + "_main"),
        (("70b", "decode"), "_70b_decode"),
        (("class",), "_class"),
    ],
)
def test_a_file_name_is_plain_whatever_the_model_is_called(parts: tuple[str, ...], stem: str) -> None:
    assert file_stem(*parts) == stem
