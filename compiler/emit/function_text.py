"""A function of an emitted NumPy file: one line for each step, with a comment on its value."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from ...ir.collective import Collective
from ...ir.dataflow import ops_in, reads
from ...ir.expr import context_dims, operands
from ...ir.inert import comment, literal
from ...ir.program import (
    Append,
    Choose,
    Einsum,
    Iota,
    Map,
    Op,
    Reduce,
    Region,
    Repeat,
    Sum,
    Take,
    TopK,
    Value,
    operand_names,
    walk,
)
from ...ir.spmd import Compute, Move, Step
from ...ir.verify.fused import together
from .python_text import ExprText, align_text, letters, number_text, sum_text

WIDTH = 120  # columns
NOTES = 72  # the column at which comments start, where the code is shorter


def loop_key(repeat: str) -> str:
    """Under what the name of a repeat's loop variable is found; no value is called so."""
    return f"i {repeat}"


def streams_key(stored: str) -> str:
    """Under what the name of a tensor with repetitions that come from the host is found; no value is called so."""
    return f"{stored} streamed"


def versions_key(append: str) -> str:
    """Under what the name of the list of a cache's versions is found; no value is called so."""
    return f"{append} all"


class FunctionText(ABC):
    """Writes one function. `names` gives the identifiers; `results` the key of each returned value."""

    called: str  # the function's own name
    doc: str
    sizes: Mapping[str, int]  # of dims

    def __init__(self, names: Mapping[str, str], results: Mapping[str, str]) -> None:
        self.names, self.results = names, results
        self.lines: list[str] = []
        self.returned: dict[str, str] = {}  # text of each returned array, by key
        self.read: set[str] = set(results)

    @abstractmethod
    def value(self, name: str) -> Value:
        """The value of that name."""

    @abstractmethod
    def note(self, name: str) -> str:
        """What the comment says of a value."""

    @abstractmethod
    def load(self, name: str, whole: str, index: str) -> str:
        """Text of a stored tensor, from that of the whole array, and of the `index` of a repetition; '' outside."""

    @abstractmethod
    def finish(self, name: str) -> str:
        """Text of a result as a whole array."""

    @abstractmethod
    def zeros(self, name: str) -> str:
        """Text of zeros in the shape of a value."""

    @abstractmethod
    def einsum(self, terms: Sequence[str]) -> str:
        """Text of an einsum's subscripts, operands first."""

    @abstractmethod
    def special(self, op: Take | Iota | Append) -> str:
        """Text of an op that must know global positions."""

    def write(self, region: Region[Step]) -> list[str]:
        """The lines of the function whose body is `region`."""
        self._note_reads(region)
        self.lines += self.first()
        self._region(region, 1, ())
        for name, key in self.results.items():
            self.returned[key] = self.finish(name)
        returns = [
            "    return {",
            *(f"        {literal(key)}: {text}," for key, text in self.returned.items()),
            "    }",
        ]
        return [*self._head(_counts(region)), *self.lines, *returns]

    def first(self) -> list[str]:
        """Lines before all steps."""
        return []

    def _head(self, counts: bool) -> list[str]:
        """The lines before the first step; `counts`: some step reads how much of a context is filled."""
        stored, returns = "stored: Mapping[str, np.ndarray]", "dict[str, np.ndarray]"
        if not counts:
            return [f"def {self.called}({stored}) -> {returns}:", f'    """{self.doc}"""']
        context = "context: Mapping[str, int] = size"
        filled = "`context`: how many places along a dim are filled, with the entries of this step."
        head = f"def {self.called}({stored}, {context}) -> {returns}:"
        return [head, f'    """{self.doc}', "", f"    {filled}", '    """']

    def _note_reads(self, region: Region[Step]) -> None:
        for placed in walk(region):
            match placed.item:
                case Repeat(_, _, carries):
                    self.read |= {n for c in carries for n in (c.initial, c.inside, c.next)}
                case Compute(Append(result)) as step:
                    self.read |= {result, *reads(step)}
                case Compute() | Move() as step:
                    self.read |= {*reads(step)}

    def _assign(self, name: str, text: str, depth: int, note: str) -> None:
        """A line that gives a value its text; what nothing reads is marked by an underscore."""
        target = self.names[name] if name in self.read else "_" + self.names[name]
        indent = "    " * depth
        code = f"{indent}{target} = {text}"
        line = f"{code.ljust(NOTES)}  {comment(note)}"
        if len(line) <= WIDTH:
            self.lines.append(line)
            return
        self.lines.append(f"{indent}{comment(note)}")
        if len(code) <= WIDTH:
            self.lines.append(code)
            return
        inner = _wrapped(text, WIDTH - len(indent) - 4)
        self.lines += [f"{indent}{target} = (", *(f"{indent}    {part}" for part in inner), f"{indent})"]

    def _region(self, region: Region[Step], depth: int, repeats: tuple[Repeat[Step], ...]) -> None:
        index = ", ".join(self.names[loop_key(r.name)] for r in repeats)
        for stored in region.stored:
            whole = f"stored[{literal(stored.value)}]" + (f"[{index}]" if index else "")
            text = self.load(stored.value, whole, index)
            self._assign(stored.value, text, depth, f"stored {self.note(stored.value)}")
        for run in together(region.items):
            if len(run) > 1:
                self._assign_all([step for step in run if not isinstance(step, Repeat)], depth)
                continue
            [item] = run
            match item:
                case Repeat():
                    self._repeat(item, depth, repeats)
                case Move(result, operand, collective):
                    self._assign(result, self.move(operand, collective), depth, self.note(result))
                case Compute(op):
                    self._assign(op.result, self._op(op), depth, self.note(op.result))
                    if isinstance(op, Append):
                        self._keep_version(op.result, depth, repeats)

    def move(self, operand: str, collective: Collective) -> str:
        """Text of a collective, where there are any."""
        raise AssertionError(f"{collective} of `{operand}` in a dense program")

    def _assign_all(self, run: Sequence[Step], depth: int) -> None:
        """Lines that give several values, made as one, their texts."""
        call, parts = self.one(run)
        indent = "    " * depth
        for step in run:
            self.lines.append(indent + comment(f"{self.names[step.result]}: {self.note(step.result)}"))
        self.lines.append(f"{indent}{', '.join(self.names[step.result] for step in run)} = {call}")
        self.lines += [f"{indent}    {part}," for part in parts]
        self.lines.append(f"{indent}])")

    def one(self, run: Sequence[Step]) -> tuple[str, list[str]]:
        """Text of steps that run as one, where there are any: how a call begins, and its parts."""
        raise AssertionError(f"{run} in a dense program")

    def _keep_version(self, name: str, depth: int, repeats: tuple[Repeat[Step], ...]) -> None:
        if not repeats:
            self.returned[name] = self.finish(name)
            return
        versions = self.names[versions_key(name)]
        self.lines.append(f"{'    ' * depth}{versions}.append({self.finish(name)})")
        shape = "".join(f"{r.count}, " for r in repeats)
        stacked = f"np.stack({versions})"
        if len(repeats) > 1:
            stacked += f".reshape({shape}*{versions}[0].shape)"
        self.returned[name] = stacked

    def _repeat(self, repeat: Repeat[Step], depth: int, repeats: tuple[Repeat[Step], ...]) -> None:
        indent = "    " * depth
        if not repeats:
            appended = (op.result for op in ops_in(repeat.body) if isinstance(op, Append))
            self.lines += [f"{indent}{self.names[versions_key(name)]} = []" for name in appended]
        for carry in repeat.carries:
            self._assign(carry.inside, self.names[carry.initial], depth, self.note(carry.inside))
        self.lines.append(f"{indent}for {self.names[loop_key(repeat.name)]} in range({repeat.count}):")
        self._region(repeat.body, depth + 1, (*repeats, repeat))
        inside = ", ".join(self.names[c.inside] for c in repeat.carries)
        after = ", ".join(self.names[c.next] for c in repeat.carries)
        self.lines.append(f"{indent}    {inside} = {after}" if inside else f"{indent}    pass")
        for carry in repeat.carries:
            self._assign(carry.result, self.names[carry.inside], depth, self.note(carry.result))

    def _ungrouped(self, name: str, indices: Sequence[str]) -> str:
        """Text of an operand of an einsum: of groups of places along an index what it has for one, for each place."""
        text, dims = self.names[name], self.value(name).dims
        for at, (index, dim) in enumerate(zip(indices, dims, strict=True)):
            each = self.sizes.get(index, self.sizes[dim]) // self.sizes[dim]
            text = text if each == 1 else f"np.repeat({text}, {each}, axis={at - len(dims)})"
        return text

    def _op(self, op: Op) -> str:
        """The text of an op's result."""
        dims = self.value(op.result).dims
        held = {name: self.value(name).dims for name in operand_names(op)}

        def aligned(name: str) -> str:
            return align_text(self.names[name], held[name], dims)

        match op:
            case Einsum(_, names, indices, output):
                letter = letters(i for each in (*indices, output) for i in each)
                read = [self._ungrouped(n, each) for n, each in zip(names, indices, strict=True)]
                for codes, zero in op.zeros:
                    read[codes] = f"{read[codes]} - {align_text(read[zero], indices[zero], indices[codes])}"
                factors = [n for n in range(len(names)) if n not in dict(op.zeros).values()]
                terms = ["".join(letter[i] for i in each) for each in (*(indices[n] for n in factors), output)]
                arguments = ", ".join(read[n] for n in factors) + (", optimize=True" if len(factors) > 2 else "")
                return f'np.einsum("{self.einsum(terms)}", {arguments})'
            case Map(_, expr):
                return ExprText(dims, aligned, {n: held[n] for n in operands(expr)}, self.zeros(op.result)).write(expr)
            case Sum(_, names, coefficients):
                text = sum_text(zip(coefficients, map(aligned, names), strict=True), number_text)
                covered = {d for name in names for d in held[name]}
                return text if covered >= set(dims) else f"{text} + {self.zeros(op.result)}"
            case Reduce(_, name, over):
                axes = sorted(held[name].index(d) - len(held[name]) for d in over)
                axis = str(axes[0]) if len(axes) == 1 else str(tuple(axes))
                return align_text(
                    f"{self.names[name]}.max(axis={axis})", [d for d in held[name] if d not in over], dims
                )
            case Take(_, table, ids, over):
                return align_text(self.special(op), [*held[ids], *(d for d in held[table] if d not in over)], dims)
            case TopK(_, keys, picked, over, keep):
                order = [*(d for d in held[keys] if d not in over), *over]
                entries = ", ".join(align_text(self.names[n], held[n], order) for n in (keys, picked))
                return f"top_k({entries}, {len(over)}, size[{literal(keep)}])"
            case Choose(_, keys, over, keep):
                order = [*(d for d in held[keys] if d not in over), *over]
                entries = align_text(self.names[keys], held[keys], order)
                return align_text(f"choose({entries}, {len(over)}, {keep})", order, dims)
            case Iota() | Append():
                return self.special(op)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of an expression in parentheses, cut after spaces and opening parentheses, not within brackets."""
    lines = [""]
    for piece in re.findall(r"(?:\[[^\]]*\]|[^ (\[])*(?:[ (]|$)", text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def _counts(region: Region[Step]) -> bool:
    """Whether an op in a region or below it reads how much of a context is filled."""
    return any(isinstance(op, Append) or (isinstance(op, Map) and context_dims(op.expr)) for op in ops_in(region))
