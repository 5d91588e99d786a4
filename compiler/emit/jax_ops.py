"""Ops as JAX text, on what one chip holds; dims of size 1 are dropped from its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ir.dtype import Dtype
from ...ir.expr import Operand
from ...ir.mesh import Mesh
from ...ir.program import Append, Choose, Einsum, Iota, Map, Op, Reduce, Sum, Take, TopK, operand_names
from ...ir.record import record
from ...ir.spmd import SpmdValue
from .jax_text import (
    INTEGERS,
    ExprText,
    align_text,
    axes_text,
    dtype_text,
    is_whole,
    number_text,
    places_text,
    subscripts,
    widest,
)
from .jax_tree import Names
from .python_text import sum_text

# Types that are stored, and not computed with.
PACKED = frozenset({Dtype.INT4, Dtype.INT8, Dtype.FP8, Dtype.FP4, Dtype.E8M0})
EIGHT_BITS = 8


@record
class Ops:
    """Writes the ops of a program with these values, on a mesh; an Append is no expression, and not among them.
    `beyond`: the results of lookups whose ids may name rows that there are not, which are zeros. `tpu`: written for
    the TPU's compiler."""

    values: Mapping[str, SpmdValue]
    sizes: Mapping[str, int]
    names: Names
    mesh: Mesh
    beyond: frozenset[str] = frozenset()
    tpu: bool = False

    def kept(self, dims: Sequence[str]) -> list[str]:
        """The dims that local arrays have."""
        return [d for d in dims if self.sizes[d] > 1]

    def reads(self, op: Op) -> set[str]:
        """The values that an op reads. The one row of a table of one row is no matter of ids."""
        if isinstance(op, Take) and not self.kept(op.over):
            return {op.table}
        return set(operand_names(op))

    def text(self, op: Op, known: Mapping[str, str]) -> str:
        """The text of an op's result; `known` are the texts of values."""
        result = self.values[op.result]
        dims, reads = self.kept(result.dims), self.reads(op)
        held = {n: self.kept(self.values[n].dims) for n in operand_names(op) if n in reads}
        target = working_type(op, result.dtype)
        read = {n: self.unpacked(n, target, known) for n in held}
        texts, dtypes = {n: text for n, (text, _) in read.items()}, {n: dtype for n, (_, dtype) in read.items()}

        def aligned(name: str) -> str:
            return align_text(texts[name], held[name], dims)

        match op:
            case Einsum(_, names, indices, output):
                scaled, scales = self.scaled(op, known, read, fused=self.tpu)
                every = [(n, self.indices(n, each)) for n, each in zip(names, indices, strict=True)]
                pairs = [(*scaled[n], each) for n, each in every if n not in scales]
                return einsum_text(pairs, self.kept(output), result.dtype)
            case Map(_, expr):
                writer = ExprText(dims, aligned, dtypes, held, self.size_text, self.context_text, self.shape(result))
                return writer.write(expr, result.dtype)
            case Sum(_, names, _):
                text = sum_of(op, aligned, dtypes, result.dtype)
                covered = {d for n in names for d in held[n]} >= set(dims)
                return text if covered else f"jnp.broadcast_to({text}, {self.shape(result)})"
            case Reduce(_, name, over):
                axes = [held[name].index(d) - len(held[name]) for d in self.kept(over)]
                rest = [d for d in held[name] if d not in over]
                text = f"{texts[name]}.max({places_text(sorted(axes))})" if axes else texts[name]
                return _cast(align_text(text, rest, dims), dtypes[name], result.dtype)
            case Take(_, name, _, _) | TopK(_, _, name, _, _):
                return _cast(self._lookup(op, texts, held, dims), dtypes[name], result.dtype)
            case Choose(_, keys, over, _):
                order = [*(d for d in held[keys] if d not in over), *self.kept(over)]
                rank = len(order) - len([d for d in held[keys] if d not in over])
                text = align_text(texts[keys], held[keys], order)
                if not rank:
                    return align_text(
                        f"jnp.not_equal({text}, -jnp.inf).astype({dtype_text(result.dtype)})", order, dims
                    )
                text = f"kept({text}, {rank}, {self.keep_text(op)}, {dtype_text(result.dtype)})"
                return align_text(text, order, dims)
            case Iota():
                return self._lookup(op, texts, held, dims)
            case Append():
                raise AssertionError(f"{op} is written in place")

    def indices(self, name: str, indices: Sequence[str]) -> list[str]:
        """The indices that the local array of an operand of an einsum has."""
        return [i for i, d in zip(indices, self.values[name].dims, strict=True) if self.sizes[d] > 1]

    def ungrouped(self, name: str, indices: Sequence[str], text: str) -> str:
        """The text of an operand of an einsum: of groups of places along an index, what it has for each for each
        place. Along the last dimension first, while there is little: a TPU lays all of that out anew, twice."""
        dims = dict(zip(indices, self.values[name].dims, strict=True))
        for at, index in reversed([*enumerate(self.indices(name, indices))]):
            if self.sizes.get(index, 0) > self.sizes[dims[index]]:
                text = f"jnp.repeat({text}, {self.size_text(index)} // {self.size_text(dims[index])}, {at})"
        return text

    def scaled(
        self, op: Einsum, known: Mapping[str, str], read: Mapping[str, tuple[str, Dtype]], fused: bool = False
    ) -> tuple[dict[str, tuple[str, Dtype]], frozenset[str]]:
        """The texts and types of the operands of an einsum, codes with groups as the numbers that they stand for, in
        the type in which the op works; and the scales that these are made with.

        `fused`: a TPU's compiler may make the numbers where it multiplies them. It does not of codes in groups that
        have less than eight bits; with scales of as few as eight, these are laid out for all places as they are stored
        (libtpu 0.0.42, v4: 268 MB for 2**28 codes in fp4 with scales in e8m0, where their numbers take 537)."""
        scales, less = self.beside_texts(op, known, fused)
        works, out = working_type(op, self.values[op.result].dtype), dict(read)
        for host, times in scales.items():
            dtype = Dtype.F32 if works is Dtype.F32 else read[host][1]  # of rows of codes that are narrow
            given = [known[host], dtype_text(dtype), *times, *([less[host]] if host in less else [])]
            out[host] = f"decoded({', '.join(given)})", dtype
        return out, frozenset(beside(op, self.values, self.sizes))

    def beside_texts(
        self, op: Einsum, known: Mapping[str, str], fused: bool = False
    ) -> tuple[dict[str, list[str]], dict[str, str]]:
        """The texts of the scales, and of the zero points, of the operands of an einsum that have such, along the
        dimensions of these."""
        indices = dict(zip(op.operands, op.indices, strict=True))
        aside, zeros = beside(op, self.values, self.sizes), {op.operands[zero] for _, zero in op.zeros}
        scales: dict[str, list[str]] = {host: [] for host in aside.values()}
        less: dict[str, str] = {}
        for name, host in aside.items():
            own, whole = (self.indices(each, indices[each]) for each in (name, host))
            text = known[name]
            if fused and self.values[name].dtype.bits <= EIGHT_BITS > self.values[host].dtype.bits:
                text = f"lax.optimization_barrier({self.ungrouped(name, indices[name], text)})"
            text = align_text(text, own, whole)
            if name in zeros:
                less[host] = f"zeros={text}"
            else:
                scales[host].append(text)
        return scales, less

    def _lookup(
        self, op: Take | TopK | Iota, texts: Mapping[str, str], held: Mapping[str, list[str]], dims: list[str]
    ) -> str:
        """The text of an op that picks elements, or counts them."""
        match op:
            case Take(_, table, ids, over):
                found = [d for d in held[table] if d in over]
                if not found:  # a table of one row, which every id picks
                    row, shape = align_text(texts[table], held[table], dims), self.shape(self.values[op.result])
                    return row if set(dims) <= set(held[table]) else f"jnp.broadcast_to({row}, {shape})"
                kept = [d for d in over if d in found]
                where, splits = [held[table].index(d) for d in kept], [self.values[table].axes(d) for d in kept]
                rest = [*held[ids], *(d for d in held[table] if d not in over)]
                if where == [0] and not splits[0] and op.result not in self.beyond:
                    return align_text(f"{texts[table]}[{texts[ids]}]", rest, dims)
                each = ", ".join(axes_text(split) if split else "()" for split in splits)
                return align_text(f"take({texts[table]}, {texts[ids]}, {where}, [{each}])", rest, dims)
            case TopK(_, keys, picked, over, keep):
                order = [*(d for d in held[keys] if d not in over), *self.kept(over)]
                entries = ", ".join(align_text(texts[n], held[n], order) for n in (keys, picked))
                text = f"largest({entries}, {len(self.kept(over))}, {self.size_text(keep)})"
                return text if keep in dims else f"{text}[..., 0]"
            case Iota(result, dim):
                return self.positions(dim, self.values[result])

    def positions(self, dim: str, of: SpmdValue) -> str:
        """The text of the places along a dim that a chip has of a value, in the type of that."""
        size, dtype = self.size_text(dim), dtype_text(of.dtype)
        if not self.kept([dim]):
            return f"jnp.zeros((), {dtype})"
        axes = of.axes(dim)
        return f"own_positions({size}, {axes_text(axes)}, {dtype})" if axes else f"jnp.arange({size}, dtype={dtype})"

    def unpacked(self, name: str, target: Dtype, known: Mapping[str, str]) -> tuple[str, Dtype]:
        """The text of an operand, and its type: stored types that nothing computes with become wider."""
        dtype = self.values[name].dtype
        if dtype not in PACKED or target in PACKED:
            return known[name], dtype
        wide = target if target is not Dtype.I32 else Dtype.F32
        return f"{known[name]}.astype({dtype_text(wide)})", wide

    def keep_text(self, op: Choose) -> str:
        """The text of how many entries an op keeps that chooses."""
        return f"cfg.{self.names.keeps[op.result]}"

    def size_text(self, dim: str) -> str:
        """The text of the size of a dim."""
        return f"cfg.{self.names.fields[dim]}"

    def context_text(self, dim: str) -> str:
        """The text of how much of a dim is filled."""
        return self.names.contexts[dim]

    def length(self, value: SpmdValue, dim: str) -> str:
        """The text of how much of a dim of a value a chip holds."""
        ways = self.mesh.size(*value.axes(dim))
        return self.size_text(dim) + (f" // {ways}" if ways > 1 else "")

    def shape(self, value: SpmdValue) -> str:
        """The text of a value's local shape."""
        parts = [self.length(value, dim) for dim in self.kept(value.dims)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def beside(op: Einsum, values: Mapping[str, SpmdValue], sizes: Mapping[str, int]) -> dict[str, str]:
    """The operands of an einsum that are no factors of their own, each with the one to which it belongs: zero points,
    and what has an element for a group of places along an index, the scale of the first operand that has all its
    indices, of those in few bits where there is one."""
    found = {op.operands[zero]: op.operands[codes] for codes, zero in op.zeros}
    for name, own in zip(op.operands, op.indices, strict=True):
        grouped = any(1 < sizes[d] < sizes.get(i, 0) for i, d in zip(own, values[name].dims, strict=True))
        if grouped and name not in found:
            read = [(n, i) for n, i in zip(op.operands, op.indices, strict=True) if n not in found]
            hosts = [n for n, i in read if n != name and set(own) <= set(i)]
            found[name] = min(hosts, key=lambda n: values[n].dtype not in PACKED)
    return found


def working_type(op: Op, dtype: Dtype) -> Dtype:
    """The type in which an op works whose result has a type."""
    works = isinstance(op, Map | Sum | Einsum) and not _copies(op)
    return Dtype.F32 if works and dtype in PACKED else dtype


def sum_of(op: Sum, aligned: Callable[[str], str], dtypes: Mapping[str, Dtype], wanted: Dtype) -> str:
    """A sum of operands, of types `dtypes` and texts `aligned`, in the type `wanted`."""
    text = sum_text(zip(op.coefficients, map(aligned, op.operands), strict=True), number_text)
    dtype = widest([dtypes[n] for n in op.operands])
    if dtype in INTEGERS and not all(map(is_whole, op.coefficients)):
        dtype = Dtype.F32
    return text if dtype is wanted else f"({text}).astype({dtype_text(wanted)})"


def einsum_text(pairs: Sequence[tuple[str, Dtype, Sequence[str]]], output: Sequence[str], dtype: Dtype) -> str:
    """An einsum of (text, type, indices): a plain sum where there is one operand."""
    have = widest([d for _, d, _ in pairs])
    if dtype in (*INTEGERS, *PACKED) and have is not dtype:
        return f"{einsum_text(pairs, output, Dtype.F32)}.astype({dtype_text(dtype)})"
    if len(pairs) == 1:
        [(text, found, indices)] = pairs
        rest = [i for i in indices if i in output]
        if len(set(indices)) == len(indices):
            axes = [i - len(indices) for i, index in enumerate(indices) if index not in output]
            text = f"{text}.sum({places_text(axes)}, dtype={dtype_text(dtype)})" if axes else _cast(text, found, dtype)
            return align_text(text, rest, output)
    arguments = ", ".join(text for text, _, _ in pairs)
    if have is not dtype:
        arguments += f", preferred_element_type={dtype_text(dtype)}"
    return f'jnp.einsum("{subscripts([indices for _, _, indices in pairs], output)}", {arguments})'


def _copies(op: Op) -> bool:
    """Whether an op does no arithmetic: it hands on what it reads."""
    match op:
        case Map(_, Operand()):
            return True
        case Einsum(_, names, indices, output):
            return len(names) == 1 and sorted(indices[0]) == sorted(output)
    return False


def _cast(text: str, have: Dtype, want: Dtype) -> str:
    return text if have is want else f"{text}.astype({dtype_text(want)})"
