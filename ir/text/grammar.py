"""The parser that `grammar.lark` describes, of tables that are kept beside it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

GRAMMAR = Path(__file__).with_name("grammar.lark")
TABLES = Path(__file__).with_name("grammar.json")  # by `tables_text`; reading them takes a tenth of making them
UNBOUNDED = 2**32 - 1  # characters of a terminal that may be as long as it likes: which number says so is Python's
SHIFT = 0  # of an entry of the table, [what to do, the state to go on in or the rule to apply]


@functools.cache
def parser() -> lark.Lark:
    """The parser, of the tables that are kept, where they are of this grammar and by the lark that is installed."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    kept = json.loads(TABLES.read_text(encoding="utf-8"), object_hook=_numbered)
    if (kept["grammar"], kept["lark"]) != (grammar, lark.__version__):
        return made(grammar)
    read: lark.Lark = lark.Lark.load(kept)
    return read


def made(grammar: str) -> lark.Lark:
    """The parser of a grammar, its tables made anew."""
    options = {"parser": "lalr", "lexer": "basic", "propagate_positions": True, "maybe_placeholders": True}
    return lark.Lark(grammar, start="model", **options)


def tables_text(grammar: str) -> str:
    """What TABLES holds of a grammar: lark's own tables, states numbered as they are reached, a line for each."""
    data, memo = made(grammar).memo_serialize([TerminalDef, Rule])
    data["parser"]["parser"] = _in_order(data["parser"]["parser"])
    for pattern in (entry["pattern"] for entry in memo.values() if "pattern" in entry):
        if "_width" in pattern:
            pattern["_width"] = [min(width, UNBOUNDED) for width in pattern["_width"]]
    kept = {"lark": lark.__version__, "grammar": grammar, "memo": memo, "data": data}
    return json.dumps(kept, separators=(",", ":")).replace('},"', '},\n"') + "\n"


def _in_order(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of lark's with tokens by name and states from the first one on: lark's numbers are those of sets."""
    tokens = sorted(table["tokens"].values())
    states = {
        state: {table["tokens"][token]: entry for token, entry in row.items()} for state, row in table["states"].items()
    }
    reached = list(table["start_states"].values())
    for state in reached:
        shifts = (to for _, (action, to) in sorted(states[state].items()) if action == SHIFT)
        reached += [to for to in dict.fromkeys(shifts) if to not in reached]
    place = {state: number for number, state in enumerate(reached)}

    def entries(row: Mapping[str, Any]) -> Iterable[tuple[int, Any]]:
        for number, token in enumerate(tokens):
            if token in row:
                action, to = row[token]
                yield number, (action, place[to] if action == SHIFT else to)

    return {
        "tokens": dict(enumerate(tokens)),
        "states": {place[state]: dict(entries(states[state])) for state in reached},
        **{end: {rule: place[state] for rule, state in table[end].items()} for end in ("start_states", "end_states")},
    }


def _numbered(read: dict[str, Any]) -> dict[Any, Any]:
    """An object of JSON with the numbers that its keys were."""
    return {int(key) if key.isdigit() else key: value for key, value in read.items()}
