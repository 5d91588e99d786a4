"""Text of what comes from the chips' host, for emitted JAX files: specs, how trees are divided, loops that fetch.

Stacked parameters and caches of which something is streamed are pairs, of what chips keep and what lies in the host's
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.inert import literal
from ...ir.program import Kind
from ...ir.spmd import SpmdProgram
from ...ir.streams import host_tensors, wraps
from .jax_text import CHOSEN, identifier, spec_text
from .jax_tree import TREES, Leaf, Names

STREAMED_LOAD = '''def load(checkpoint: str, mesh, cfg: Config = FULL, tell: Callable[[str], None] = lambda name: None):
    """The parameters from a folder of safetensors files or a GGUF file, in the layouts of PARAMS, what is streamed in
    the host's memory. Of each only what the devices of this process hold is read, and `tell` is called with its name
    when it has been."""
    found = checkpoint_tensors(checkpoint)
    every = tensors(cfg, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
    forms, parts = every[0], jax.eval_shape(partial(divided, cfg), *every)[0]

    def read(line, form, rows, part, place):
        lie = place.addressable_devices_indices_map(part.shape)
        shards = dict.fromkeys(lie)
        for some in read_together(found, line, {str(at): at for at in lie.values()}.values()):
            parts = repetition_parts(found, line, form.shape, form.dtype, rows, some)
            for device, at in lie.items():
                if at in some:
                    memory = jax.sharding.SingleDeviceSharding(device, memory_kind=place.memory_kind)
                    shards[device] = jax.device_put(parts[some.index(at)], memory, may_alias=True)
            jax.block_until_ready([one for one in shards.values() if one is not None])  # what was read goes before more
            del parts
        return jax.make_array_from_single_device_arrays(part.shape, place, list(shards.values()))

    def placed(line, form, part, place):
        if is_streamed(part):
            host = streamed_rows(form.shape[0], part.host.shape[0])
            kept = np.delete(np.arange(form.shape[0]), host)
            pairs = zip((kept, host), part, place, strict=True)
            made = Streamed(*(read(line, form, rows, *where) for rows, *where in pairs))
        else:
            made = read(line, form, None, part, place)
        tell(line)
        return made

    return jax.tree.map(placed, WEIGHTS, forms, parts, places(mesh, PARAMS))'''


class Streams:
    """What is streamed in a program, by the names of its file. `fields`: what the configuration says how many
    repetitions of each repeat come from the host by."""

    def __init__(self, spmd: SpmdProgram, names: Names) -> None:
        self.spmd, self.names = spmd, names
        self.tensors = host_tensors(spmd)
        self.fields: dict[str, str] = {}
        for tensor in self.tensors.values():
            field = f"streamed_{names.fields[tensor.repeats[0]]}"
            used = {*names.fields.values(), *names.keeps.values(), *CHOSEN, *self.fields.values()}
            self.fields.setdefault(tensor.repeats[0], identifier(field, used))

    def __contains__(self, leaf: Leaf) -> bool:
        return leaf.value in self.tensors

    def layers(self) -> dict[str, int]:
        """How many repetitions of each repeat come from the host, by the name of its field."""
        return {self.fields[tensor.repeats[0]]: tensor.layers for tensor in self.tensors.values()}

    def spec(self, leaf: Leaf) -> str:
        """The spec of a stored tensor, or both of one that is streamed."""
        own = spec_text(leaf.layout.dims, len(leaf.repeats))
        if leaf not in self:
            return own
        return f"Streamed({own}, {spec_text(self.tensors[leaf.value].parts.dims, len(leaf.repeats))})"

    def divided(self) -> str:
        """The function that divides trees."""
        trees = [(text, kind) for kind, text in TREES.items() if self.names.of(kind)]
        lines = [
            f"def divided(cfg: Config, {', '.join(text for text, _ in trees)}, *inputs):",
            '    """What `tensors` gives, as it is stored: what lies in the host\'s memory apart from the rest."""',
        ]
        for text, kind in trees:
            for repeat, field in self.fields.items():
                key = literal(self.names.keys[repeat])
                if any(leaf in self and leaf.repeats[0] == repeat for leaf in self.names.of(kind)):
                    part = f"apart({text}[{key}], {text.upper()}[{key}], cfg.{field})"
                    lines.append(f"    {text} = {{**{text}, {key}: {part}}}")
        return "\n".join([*lines, f"    return {', '.join(text for text, _ in trees)}, *inputs"])

    def call(
        self,
        function: str,
        repeat: str,
        state: Sequence[str],
        caches: Sequence[Leaf],
        weights: str | None,
        stacked: Mapping[str, str],
    ) -> str:
        """The loop over a repeat that streams: of `state` and `caches`, whose texts are those of `stacked`."""
        key = literal(self.names.keys[repeat])
        specs = [f"{TREES[Kind.CACHE].upper()}" + "".join(f"[{literal(k)}]" for k in leaf.path) for leaf in caches]
        every = f"({'{}' if weights is None else f'PARAMS[{key}]'}, {_tuple(specs)})"
        given = "{}" if weights is None else f"{weights}[{key}]"
        held = _tuple([stacked[leaf.value] for leaf in caches])
        new = _tuple([self._new(leaf) for leaf in caches])
        count, ahead = f"cfg.{self.names.fields[repeat]}", self._ahead(repeat)
        return f"scan_streamed({function}, {_tuple(state)}, {given}, {held}, {every}, {new}, {count}, {ahead})"

    def _new(self, leaf: Leaf) -> str:
        """Where the new entries of a cache end, how many places go back, along which dimension, and whether it has
        entries before them."""
        tensor = self.tensors[leaf.value]
        if tensor.append is None:
            return "None"
        append = tensor.append
        new, every = (f"cfg.{self.names.fields[dim]}" for dim in (append.source, append.target))
        place = len(leaf.repeats) + leaf.dims.index(append.target)
        back = every if wraps(append, self.spmd) else new
        return f"({self.names.contexts[append.counted]}, {back}, {place}, {new} < {every})"

    def _ahead(self, repeat: str) -> int:
        """How many repetitions are fetched before they are needed."""
        return min(one.streamed.ahead for one in self.tensors.values() if one.repeats[0] == repeat)


def _tuple(texts: Sequence[str]) -> str:
    return "(" + ", ".join(texts) + ("," if len(texts) == 1 else "") + ")"
