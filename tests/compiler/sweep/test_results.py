"""The results file of a sweep: one process at a time, nothing lost, and what is damaged is said with its place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from escc.compiler.plan.serving import Serving
from escc.compiler.sweep.lock import FileLock
from escc.compiler.sweep.points import Point, Record, Status, Sweep, Tried
from escc.compiler.sweep.results import ResultsFile
from escc.compiler.sweep.run import run_sweep
from escc.cost.hardware import Hardware
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype

SWEEP = Sweep(
    Serving("B", ("L",), "M"), (Hardware.of_paper("tpu-v4"),), ("decode",), (Dtype.BF16,), (8,), (1, 2, 4), (64,),
    source=Source("m.esti", ""),
)  # fmt: skip


SPENT = {"compute": 0.125, "HBM": 0.25, "network": 0.125, "latency": 0.0, "launch": 0.0}


def record(point: Point) -> Record:
    """A point with a plan, or without one where its batch is 2."""
    if point.batch == 2:
        return Record(point, Status.INFEASIBLE, (Tried("8", "infeasible", reason="too large"),), reason="too large")
    return Record(
        point, Status.OPTIMAL, (Tried("8", "optimal", 0.5, 0.5), Tried("2x4", "beaten", bound_s=0.75)), "8",
        latency_s=0.5, bound_s=0.5, tokens=point.batch, tokens_per_s=2.0, mfu=0.25, hbm_bytes=1e9, hbm_share=0.1,
        chip_s_per_million=4e6, binds="HBM", spent_s=SPENT,
    )  # fmt: skip


RECORDS = tuple(map(record, SWEEP.points))


def written(path: Path, *batches: int) -> bytes:
    """The file of a sweep that has these points so far."""
    with ResultsFile(path, SWEEP) as file:
        for batch in batches:
            file.add(next(r for r in RECORDS if r.point.batch == batch))
    return path.read_bytes()


def refusal(path: Path) -> str:
    """What is said of a file that is not taken, and left as it was."""
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        ResultsFile(path, SWEEP)
    assert path.read_bytes() == before
    return str(error.value)


def test_what_is_written_is_read_again_and_put_in_order(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    written(path, 4, 1, 2)
    with ResultsFile(path, SWEEP) as file:
        assert list(file.records.values()) == [RECORDS[2], RECORDS[0], RECORDS[1]]
        file.finish()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == json.loads(json.dumps(SWEEP.header()))
    assert [line["batch"] for line in lines[1:]] == [1, 2, 4]
    assert os.listdir(tmp_path) == ["found.jsonl"]


HOLD = """
import sys
from pathlib import Path
from escc.compiler.sweep.lock import FileLock
with FileLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that has the lock on a file, until its standard input ends."""
    command = [sys.executable, "-P", "-c", HOLD, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_file_that_another_process_has_is_refused_and_that_process_named(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    before = written(path, 1)
    with holder(path) as other:
        said = refusal(path)
        assert f"is being written by process {other.pid} on {socket.gethostname()}, since 20" in said
        with pytest.raises(InputError, match="is being written by"):
            run_sweep(SWEEP, path, jobs=1)
        other.communicate()
    assert written(path, 2).startswith(before)
    assert os.listdir(tmp_path) == ["found.jsonl"]


def test_what_a_killed_process_leaves_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    with holder(path) as other:
        other.send_signal(signal.SIGKILL)
    assert os.listdir(tmp_path) == [".found.jsonl.lock"]
    written(path, 1)
    assert os.listdir(tmp_path) == ["found.jsonl"]


def test_a_lock_is_had_by_one_at_a_time_also_under_another_name_of_the_file(tmp_path: Path) -> None:
    path, link = tmp_path / "found.jsonl", tmp_path / "link.jsonl"
    written(path, 1)
    link.symlink_to(path)
    with ResultsFile(link, SWEEP):
        assert "found.jsonl` is being written by process" in refusal(path)
    first = FileLock(path)
    first.release()
    second = FileLock(path)
    first.release()
    with pytest.raises(InputError):
        FileLock(path)
    second.release()


def test_a_lock_whose_file_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is about to lock what another removes, and perhaps a third makes anew: two must not end with a lock."""
    path = tmp_path / "found.jsonl"
    opened, held = os.open, [FileLock(path)]

    def late(*arguments: Any, again: bool) -> int:
        handle = opened(*arguments)
        monkeypatch.undo()
        held[-1].release()
        if again:
            held.append(FileLock(path))
        return handle

    monkeypatch.setattr(os, "open", partial(late, again=False))
    held.append(FileLock(path))
    with pytest.raises(InputError, match="is being written"):
        FileLock(path)
    monkeypatch.setattr(os, "open", partial(late, again=True))
    with pytest.raises(InputError, match="is being written"):
        FileLock(path)
    held[-1].release()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b'{"pid": 1, "host": "a", "since": "2026-01-01T00:00:00+00:00"}'])
def test_a_file_of_a_lock_that_nobody_has_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".found.jsonl.lock").write_bytes(content)
    FileLock(tmp_path / "found.jsonl").release()
    assert os.listdir(tmp_path) == []


def test_a_holder_is_shown_without_what_a_terminal_would_take_for_orders(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    with FileLock(path):
        said = b'{"pid": 1, "host": "a\\u001b[2J", "since": "2026-01-01T00:00:00+00:00"}'
        (tmp_path / ".found.jsonl.lock").write_bytes(said)
        with pytest.raises(InputError) as error:
            FileLock(path)
    assert "by process 1 on a?[2J, since 2026-01-01 00:00:00 UTC." in str(error.value)


@pytest.mark.parametrize("content", [b"mine\n", b"[" * 100_000, b'{"pid": 1}'])
def test_a_file_that_is_no_lock_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    beside = tmp_path / ".found.jsonl.lock"
    beside.write_bytes(content)
    with pytest.raises(InputError, match="in the way, and no lock"):
        FileLock(tmp_path / "found.jsonl")
    assert beside.read_bytes() == content


@pytest.mark.parametrize("torn", [b"{", b'{"phase": "' + b"x" * 10_000, b"\0" * 5000, b"\xff\r"])
def test_a_torn_line_is_dropped_however_long_it_is(tmp_path: Path, torn: bytes) -> None:
    path, whole = tmp_path / "found.jsonl", tmp_path / "whole.jsonl"
    written(whole, 1, 2)
    path.write_bytes(written(path, 1) + torn)
    assert written(path, 2) == whole.read_bytes()


def test_a_link_stays_one_and_the_file_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "far"
    folder.mkdir()
    path, link = folder / "real.jsonl", tmp_path / "found.jsonl"
    written(path, 4)
    path.chmod(0o640)
    link.symlink_to(path)
    with ResultsFile(link, SWEEP) as file:
        file.add(RECORDS[0])
        file.add(RECORDS[1])
        file.finish()
    assert link.is_symlink() and link.resolve() == path
    assert [json.loads(line)["batch"] for line in path.read_text().splitlines()[1:]] == [1, 2, 4]
    assert path.stat().st_mode & 0o777 == 0o640
    assert (os.listdir(folder), sorted(os.listdir(tmp_path))) == (["real.jsonl"], ["far", "found.jsonl"])


def test_a_link_to_nothing_and_links_that_go_round_are_refused(tmp_path: Path) -> None:
    nothing, around = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    nothing.symlink_to(tmp_path / "nowhere")
    around.symlink_to(around)
    for path in (nothing, around):
        with pytest.raises(InputError, match=r"in the way|cannot be read"):
            ResultsFile(path, SWEEP)
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("last", [lambda file: file.add(RECORDS[1]), lambda file: file.finish()])
def test_lines_of_another_are_never_written_over(tmp_path: Path, last: Callable[[ResultsFile], None]) -> None:
    """Of one that asks for no lock, such as an editor."""
    path = tmp_path / "found.jsonl"
    with ResultsFile(path, SWEEP) as file:
        file.add(RECORDS[2])
        file.add(RECORDS[0])
        with path.open("ab") as other:
            other.write(b"another's\n")
        before = path.read_bytes()
        with pytest.raises(InputError, match="was changed by something else"):
            last(file)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["found.jsonl"]


def changed(**values: Any) -> bytes:
    """The line of the first record, with other values."""
    return json.dumps(RECORDS[0].data() | values).encode()


TRIED = RECORDS[0].data()["tried"][0]
DAMAGED = [
    b"text",
    b"\xff\xfe\x00",
    b"",
    b"null",
    b"[]",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 5000,
    changed()[:-1],
    changed() + b" ",
    b'"' + changed() + b'"',
    changed(more=1),
    changed(chips=True, batch=True),
    changed(batch=1.0),
    changed(context=64.0),
    changed(phase=[]),
    changed(weights="bf17"),
    changed(weights=None),
    changed(status="splendid"),
    changed(status=None),
    changed(latency_s="0.5"),
    changed(latency_s=None),
    changed(latency_s=float("nan")),
    changed(latency_s=float("inf")),
    changed(latency_s=10**400),
    changed(latency_s=-1.0),
    changed(latency_s=True),
    changed(tokens=[]),
    changed(tokens=1.5),
    changed(mfu={}),
    changed(hbm_bytes=[[]]),
    changed(reason="both a plan and none"),
    changed(spent_s=SPENT | {"HBM": "0.5"}),
    changed(spent_s={"HBM": 0.5}),
    changed(spent_s=SPENT | {"x" * 10_000: 0.5}),
    changed(binds="x" * 10_000),
    changed(slice="x" * 10_000),
    changed(spent_s=[0.5]),
    changed(tried=None),
    changed(tried={}),
    changed(tried=[[]]),
    changed(tried=[{**TRIED, "seconds": "1"}]),
    changed(tried=[{**TRIED, "status": []}]),
    changed(tried=[{**TRIED, "more": 1}]),
    changed().replace(b'"chips": 8', b'"chips": 9, "chips": 8'),
    changed().replace(b'"chips": 8', b'"chips": 8 '),
    changed().replace(b'"chips"', b'"\\u0063hips"'),
]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: line[:20] + str(len(line)).encode())
def test_a_damaged_line_is_said_with_its_place_and_left_alone(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "found.jsonl"
    path.write_bytes(written(path, 2) + line + b"\n")
    assert f"{path}:3:1: error: Line 3 is no point of a sweep." in refusal(path)
    assert os.listdir(tmp_path) == ["found.jsonl"]


def test_a_line_that_is_not_damaged_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    path.write_bytes(written(path, 2) + changed() + b"\n")
    assert written(path) == path.read_bytes()


def test_points_of_another_sweep_and_points_that_stand_twice_are_said(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    before = written(path, 1)
    path.write_bytes(before + changed(batch=8) + b"\n")
    assert "Line 3 is of no point of this sweep" in refusal(path)
    path.write_bytes(before + changed() + b"\n")
    assert "Line 3 is of a point that an earlier line has" in refusal(path)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"[" * 100_000, "no results file of a sweep"),
        (b"\xff", "no results file of a sweep"),
        (b"NaN", "no results file of a sweep"),
        (b'{"escc_sweep": NaN}', "no results file of a sweep"),
        (b'{"escc_sweep": 1, "chips": 1e400}', "no results file of a sweep"),
        (json.dumps({**SWEEP.header(), "chips": [8.0]}).encode(), "it differs in `chips`"),
        (json.dumps({**SWEEP.header(), "batches": [True, 2, 4]}).encode(), "it differs in `batches`"),
        (json.dumps({**SWEEP.header(), "more": 1}).encode(), "it differs in how it is written"),
    ],
)
def test_a_damaged_header_is_said(tmp_path: Path, header: bytes, said: str) -> None:
    path = tmp_path / "found.jsonl"
    path.write_bytes(header + b"\n")
    assert said in refusal(path)


def test_the_file_of_another_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    written(path, 1)
    with pytest.raises(InputError, match="it differs in `hbm_fraction`, `batches`"):
        ResultsFile(path, replace(SWEEP, hbm_fraction=0.5, batches=(1,)))
