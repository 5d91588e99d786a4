"""The two functions of an emitted NumPy file: the program on one machine, and on the chips of a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.collective import AllGather, AllReduce, AllToAll, Collective, Embed, Permute, ReduceScatter, Slice, axes_of
from ...ir.inert import literal
from ...ir.layout import Layout, Reduction, format_layout
from ...ir.program import Append, Einsum, Iota, Program, Take, Value
from ...ir.spmd import Compute, Move, SpmdProgram, Step, as_steps
from ...ir.streams import host_tensors
from .function_text import FunctionText, streams_key
from .python_text import align_text, axes_text, letters


class Dense(FunctionText):
    """Writes the dense program, in plain NumPy and without padding."""

    called = "dense"
    doc = "The program on one machine: its results, and the caches that it leaves."

    def __init__(self, program: Program, sizes: Mapping[str, int], names: Mapping[str, str]) -> None:
        super().__init__(names, {name: name for name in program.results})
        self.program, self.sizes, self.values = program, program.true_sizes(sizes), program.table()
        self.true = dict(program.padding)

    def function(self) -> list[str]:
        """The lines of the function."""
        return self.write(as_steps(self.program.body))

    def value(self, name: str) -> Value:
        """The value of that name."""
        return self.values[name]

    def note(self, name: str) -> str:
        """The dims of a value."""
        return f"[{', '.join(self.values[name].dims)}]"

    def load(self, name: str, whole: str, index: str) -> str:
        """The array as it is."""
        return whole

    def finish(self, name: str) -> str:
        """The array as it is."""
        return self.names[name]

    def zeros(self, name: str) -> str:
        """Zeros in the whole shape of a value."""
        return f"np.zeros({tuple(self.sizes[d] for d in self.values[name].dims)})"

    def einsum(self, terms: Sequence[str]) -> str:
        """The subscripts as they are."""
        return f"{','.join(terms[:-1])}->{terms[-1]}"

    def special(self, op: Take | Iota | Append) -> str:
        """An op that einsum and pointwise text do not cover, on whole arrays."""
        match op:
            case Take(_, table, ids, over):
                found = [self.values[table].dims.index(d) for d in over]
                first = list(range(len(over)))
                rows = self.names[table] if found == first else f"np.moveaxis({self.names[table]}, {found}, {first})"
                places = f"np.asarray({self.names[ids]}, dtype=int)"
                if len(over) > 1:
                    places = f"np.unravel_index({places}, {tuple(self.sizes[d] for d in over)})"
                return f"{rows}[{places}]"
            case Iota(_, dim):
                return f"np.arange(size[{literal(self.true.get(dim, dim))}], dtype=float)"
            case Append(_, cache, new, source, target, context):
                dims = self.values[cache].dims
                at = dims.index(target)
                entries = align_text(
                    self.names[new], [target if d == source else d for d in self.values[new].dims], dims
                )
                old, leading = self.names[cache], ":, " * at
                end = f"context[{literal(context or target)}]"
                if context is not None:
                    return f"append_wrapping({old}, {entries}, {at}, {end})"
                before = f"{old}[{leading}: {end} - size[{literal(source)}]]"
                beyond = f"{old}[{leading}{end} :]"
                return f"np.concatenate([{before}, {entries}, {beyond}], axis={at})"


class Sharded(FunctionText):
    """Writes the sharded program, on arrays that hold the shards of all chips."""

    called = "sharded"
    doc = "The program as the chips run it; the mesh's axes stand in front of every array."

    def __init__(self, spmd: SpmdProgram, names: Mapping[str, str], results: Mapping[str, str]) -> None:
        super().__init__(names, results)
        self.spmd, self.values, self.sizes = spmd, spmd.table(), dict(spmd.sizes)
        self.streams = host_tensors(spmd)

    def function(self) -> list[str]:
        """The lines of the function."""
        return self.write(self.spmd.body)

    def value(self, name: str) -> Value:
        """The value of that name, without its layout."""
        return self.values[name].value

    def note(self, name: str) -> str:
        """The layout of a value."""
        return format_layout(self.values[name].dims, self.values[name].layout)

    def first(self) -> list[str]:
        """A line for each tensor with repetitions that come from the host."""
        lines = []
        for name, one in self.streams.items():
            held, parts = _layout_text(one.value.layout), _layout_text(one.parts)
            given = f"mesh, stored[{literal(name)}], {held}, {parts}, {one.layers}, {one.streamed.ahead}"
            lines.append(f"    {self.names[streams_key(name)]} = Streamed({given})")
        return lines

    def load(self, name: str, whole: str, index: str) -> str:
        """Its shards; of a streamed tensor those of a repetition, from the host."""
        if name in self.streams:
            return f"{self.names[streams_key(name)]}.at({index})"
        return f"mesh.shard({whole}, {_layout_text(self.values[name].layout)})"

    def finish(self, name: str) -> str:
        """The array that the shards make up."""
        return f"mesh.unshard({self.names[name]}, {_layout_text(self.values[name].layout)})"

    def zeros(self, name: str) -> str:
        """Zeros in the local shape of a value, on all chips."""
        value = self.values[name]
        local = value.layout.local_shape([self.sizes[d] for d in value.dims], self.spmd.mesh)
        return f"np.zeros(mesh.shape + {local})"

    def einsum(self, terms: Sequence[str]) -> str:
        """The subscripts with the axes of the mesh in front."""
        return f"{','.join('...' + t for t in terms[:-1])}->...{terms[-1]}"

    def special(self, op: Take | Iota | Append) -> str:
        """The same on shards, by the mesh."""
        match op:
            case Take(_, table, ids, over):
                splits = [self._split(table, dim) for dim in over]
                axes = "[" + ", ".join(text for _, text in splits) + "]"
                return f"mesh.take({self.names[table]}, {self.names[ids]}, {[at for at, _ in splits]}, {axes})"
            case Iota(result, dim):
                return f"mesh.iota(size[{literal(dim)}], {self._split(result, dim)[1]})"
            case Append(_, cache, new, source, target, context):
                at, axes = self._split(cache, target)
                dims = [target if d == source else d for d in self.values[new].dims]
                entries = align_text(self.names[new], dims, self.values[cache].dims)
                end = f"context[{literal(context or target)}]{', wraps=True' if context else ''}"
                return f"mesh.append({self.names[cache]}, {entries}, {at}, {axes}, {end})"

    def _split(self, name: str, dim: str) -> tuple[int, str]:
        """Where `dim` stands in a value, and the text of the axes that split it."""
        value = self.values[name]
        at = value.dims.index(dim)
        return at, axes_text(value.layout.dims[at])

    def one(self, run: Sequence[Step]) -> tuple[str, list[str]]:
        """The call that makes several values as one, and its parts."""
        first = run[0]
        if isinstance(first, Move):
            texts = [self.move(step.operand, step.collective) for step in run if isinstance(step, Move)]
            name, _, _ = texts[0].removeprefix("mesh.").partition("(")
            axes = axes_text(axes_of(first.collective, self.values[first.operand].layout))
            parts = [text.removeprefix(f"mesh.{name}(").removesuffix(")") for text in texts]
            return f'mesh.together("{name}", {axes}, [', [f"({part})" for part in parts]
        assert isinstance(first.op, Einsum)
        ops = [step.op for step in run if isinstance(step, Compute) and isinstance(step.op, Einsum)]
        letter = letters(i for op in ops for each in (*op.indices, op.output) for i in each)
        parts = []
        for op in ops:
            weight, result = ("".join(letter[i] for i in each) for each in (op.indices[1], op.output))
            parts.append(f'({self.names[op.operands[1]]}, "{weight}", "{result}")')
        read = "".join(letter[i] for i in first.op.indices[0])
        return f'project({self.names[first.op.operands[0]]}, "{read}", [', parts

    def move(self, operand: str, collective: Collective) -> str:
        """The call of a collective on the shards of all chips."""
        before = self.values[operand].layout
        reduce = ", np.maximum" if before.reduction is Reduction.MAX else ""
        a = self.names[operand]
        match collective:
            case AllGather(axes, dim):
                return f"mesh.all_gather({a}, {axes_text(axes)}, {dim})"
            case ReduceScatter(axes, dim):
                return f"mesh.reduce_scatter({a}, {axes_text(axes)}, {dim}{reduce})"
            case AllReduce(axes):
                return f"mesh.all_reduce({a}, {axes_text(axes)}{reduce})"
            case AllToAll(axes, source, target):
                order = axes_text(before.dims[source][-len(axes) :])
                return f"mesh.all_to_all({a}, {axes_text(axes)}, {source}, {target}, {order})"
            case Slice(axes, dim):
                return f"mesh.slice({a}, {axes_text(axes)}, {dim})"
            case Permute(after):
                return f"mesh.permute({a}, {_layout_text(before)}, {_layout_text(after)})"
            case Embed(axes, None):
                return f"mesh.embed({a}, {axes_text(axes)})"
            case Embed(axes, int(dim)):
                return f"mesh.embed_block({a}, {axes_text(before.dims[dim][-len(axes) :])}, {dim})"
        raise AssertionError(collective)


def _layout_text(layout: Layout) -> str:
    return "[" + ", ".join(axes_text(axes) for axes in layout.dims) + "]"
