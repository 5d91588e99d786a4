"""Files of requests: what is read, and what is said of those that are wrong."""

from __future__ import annotations

import pytest

from escc.compiler.text.lengths import MOST_LINES, MOST_TOKENS, Lengths, parse_lengths
from escc.ir.diagnostics import InputError, Source


def read(text: str) -> Lengths:
    return parse_lengths(Source("l.csv", text))


def found(text: str) -> list[str]:
    with pytest.raises(InputError) as error:
        read(text)
    return [f"{d.span.line}:{d.span.column}: {d.message}" if d.span else d.message for d in error.value.diagnostics]


def test_lines_of_one_id_share_a_context() -> None:
    text = "id,context,ending\nb,5,1\n# no row\na,7,2\n\nb,5,3\n"
    assert read(text) == Lengths((5, 7), ("b", "a"), ((0, 1, 2), (1, 2, 4), (0, 3, 6)))


def test_columns_come_in_any_order_and_others_are_left_alone() -> None:
    assert read("ending, what ,context\r\n1,x,5\r\n2,,5\r\n") == Lengths((5, 5), (), ((0, 1, 2), (1, 2, 3)))


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("", ["The file is empty."]),
        ("\n\n# context,ending\n", ["The file is empty."]),
        ("context,ending\n", ["The file has no rows."]),
        ("contexts,ending\n1,2\n", ["1:1: The column `context` is missing."]),
        ("5,7\n", ["1:1: The column `context` is missing.", "1:1: The column `ending` is missing."]),
        ("context;ending\n1;2\n", ["1:8: The columns are separated by `;`, not by commas."]),
        ("# of May\ncontext\tending\n1\t2\n", ["2:8: The columns are separated by a tab, not by commas."]),
        ('"context";"ending"\n1;2\n', ["1:10: The columns are separated by `;`, not by commas."]),
        ("context|ending\n1|2\n", ["1:8: The columns are separated by `|`, not by commas."]),
        ("context\t\n1\n", ["1:1: The column `ending` is missing."]),
        ("context,ending;\n1,2\n", ["1:1: The column `ending` is missing."]),
        ("context,ending,context\n", ["1:16: The column `context` stands twice."]),
        ("context,ending\n1\n2,3,4\n", ["2:1: The line is no row: it has 1 values, and there are 2 columns", "3:1: "]),
        (
            "context,ending\n12,long\n",
            ["2:4: `ending` must be a whole number of tokens from 1 to 1,048,576, not "],
        ),
        ("context,ending\n0,3\n3,0\n", ["2:1: `context` must be", "3:3: `ending` must be"]),
        ("context,ending\n-4,3\n5,1.5\n", ["2:1: `context` must be", "3:3: `ending` must be"]),
        (f"context,ending\n{MOST_TOKENS + 1},3\n", ["2:1: `context` must be"]),
        ("context,ending\n1e400,\u0663\n", ["2:1: `context` must be", "2:7: `ending` must be"]),
        ("id,context,ending\na,5,1\na,6,1\n", ["3:3: The context `a` has 6 tokens, and 5 on line 2."]),
        ("id,context,ending\n,5,1\n", ["2:1: A row needs an id"]),
        ('context,ending\n"5,1\n', ["2:1: The line is no row: unexpected end of data."]),
        ("context,ending\n" + "1,2\n" * MOST_LINES, ["The file has more than 500,000 lines."]),
        ("context,ending\n" + "1," * 5_000_000, ["2:1: The line has more than 2,000 characters."]),
        ("context,ending\n" + "x,2\n" * MOST_LINES, ["The file has more than 500,000 lines."]),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(text: str, complaints: list[str]) -> None:
    said = found(text)
    assert len(said) == len(complaints)
    for one, complaint in zip(said, complaints, strict=True):
        assert one.startswith(complaint)


def test_no_more_is_said_than_a_person_reads() -> None:
    assert len(found("context,ending\n" + "x,y\n" * 1000)) == 50
