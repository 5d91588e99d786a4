"""The files of serving engines: those that are shipped, and a user's own, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..ir.collective import CollectiveKind
from ..ir.diagnostics import Source, did_you_mean, fail
from ..ir.dtype import Dtype
from ..ir.text.read import read_source
from .hardware import Engine, names_in, read_protocols
from .hardware_file import ENGINE, file_text, read_tables

ENGINES = Path(__file__).parent / "engines"


def engines() -> tuple[str, ...]:
    """The names of the shipped engines, sorted."""
    return names_in(ENGINES)


def load_engine(name: str) -> Engine:
    """The engine called `name`, or that of the file `name` when it ends in `.toml`.

    Raises InputError when there is no such engine or file, or with all that is wrong in the file.
    """
    if name.endswith(".toml"):
        source = read_source(Path(name))
    elif name in engines():
        source = Source(f"{name}.toml", (ENGINES / f"{name}.toml").read_text(encoding="utf-8"))
    else:
        hint = did_you_mean(name, engines()) or f"known: {', '.join(engines())}; or a file of your own, `NAME.toml`"
        raise fail(f"There is no engine `{name[:60]}`.", hint=hint)
    tables = read_tables(source, ENGINE)
    protocols = dict(read_protocols(tables))
    figures = dict(tables["engine"])
    types = tuple(Dtype(name) for name in figures.pop("quantises", "").split())
    return Engine(**tables[""], **figures, quantises=types, all_reduce=protocols.get(CollectiveKind.ALL_REDUCE))


def engine_toml(engine: Engine, comments: Sequence[str]) -> str:
    """The text of an engine's file, with `comments` at the top."""
    parts: dict[str, object] = {"": engine, "engine": engine}
    if engine.all_reduce is not None:
        parts[CollectiveKind.ALL_REDUCE] = engine.all_reduce
    return file_text(ENGINE, parts, comments, {})
