"""Names in an emitted JAX file: sizes, inputs, and the trees in which parameters and caches are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...cost.blocks import blocks_of
from ...ir.dataflow import ops, repeat_counts
from ...ir.dtype import Dtype
from ...ir.inert import comment, literal
from ...ir.layout import Layout
from ...ir.program import Choose, Kind, stored_in
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from .jax_text import CHOSEN, identifier

TREES = {Kind.PARAM: "params", Kind.CACHE: "caches"}
OWN = {"cfg", "carry", "stored", "mesh", "make", "build", "dense", "tensors", "main", "make_mesh", "Config", "FULL"}
OWN |= {
    "pl",
    "triton",
    "WEIGHTS",
    "load",
    "run",
    "SMALL",
    "PARAMS",
    "CACHES",
    "INPUTS",
    "OUTPUTS",
    "partial",
    "dataclass",
    "Callable",
    "Any",
    "specs",
    "unstacked",
    "repetitions",
    "REPEATS",
}

SETTINGS = ("capacity", "unrolled")  # of `Config`, beside sizes and types


@record
class Leaf:
    """A stored tensor. In repeats there is one for each repetition, stacked in front, outermost first.

    `path`: the keys under which its tree has it.
    """

    value: str
    kind: Kind
    dims: tuple[str, ...]
    dtype: Dtype
    layout: Layout
    repeats: tuple[str, ...]
    path: tuple[str, ...]


@record
class Names:
    """What things are called. `fields`: dims and repeats as fields of `Config`; `keeps`: how many each mask keeps, as
    such; `blocks`: how many places of a dim attention takes at a time, as such, by the dim and their number; `keys`: of
    repeats in trees;
    `contexts`: the arguments that say how much of a dim is filled; `inputs`: those of the inputs;
    `reserved`: names that no value may have, those of inputs left out."""

    leaves: tuple[Leaf, ...]
    fields: Mapping[str, str]
    keeps: Mapping[str, str]
    blocks: Mapping[tuple[str, int], str]
    keys: Mapping[str, str]
    contexts: Mapping[str, str]
    inputs: Mapping[str, str]
    reserved: frozenset[str]

    @property
    def arguments(self) -> list[str]:
        """The arguments of a step, in order: trees that have leaves, inputs, contexts."""
        trees = [text for kind, text in TREES.items() if any(leaf.kind is kind for leaf in self.leaves)]
        return [*trees, *self.inputs.values(), *self.contexts.values()]

    def of(self, kind: Kind) -> list[Leaf]:
        """The leaves of a kind."""
        return [leaf for leaf in self.leaves if leaf.kind is kind]

    def base(self, name: str) -> str:
        """The name of a value within its repeat."""
        for repeat in sorted(self.keys, key=len, reverse=True):
            if name.startswith(f"{repeat}."):
                return name[len(repeat) + 1 :]
        return name

    def access(self, leaf: Leaf) -> str:
        """The text of a leaf of its tree."""
        return TREES[leaf.kind] + "".join(f"[{literal(key)}]" for key in leaf.path)

    def tree(self, kind: Kind, text: Callable[[Leaf], str]) -> str:
        """A tree on one line, with `text` of each leaf."""
        return _one_line(_nested((leaf.path, text(leaf)) for leaf in self.of(kind)))

    def tree_lines(self, kind: Kind, text: Callable[[Leaf], tuple[str, str]], indent: str) -> list[str]:
        """A tree of several lines, with `text` of each leaf and a comment."""
        return ["{", *_lines(_nested((leaf.path, text(leaf)) for leaf in self.of(kind)), indent + "    "), indent + "}"]


def names_of(spmd: SpmdProgram, contexts: Sequence[str], reserved: Iterable[str]) -> Names:
    """The names for a program, whose steps read how much of the dims `contexts` is filled."""
    repeats = list(repeat_counts(spmd))
    fields: dict[str, str] = {}
    for name in (*(dim for dim, _ in spmd.sizes), *repeats):
        fields[name] = identifier(name, {*fields.values(), *CHOSEN, *SETTINGS})
    keeps: dict[str, str] = {}
    for op in ops(spmd):
        if isinstance(op, Choose):
            base = op.result.rsplit(".", 1)[-1]
            keeps[op.result] = identifier(f"keep_{base}", {*fields.values(), *keeps.values(), *CHOSEN})
    blocks: dict[tuple[str, int], str] = {}
    for dim, places in dict.fromkeys(each for block in blocks_of(spmd) for each in block.places):
        used = {*fields.values(), *keeps.values(), *blocks.values(), *CHOSEN}
        blocks[dim, places] = identifier(f"{dim}_block", used)
    stored = stored_in(spmd.body)
    plain = {one.value for one, placed in stored.items() if not placed.repeats}
    keys = {name: name if name not in plain else f"{name}_" for name in repeats}
    values = spmd.table()
    leaves = []
    for one, placed in stored.items():
        value, around = values[one.value], tuple(r.name for r in placed.repeats)
        own = value.name.removeprefix(f"{around[-1]}.") if around else value.name
        path = (*(keys[r] for r in around), own)
        leaves.append(Leaf(value.name, one.kind, value.dims, value.dtype, value.layout, around, path))
    used = {*OWN, *reserved, *TREES.values()}
    arguments: dict[str, str] = {}
    filled: dict[str, str] = {}
    for dim in contexts:
        filled[dim] = identifier(f"filled {fields[dim]}", used)
        used.add(filled[dim])
    for name in (leaf.value for leaf in leaves if leaf.kind is Kind.INPUT):
        arguments[name] = identifier(name, used)
        used.add(arguments[name])
    inputs = {leaf.value: arguments[leaf.value] for leaf in leaves if leaf.kind is Kind.INPUT}
    return Names(tuple(leaves), fields, keeps, blocks, keys, filled, inputs, frozenset(used - set(inputs.values())))


Tree = dict[str, "Tree | str | tuple[str, str]"]


def _nested(leaves: Iterable[tuple[tuple[str, ...], str | tuple[str, str]]]) -> Tree:
    tree: Tree = {}
    for path, text in leaves:
        branch = tree
        for key in path[:-1]:
            below = branch.setdefault(key, {})
            assert isinstance(below, dict)
            branch = below
        branch[path[-1]] = text
    return tree


def _one_line(tree: Tree) -> str:
    parts = (f"{literal(key)}: {_one_line(below) if isinstance(below, dict) else below}" for key, below in tree.items())
    return "{" + ", ".join(parts) + "}"


def _lines(tree: Tree, indent: str) -> Iterator[str]:
    for key, below in tree.items():
        if isinstance(below, dict):
            yield f"{indent}{literal(key)}: {{"
            yield from _lines(below, indent + "    ")
            yield f"{indent}}},"
        elif isinstance(below, tuple):
            text, note = below
            code = f"{indent}{literal(key)}: {text},"
            yield f"{code.ljust(48)}  {comment(note)}" if note else code
