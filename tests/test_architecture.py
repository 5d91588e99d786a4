"""The rules of the house, checked on the source: imports point one way, files are small and say their job."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = ("ir", "cost", "passes", "compiler")  # each imports from itself and from those before it
FILES = sorted(path for folder in ORDER for path in (ROOT / folder).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
FLOORS = {  # the rooms of a folder, each above all that it imports from; what is not listed stands below them all
    "passes": (
        ("expansion", "layouts", "batches"),
        ("ilp",),
        ("search", "lower", "options.py"),
        ("overlap",),
        ("reader.py",),
        ("task.py",),
        ("choose.py",),
        ("least_held.py",),
        ("stages",),
    ),
    "compiler": (
        ("text", "models", "hf_import", "simulate"),
        ("plan", "emit"),
        ("jax", "sweep"),
        ("run", "calibrate", "report"),
        ("commands",),
    ),
    "cost": (("formulas", "simulate"), ("predict.py",)),
    "ir": (("text", "verify"),),
}
SOLVER = ("passes/ilp/solver",)  # where OR-Tools may be imported
MAX_LINES = 500


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def absolute(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that a statement names in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if node.level == 0 else []


def package_of(node: ast.ImportFrom, path: str) -> str | None:
    """The top-level folder that a relative import reaches; None where it leaves the house."""
    parts = list(Path(path).parent.parts)
    up = node.level - 1
    if up > len(parts):
        return None
    below = [*parts[: len(parts) - up], *(node.module or "").split(".")]
    if below[0] == "":  # from .. import x
        return node.names[0].name
    return below[0]


def target_of(node: ast.ImportFrom, path: str) -> list[Path]:
    """The files or folders that a relative import reads."""
    parts = Path(path).parent.parts
    base = Path(*parts[: len(parts) - node.level + 1], *(node.module or "").split("."))
    return [base] if node.module else [base / alias.name for alias in node.names]


def floor(path: Path) -> int:
    """On which floor of its folder a file or folder stands: 0 for what every room may import from."""
    folder, *rest = path.parts
    floors = FLOORS.get(folder, ())
    return next((n for n, rooms in enumerate(floors, 1) if rest and {rest[0], f"{rest[0]}.py"} & {*rooms}), 0)


def climbs(node: ast.ImportFrom, path: str) -> list[str]:
    """The imports of a statement that go from a room to one that does not stand below it."""
    here, out = Path(path), []
    for target in target_of(node, path):
        beside = target.parts[:1] == here.parts[:1] and target.parts[:2] != here.parts[:2]
        if beside and floor(target) >= max(floor(here), 1):
            out.append(f"climbs to {target}")
    return out


def complaints(source: str, path: str) -> list[str]:
    """What a file does against the rules."""
    tree, found = ast.parse(source), []
    folder = Path(path).parts[0]
    if not ast.get_docstring(tree):
        found.append("has no docstring")
    if len(source.splitlines()) > MAX_LINES:
        found.append(f"has more than {MAX_LINES} lines")
    for node in imports(tree):
        for name in absolute(node):
            if name.split(".")[0] == "escc":
                found.append(f"imports {name} by its full name")
            if name.split(".")[0] == "ortools" and not path.startswith(SOLVER):
                found.append("imports the solver")
        if isinstance(node, ast.ImportFrom) and node.level:
            target = package_of(node, path)
            if target not in ORDER or ORDER.index(target) > ORDER.index(folder):
                found.append(f"imports from {target}")
            found += climbs(node, path)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and list(imports(function)):
            found.append("imports inside a function")
    carried = path.endswith("_runtime.py")  # by emitted modules, which know no records
    if not carried and any(is_frozen(node) for node in ast.walk(tree)):
        found.append("has a frozen dataclass, no record")
    if path.startswith("compiler/emit/"):
        found += [f"writes {what} by itself" for what in raw(tree)]
    return found


def is_frozen(node: ast.AST) -> bool:
    """Whether a class is made frozen otherwise than as a record, and needs no order, which records have not."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("dataclass", "dataclasses.dataclass"):
        return False
    asked = {keyword.arg for keyword in node.keywords}
    return "frozen" in asked and "order" not in asked


def raw(tree: ast.AST) -> Iterator[str]:
    """The comments and docstrings of emitted source that are written without the functions that make text inert."""
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        for before, after in pairwise(text.values):
            if isinstance(before, ast.Constant) and isinstance(after, ast.FormattedValue):
                if "#" in before.value.rpartition("\n")[2]:
                    yield "a comment"
                if before.value.rstrip().endswith('"""') and "doc" not in ast.dump(after.value):
                    yield "a docstring"


@pytest.mark.parametrize("path", NAMES)
def test_every_file_keeps_the_rules(path: str) -> None:
    assert complaints((ROOT / path).read_text(), path) == []


def test_no_circle_of_imports() -> None:
    files = {Path(name) for name in NAMES}
    read = {}
    for file in files:
        statements = [n for n in imports(ast.parse((ROOT / file).read_text())) if isinstance(n, ast.ImportFrom)]
        bases = [base for node in statements if node.level for base in target_of(node, str(file))]
        named = [
            base / alias.name for n in statements if n.level for base in target_of(n, str(file)) for alias in n.names
        ]
        read[file] = {path.with_suffix(".py") for path in (*bases, *named)} & files
    assert len(list(TopologicalSorter(read).static_order())) == len(files)


def test_every_folder_has_files() -> None:
    assert {Path(name).parts[0] for name in NAMES} == set(ORDER)


DOC = '"""A file."""\n'


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("ir/a.py", DOC + "from ..cost.b import c\n", "imports from cost"),
        ("ir/a.py", DOC + "from .. import passes\n", "imports from passes"),
        ("cost/a.py", DOC + "from ..compiler import cli\n", "imports from compiler"),
        ("compiler/emit/a.py", DOC + "from ...tests import x\n", "imports from tests"),
        ("ir/a.py", DOC + "from ....ir import x\n", "imports from None"),
        ("ir/a.py", DOC + "from escc.ir.mesh import Mesh\n", "imports escc.ir.mesh by its full name"),
        ("ir/a.py", DOC + "import escc.ir.mesh\n", "imports escc.ir.mesh by its full name"),
        ("passes/insert.py", DOC + "from ortools.math_opt.python import mathopt\n", "imports the solver"),
        ("passes/search/a.py", DOC + "from ..lower.insert import insert\n", "climbs to passes/lower/insert"),
        ("passes/ilp/a.py", DOC + "from ..search import graph\n", "climbs to passes/search"),
        ("compiler/plan/a.py", DOC + "from ..report.text import report\n", "climbs to compiler/report/text"),
        ("passes/plan.py", DOC + "from .choose import choose\n", "climbs to passes/choose"),
        ("compiler/a.py", DOC + "import ortools\n", "imports the solver"),
        ("ir/a.py", DOC + "def f():\n    import math\n", "imports inside a function"),
        ("compiler/emit/a.py", DOC + "x = 1\ny = f'a = 1  # {x}'\n", "writes a comment by itself"),
        ("compiler/emit/a.py", DOC + 'x = 1\ny = f\'"""{x}"""\'\n', "writes a docstring by itself"),
        (
            "ir/a.py",
            DOC + "@dataclass(frozen=True)\nclass A:\n    b: int\n",
            "has a frozen dataclass, no record",
        ),
        ("ir/a.py", "import math\n", "has no docstring"),
        ("ir/a.py", DOC + "\n" * 500, "has more than 500 lines"),
    ],
)
def test_what_breaks_a_rule_is_seen(path: str, source: str, complaint: str) -> None:
    assert complaint in complaints(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("compiler/emit/a.py", DOC + "from ...ir.mesh import Mesh\nfrom ..cli import run\nfrom .b import c\n"),
        ("passes/ilp/solver.py", DOC + "import ortools\nfrom ...cost.model import price\n"),
        ("compiler/emit/jax_a_runtime.py", DOC + "@dataclass(frozen=True)\nclass A:\n    b: int\n"),
        ("ir/a.py", DOC + "@dataclass(frozen=True, order=True)\nclass A:\n    b: int\n"),
        ("ir/a.py", DOC + "from . import mesh\nfrom .mesh import Mesh\nimport numpy\n"),
    ],
)
def test_what_keeps_the_rules_passes(path: str, source: str) -> None:
    assert complaints(source, path) == []
