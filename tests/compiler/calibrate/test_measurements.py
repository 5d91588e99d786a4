"""Files of measurements: what they say, and everything that can be wrong in one."""

from __future__ import annotations

import csv
import io

import pytest

from escc.compiler.calibrate.measurements import (
    MOST_ROWS,
    Timed,
    own_measurements,
    parse_measurements,
    read_measurements,
)
from escc.ir.diagnostics import InputError, Source
from escc.ir.dtype import Dtype
from escc.ir.mesh import Mesh

HEADER = (
    "id,source,model,hardware,phase,chips,batch,input_tokens,output_tokens,weights,ffn_layout,attention_layout,time_ms"
)
ROW = "a,table 2,palm-8b,tpu-v4,decode,64,8,100,20,bf16,ws2d,batch,12.5"


def parsed(*rows: str, header: str = HEADER, chip: str = "tpu-v4"):  # type: ignore[no-untyped-def]
    return parse_measurements(Source("m.csv", "\n".join([header, *rows]) + "\n"), chip)


def refused(*rows: str, header: str = HEADER) -> InputError:
    with pytest.raises(InputError) as caught:
        parsed(*rows, header=header)
    return caught.value


def test_a_row_says_what_was_run() -> None:
    found = parsed(ROW, ROW.replace("a,", "b,", 1).replace("tpu-v4", "a100-80"))
    [row] = found.rows
    assert (row.id, row.source, row.model, row.phase) == ("a", "table 2", "palm-8b", Timed.DECODE)
    assert (row.chips, row.batch, row.input_tokens, row.output_tokens) == (64, 8, 100, 20)
    assert (row.weights, row.feed_forward, row.attention) == (Dtype.BF16, "ws2d", "batch")
    assert (row.seconds, row.mesh, row.place.line) == (0.0125, None, 2)
    assert (found.left_out, found.sources) == (1, ("table 2",))


def test_columns_come_in_any_order_and_others_are_left_alone() -> None:
    names, values = HEADER.split(","), ROW.split(",")
    header, row = ",".join(["note", *names[::-1], "mesh"]), ",".join(['"x, ""y"""', *values[::-1], "4x16"])
    [found] = parsed(row, header=header).rows
    assert (found.id, found.mesh) == ("a", Mesh.parse("4x16"))


def test_comments_empty_lines_and_line_ends_of_windows() -> None:
    text = f"# said by nobody\r\n\r\n{HEADER}\r\n# more\r\n{ROW}\r\n"
    [row] = parse_measurements(Source("m.csv", text), "tpu-v4").rows
    assert row.place.line == 5


def test_rows_of_other_hardware_may_name_what_is_unknown_here() -> None:
    other = ROW.replace("a,", "b,", 1).replace("tpu-v4", "tpu-v9").replace("ws2d", "tp16").replace("palm-8b", "gpt-9")
    assert parsed(ROW, other).left_out == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a,", ",", "m.csv:2:1: error: A row needs an id"),
        ("palm-8b", "palm-9b", "m.csv:2:11: error: `palm-9b` does not exist, and is no model that is shipped"),
        ("palm-8b", "palm-9b", "hint: did you mean `palm-"),
        ("decode", "decoding", "m.csv:2:26: error: There is no phase `decoding`"),
        ("decode", "decoding", "hint: did you mean `decode`?"),
        ("bf16", "bf17", "There is no format of weights `bf17`"),
        ("bf16", "f32", "hint: it is one of bf16, int8, fp8, int4"),
        ("ws2d", "ws3d", "There is no layout of the feed-forward `ws3d`"),
        (",batch", ",bath", "There is no layout of attention `bath`"),
        (",64", ",many", "m.csv:2:33: error: `chips` must be a whole number from 1 to 1048576, not `many`"),
        (",64", ",-64", "`chips` must be a whole number"),
        (",64", ",64.5", "`chips` must be a whole number"),
        (",64", ",9999999999", "`chips` must be a whole number"),
        (",8,", ",0,", "`batch` must be a whole number from 1"),
        (",8,", ",,", "`batch` must be a whole number from 1"),
        (",100,", ",x,", "`input_tokens` must be a whole number from 0"),
        (",20,", ",0,", "`output_tokens` is 0, and phase `decode` has at least one token of them"),
        ("12.5", "fast", "`time_ms` must be a number above 0, not `fast`"),
        ("12.5", "-1", "`time_ms` must be a number above 0"),
        ("12.5", "0", "`time_ms` must be a number above 0"),
        ("12.5", "nan", "`time_ms` must be a number above 0"),
        ("12.5", "1e999", "`time_ms` must be a number above 0"),
        ("12.5", "", "`time_ms` must be a number above 0"),
        (",12.5", "", "The line is no row: it has 12 values, and there are 13 columns"),
        ("12.5", "12,5", "The line is no row: it has 14 values, and there are 13 columns"),
        ("a,", '"a,', "m.csv:2:1: error: The line is no row"),
        ("a,", '"a"b,', "The line is no row"),
        ("a,", "a" * 200_000 + ",", "The line is no row: field larger than field limit"),
    ],
)
def test_what_is_wrong_in_a_row_is_said(old: str, new: str, said: str) -> None:
    assert old in ROW
    found = refused(ROW.replace(old, new, 1))
    assert said in str(found)
    assert len(str(found)) < 2_000


def test_a_place_after_a_quoted_cell() -> None:
    found = refused(ROW.replace("table 2", '"table 2, ""the second"""').replace(",8,", ",none,"))
    [diagnostic] = found.diagnostics
    assert diagnostic.span is not None
    assert str(found).splitlines()[1][8:][diagnostic.span.column - 1 :].startswith("none,")


def test_all_that_is_wrong_is_said_at_once() -> None:
    bad = ROW.replace(",64,", ",x,").replace("12.5", "y").replace("ws2d", "z")
    found = refused(ROW, bad, ROW.replace("decode", "rest").replace("a,", "c,", 1))
    assert [d.span.line for d in found.diagnostics if d.span] == [3, 3, 3, 3, 4]
    assert "The id `a` stands twice, first on line 2." in str(found)
    assert len(refused(*[ROW] * 500).diagnostics) == 50


def test_the_mesh_of_a_row() -> None:
    header = HEADER + ",mesh"
    assert "has 32 chips, and the row says 64" in str(refused(ROW + ",4x8", header=header))
    assert "is not a mesh" in str(refused(ROW + ",big", header=header))
    assert parsed(ROW + ",", header=header).rows[0].mesh is None


def test_columns_that_are_missing_or_twice() -> None:
    found = refused(ROW, header=HEADER.replace("time_ms", "time_s").replace("chips", "batch"))
    assert "The column `chips` is missing." in str(found) and "The column `time_ms` is missing." in str(found)
    assert "hint: did you mean `time_s`?" in str(found)
    assert "m.csv:1:38: error: The column `batch` stands twice." in str(found)


def test_no_rows() -> None:
    assert "The file has no rows." in str(refused())
    found = refused(ROW.replace("tpu-v4", "a100-80"))
    assert "The file has no row of `tpu-v4`." in str(found) and "it has rows of `a100-80`" in str(found)
    with pytest.raises(InputError, match="The file is empty"):
        parse_measurements(Source("m.csv", "\n# nothing\n"), "tpu-v4")


def test_too_many_rows() -> None:
    rows = [ROW.replace("a,", f"r{n},", 1) for n in range(MOST_ROWS + 1)]
    assert f"more than {MOST_ROWS} rows" in str(refused(*rows))
    assert len(parsed(*rows[:-1]).rows) == MOST_ROWS


def test_the_projects_own_copy() -> None:
    found = read_measurements(None, "tpu-v4")
    text = "\n".join(line for line in own_measurements().text.split("\n") if not line.startswith("#"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 73 and len(found.rows) + found.left_out == len(rows)
    assert len(found.rows) == sum(row["hardware"] == "tpu-v4" for row in rows) == 46
    assert [(r.id, r.seconds) for r in found.rows[:2]] == [("2-ll-prefill", 0.29), ("2-ll-decode", 1.82)]
    assert found.sources == ("table 2", "table 3", "section 4.4", "table D.2")
    assert "Source: Pope et al." in own_measurements().text.split("\n")[1]
