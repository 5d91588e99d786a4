"""A sharded program as one JAX module that a person can read, and run on any mesh of as many devices.

The module holds the sizes, the specs, the step as a `shard_map` of explicit collectives, and the same
program unsharded, with which it compares itself at small sizes when it is run.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ...cost.blocks import blocks_of, in_blocks
from ...cost.estimate import Estimate
from ...cost.platform import Platform
from ...ir.choices import chooses
from ...ir.dataflow import ops, repeat_counts
from ...ir.dtype import Dtype
from ...ir.inert import comment, docstring, literal
from ...ir.layout import format_layout
from ...ir.mesh import Mesh
from ...ir.program import Choose, Einsum, Kind, Program, Take, stored_in
from ...ir.spmd import SpmdProgram, unsharded
from ...ir.streams import host_tensors, unstreamed
from ..hf_import import checkpoint_files, packed_tensors, parameter_parts
from ..hf_import.weight_map import WeightMap, fitted_map, ordered_map
from ..simulate.shrink import shrink
from .jax_attention import small_blocks
from .jax_build import mesh_and_build_text, unrolls
from .jax_function import FunctionText, contexts_of
from .jax_lines import WIDTH
from .jax_main import main_text
from .jax_order import by_rows_text, in_memory_order, orders_of, reordered
from .jax_packed import Packed, packed
from .jax_streams import STREAMED_LOAD, Streams
from .jax_text import CHOSEN, NUMPY, dtype_text, identifier, spec_text
from .jax_tree import OWN, TREES, Leaf, Names, names_of

# Nothing of a model stands in the first two lines, where Python looks for an encoding (PEP 263).
TITLE = '"""A step of a model on the chips of a mesh, in JAX, with its collectives spelled out.'
RUNTIME, SCORES_RUNTIME, KERNEL_RUNTIME, ROWS_RUNTIME, EXPERT_RUNTIME, STREAMS_RUNTIME = RUNTIMES = [
    Path(__file__).with_name(f"jax_{name}runtime.py")
    for name in ("", "scores_", "kernel_", "rows_", "expert_", "streams_")
]
CHECKPOINTS = Path(checkpoint_files.__file__), Path(packed_tensors.__file__), Path(parameter_parts.__file__)
LEAST_SHOWN_US = 0.05
TRITON = ["", "try:", "    from jax.experimental.pallas import triton", "except ImportError:", "    triton = None"]


def step_names(spmd: SpmdProgram) -> Names:
    """What the module of a program calls things."""
    return names_of(spmd, contexts_of(spmd), _runtime(bool(host_tensors(spmd))))


def emit_jax(
    program: Program,
    spmd: SpmdProgram,
    cost: Estimate,
    weights: WeightMap | None = None,
    small: SpmdProgram | None = None,
    platform: Platform = Platform.ANY,
) -> str:
    """The text of a Python file for one sharded phase of `program`; `cost` is what its comments say.

    It needs jax and numpy only. `build(mesh, cfg)` there gives the jitted step. Run as a program it
    prints the largest relative difference from the unsharded program, and exits with 1 when that is
    more than rounding explains. With `weights`, `load(checkpoint, mesh, cfg)` gives the parameters as they are in a
    checkpoint. `small`: the program at the sizes at which it is compared, where these are not its own. Where chosen
    values have a capacity, what is beyond is dropped, and counted in a last result: for each chip how many entries that
    were, and of how many tokens. `platform`: for the TPU's compiler collectives are written so that it keeps them; for
    it and that of GPUs caches, and what else it copies otherwise, stand in the order in which it reads them, and for
    GPUs what is of repetitions can be handed over apart.
    """
    made = None if weights is None else fitted_map(weights, program)
    orders = orders_of(program, spmd, platform)
    small = None if small is None else reordered(small, orders)
    made = None if made is None else ordered_map(made, orders)
    program, spmd = in_memory_order(program, spmd, platform)
    helpers = _runtime(bool(host_tensors(spmd)))
    names = step_names(spmd)
    step = identifier(spmd.phase, {*names.reserved, *names.inputs.values()}) if spmd.phase not in OWN else "step"
    small = small or shrink(program, [spmd]).spmds[0]
    rows = packed(spmd)
    both_ways = frozenset(loop.first for loop in cost.loops if loop.halves == 2)
    tpu, apart = platform is Platform.TPU, unrolls(spmd, names, platform)
    body = FunctionText(
        spmd, names, _notes(cost), rows, both_ways, tpu, in_blocks(spmd), apart, platform is Platform.GPU
    ).write()
    whole = unsharded(program, spmd.phase, Mesh((("x", 1),)))
    dense = FunctionText(unstreamed(whole), names, None, Packed(whole, {}), unrolls=apart).write()
    arguments = ", ".join(["cfg", *names.arguments])
    functions = [
        f'def {step}({arguments}):\n    """{_doc(names)}"""',
        *body,
        "\n",
        f'def dense({arguments}):\n    """The program on one device."""',
        *dense,
    ]
    streams = Streams(spmd, names)
    divided = [streams.divided()] if streams.tensors else []
    tables = by_rows_text(spmd, names) if tpu else []
    load = [] if made is None else _load(names, made, streams, bool(tables))
    beside = [*functions, *divided, *load[-1:], main_text(spmd, names, weights is not None, rows.limited, streams)]
    used = _used(helpers, "\n".join(beside if streams.tensors else functions))
    first = [helper for helper in used if helper.startswith("class Streamed(")]
    parts = [
        _config(spmd, names, small, rows, streams, apart),
        *first,
        _specs(spmd, names, rows, streams),
        _tensors(program, spmd, names),
        *(helper for helper in used if helper not in first),
        *divided,
        "\n".join(functions),
        mesh_and_build_text(spmd, names, step, apart, kernels="_in_kernel(" in "\n".join(body)),
        *tables,
        *load,
        main_text(spmd, names, weights is not None, rows.limited, streams),
    ]
    text = "\n\n\n".join(parts)
    return f"{_header(spmd, cost, rows, [dim for dim, _ in program.padding])}\n\n{_imports(text)}\n\n\n{text}\n"


def _doc(names: Names) -> str:
    """What is said of the step."""
    filled = [
        f"`{text}`: how many places of {dim} are filled, with this step's entries."
        for dim, text in names.contexts.items()
    ]
    return docstring(" ".join(["A step on one chip.", *filled]))


def _runtime(streams: bool) -> dict[str, str]:
    """The helper functions by name, as text; with those for `streams`."""
    return _helpers(*(path for path in RUNTIMES if streams or path != STREAMS_RUNTIME))


def _helpers(*paths: Path) -> dict[str, str]:
    """The functions and classes of files of ours by name, as text."""
    return {name: text for path in paths for name, text in _functions(path).items()}


@cache
def _functions(path: Path) -> Mapping[str, str]:
    """Those of one file."""
    text = path.read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    lines = text.splitlines()  # once for all: `ast.get_source_segment` splits the file again for each
    first = {node.name: min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in found}
    return MappingProxyType({node.name: "\n".join(lines[first[node.name] - 1 : node.end_lineno]) for node in found})


def _used(helpers: Mapping[str, str], text: str) -> list[str]:
    """The helpers that `text` calls, and those that they call."""
    found: set[str] = set()
    waiting = [_calls(text)]
    while waiting:
        fresh = (waiting.pop() & set(helpers)) - found
        found |= fresh
        waiting += [_helper_calls(helpers[name]) for name in sorted(fresh)]
    return [helper for name, helper in helpers.items() if name in found]


def _calls(text: str) -> frozenset[str]:
    """The functions that a source calls by their bare names, and those by which it has something `written`."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = [node.func for node in calls]
    named += [node.args[2] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "written"]
    return frozenset(one.id for one in named if isinstance(one, ast.Name))


_helper_calls = cache(_calls)  # helpers are few, and the same in every module


def _zeroless(spmd: SpmdProgram, padded: Sequence[str]) -> bool:
    """Whether something that is stored has padded dims and a type without a zero."""
    values = spmd.table()
    stored = [values[one.value] for one in stored_in(spmd.body)]
    return any(value.dtype is Dtype.E8M0 and not {*padded}.isdisjoint(value.dims) for value in stored)


def _imports(text: str) -> str:
    """The imports that `text` needs."""
    types = [name for name in ("Callable", "Iterator", "Mapping", "Sequence") if name in text]
    standard = [f"from collections.abc import {', '.join(types)}"] if types else []
    modules = ("itertools", "json", "math", "mmap", "os", "re", "sys")
    lines = [f"import {name}" for name in modules if re.search(rf"\b{name}\.\w", text)]
    standard += ["from concurrent.futures import ThreadPoolExecutor"] if "ThreadPoolExecutor(" in text else []
    lines += [*standard, "from dataclasses import dataclass", "from functools import partial"]
    lines += ["from importlib import import_module"] if "import_module(" in text else []
    lines += ["from pathlib import Path"] if "Path(" in text else []
    typing = [name for name in ("Any", "NamedTuple") if re.search(rf"(: |\[|\(){name}\b", text)]
    lines += [f"from typing import {', '.join(typing)}"] if typing else []
    third = ["import jax", "import jax.numpy as jnp", "import numpy as np", "from jax import lax"]
    layouts = [*(["Format"] if "Format(" in text else []), "Layout"]
    layouts += ["with_layout_constraint"] if "laid_out(" in text else []
    third += ["from jax.experimental import pallas as pl"] if "pl.BlockSpec" in text else []
    third += [f"from jax.experimental.layout import {', '.join(layouts)}"] if len(layouts) > 1 else []
    meshes = ", Mesh" if " Mesh(" in text else ""
    sharding = [
        f"from jax.sharding import AxisType{meshes}, NamedSharding",
        "from jax.sharding import PartitionSpec as P",
    ]
    perhaps = TRITON if "triton." in text else []
    return "\n".join([*lines, "", *third, *sharding, *perhaps])


def _header(spmd: SpmdProgram, cost: Estimate, rows: Packed, padded: Sequence[str]) -> str:
    totals = cost.totals()
    sentences = [
        f"A chip sends {totals.bytes_sent / 1e6:.2f} MB in {totals.collectives} collectives; the estimate for all is "
        f"{totals.total_s * 1e3:.4g} ms.",
        "Beside a step stand the layout of what it makes (after each dim the mesh axes that split it, major to minor: "
        "B_yzLE_x), the MB that a chip sends in it, and its estimated time. Dims of size 1 are dropped inside a step.",
        "Run as a program, this file compares the step with the unsharded program at small sizes, on CPU devices.",
    ]
    if padded:
        held = "as zeros, of e8m0, which has none, as ones" if _zeroless(spmd, padded) else "as zeros"
        sentences[0] += f" Padding of {', '.join(padded)} is given {held}."
    if chooses(spmd):
        sentences[1:1] = _on_choices(rows)
    if cost.loops:
        hidden = f"That hides {totals.hidden_s * 1e3:.4g} ms, which the estimate leaves out."
        what = "chips pass blocks on by ppermute, and meanwhile make einsums of those that they have"
        sentences.insert(1, f"`gathered_einsums` and `scattered_einsums` are loops: {what}. {hidden}")
    paragraphs = [textwrap.fill(s, WIDTH, break_on_hyphens=False) for s in sentences]
    says = f"Model {spmd.name}, phase {spmd.phase}, on {spmd.mesh.chips} chips: {spmd.mesh}."
    return "\n".join([TITLE, "", docstring(says), "", *paragraphs, '"""'])


def _on_choices(rows: Packed) -> list[str]:
    """What is said of values of which few entries are kept."""
    said = []
    if rows.packings:
        room = "There is room for all that could be chosen, and nothing is dropped"
        if rows.capacity is not None:
            room = (
                f"There is room for {float(rows.capacity):g} times what is expected; what is chosen beyond that is "
                "dropped, as if it had not been chosen, and counted in the last result: how many entries that were, "
                "and of how many tokens, for each chip"
            )
        said.append(
            "Of chosen values, such as those of experts, this file holds, computes and sends rows, one for each kept "
            f"entry: see `Routing`. {room}. The estimate, the MB and the times beside the steps count the rows "
            "that are expected."
        )
    if rows.reasons:
        said.append(" ".join([*rows.reasons, "The estimate, the MB and the times count what is kept of them."]))
    return said


def _notes(cost: Estimate) -> dict[str, str]:
    """What is said beside each step: MB sent and time of a collective, time of an op; once what a loop hides."""
    out = {c.result: f"{c.seconds * 1e6:.1f} us" for c in cost.ops if c.seconds * 1e6 >= LEAST_SHOWN_US}
    for move in cost.moves:
        sent = f"{move.bytes_sent / 1e6:.2f} MB  {move.seconds * 1e6:.1f} us"
        out[move.result] = sent if move.bytes_sent else "free"
    for loop in cost.loops:
        last = [move.result for move in cost.moves if move.result in loop.results][-1]
        out[last] += f"  hidden {loop.hidden_s * 1e6:.1f} us"
    return out


def _config(spmd: SpmdProgram, names: Names, small: SpmdProgram, rows: Packed, streams: Streams, apart: bool) -> str:
    counts = repeat_counts(spmd)
    fields = [f"    {names.fields[d]}: int = {n}" for d, n in spmd.sizes]
    fields += [f"    {names.fields[r]}: int = {n}  # repetitions" for r, n in counts.items()]
    fields += [f"    {field}: int = {n}  # of these from the host" for field, n in streams.layers().items()]
    fields += [
        f"    {name}: int = {n}  # places that attention takes at a time" for (_, n), name in names.blocks.items()
    ]
    keeps, few = (
        {names.keeps[op.result]: op.keep for op in ops(each) if isinstance(op, Choose)} for each in (spmd, small)
    )
    fields += [f"    {name}: int = {n}  # entries of each that are kept" for name, n in keeps.items()]
    if rows.packings and rows.capacity is not None:
        fields.append(f"    capacity: float = {float(rows.capacity)!r}  # room for rows, of those expected")
    if apart:
        fields.append("    unrolled: bool = False  # tuples in place of stacks, as GPUs want it: see `unstacked`")
    narrow = [d for d in CHOSEN if d in {v.dtype for v in spmd.values}]
    fields += [f"    {d}: type = jnp.{NUMPY[d]}" for d in narrow]
    cut = {**dict(small.sizes), **{r: min(n, 2) for r, n in counts.items()}}
    other = [f"{names.fields[name]}={n}" for name, n in cut.items() if n != {**dict(spmd.sizes), **counts}[name]]
    other += [f"{name}={n}" for name, n in few.items() if n != keeps[name]]
    other += [f"{names.blocks[each]}={n}" for each, n in small_blocks(blocks_of(spmd), small).items()]
    layers = Streams(small, names).layers()
    other += [f"{field}={layers[field]}" for field, n in streams.layers().items() if n != layers[field]]
    other += ["capacity=math.inf"] if rows.limited else []
    other += [f"{d}=jnp.float32" for d in narrow]
    lines = [
        "@dataclass(frozen=True)",
        "class Config:",
        '    """Sizes, of whole tensors, and narrow types."""',
        "",
        *fields,
    ]
    call = f"SMALL = Config({', '.join(other)})"
    return "\n".join([*lines, "\n", "FULL = Config()", textwrap.fill(call, WIDTH, subsequent_indent=" " * 15)])


def _note(leaf: Leaf) -> str:
    return f"{leaf.dtype} {format_layout(leaf.dims, leaf.layout)}"


def _specs(spmd: SpmdProgram, names: Names, rows: Packed, streams: Streams) -> str:
    """The tables of PartitionSpecs: of what is stored, of inputs, of results."""
    lines, every = [], []
    for kind, tree in TREES.items():
        if names.of(kind):
            table = names.tree_lines(kind, lambda leaf: (streams.spec(leaf), _note(leaf)), "")
            lines += [f"{tree.upper()} = {table[0]}", *table[1:]]
            every.append(tree.upper())
    every += [spec_text(leaf.layout.dims) for leaf in names.of(Kind.INPUT)] + ["P()"] * len(names.contexts)
    values = spmd.table()
    results = [spec_text(values[name].layout.dims) for name in spmd.results]
    beside = ["CACHES"] if names.of(Kind.CACHE) else []
    beside += [spec_text([spmd.mesh.names])] if rows.limited else []
    out = results[0] if len(results) == 1 else f"({', '.join(results)})"
    out = f"({', '.join([out, *beside])})" if beside else out
    stand = ", ".join(names.arguments)
    lines += [f"SPECS = ({', '.join(every)}{',' if len(every) == 1 else ''})  {comment(stand)}", f"RESULTS = {out}"]
    return "\n".join(lines)


def _tensors(program: Program, spmd: SpmdProgram, names: Names) -> str:
    """The function that makes a tensor for each leaf."""

    def made(leaf: Leaf) -> tuple[str, str]:
        sizes = [f"cfg.{names.fields[d]}" for d in (*leaf.repeats, *leaf.dims)]
        shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
        terms = " * ".join(f"cfg.{names.fields[d]}" for d in _terms(program, leaf))
        return f"make({shape}, {dtype_text(leaf.dtype)}{', ' + terms if terms else ''})", ""

    lines = [
        "def tensors(cfg: Config, make: Callable[..., jax.Array]):",
        '    """Everything that a step takes, as `make` has it of a shape, a type, and what it is summed over."""',
    ]
    every = []
    for kind, tree in TREES.items():
        if names.of(kind):
            table = names.tree_lines(kind, made, "    ")
            lines += [f"    {tree} = {table[0]}", *table[1:]]
            every.append(tree)
    for leaf in names.of(Kind.INPUT):
        lines.append(f"    {names.inputs[leaf.value]} = {made(leaf)[0]}")
        every.append(names.inputs[leaf.value])
    return "\n".join([*lines, f"    return {', '.join(every)}{',' if len(every) == 1 else ''}"])


def _terms(program: Program, leaf: Leaf) -> list[str]:
    """The dims that the first einsum which reads a parameter sums over; of ids those that they pick from."""
    for op in ops(program):
        match op:
            case Take(ids=name, over=over) if name == leaf.value:
                return list(over)
            case Einsum(_, operands, indices, output) if leaf.value in operands and leaf.kind is Kind.PARAM:
                own = indices[operands.index(leaf.value)]
                return [d for i, d in zip(own, leaf.dims, strict=True) if i not in output]
    return []


LOAD = '''def load(checkpoint: str, mesh, cfg: Config = FULL, tell: Callable[[str], None] = lambda name: None):
    """The parameters from a folder of safetensors files or a GGUF file, in the layouts of PARAMS. Of each only what
    the devices of this process hold is read, and `tell` is called with its name when it has been."""
    found = checkpoint_tensors(checkpoint)
    forms = tensors(cfg, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))[0]

    def placed(line, form, spec):
        sharding = NamedSharding(mesh, spec)
        places = sharding.addressable_devices_indices_map(form.shape)
        shards = dict.fromkeys(places)
        for some in read_together(found, line, {str(at): at for at in places.values()}.values()):
            parts = parameter_parts(found, line, form.shape, form.dtype, some)
            for device, at in places.items():
                if at in some:
                    shards[device] = jax.device_put(parts[some.index(at)], device, may_alias=True)
            jax.block_until_ready([one for one in shards.values() if one is not None])  # what was read goes before more
            del parts
        tell(line)
        return jax.make_array_from_single_device_arrays(form.shape, sharding, list(shards.values()))

    return jax.tree.map(placed, WEIGHTS, forms, PARAMS)'''


def _load(names: Names, weights: WeightMap, streams: Streams, by_rows: bool) -> list[str]:
    """What parameters are made of, and the functions that make them."""
    lines = names.tree_lines(Kind.PARAM, lambda leaf: (literal(str(weights[leaf.value])), ""), "")
    lines = [
        f"# What each parameter is made of: a tensor of a checkpoint, and steps.\nWEIGHTS = {lines[0]}",
        *lines[1:],
    ]
    load = STREAMED_LOAD if streams.tensors else LOAD
    if by_rows:
        places = "places(mesh, PARAMS)" if streams.tensors else "jax.tree.map(partial(NamedSharding, mesh), PARAMS)"
        load = load.replace("    return jax.tree.map(placed,", "    made = jax.tree.map(placed,")
        load += f"\n    return jax.device_put(made, by_rows({places}))"
    return ["\n".join(lines), *_used(_helpers(*CHECKPOINTS), load), load]
