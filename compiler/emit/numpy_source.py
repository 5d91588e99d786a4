"""A sharded program as one NumPy file that a person can read, and run without this package.

The file holds the sharded program line by line, the dense one beside it, and compares both on
shrunken dims when it is run.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence

from ...ir.collective import describe
from ...ir.dataflow import moves, ops, repeat_counts
from ...ir.dtype import Dtype
from ...ir.inert import comment, literal, visible
from ...ir.program import Append, Choose, Program, Repeat, Stored, Value, stored_in, walk
from ...ir.spmd import SpmdProgram
from ...ir.streams import host_tensors
from ..simulate import numpy_runtime
from ..simulate.reference import fan_in, rows
from ..simulate.shrink import shrink
from .function_text import WIDTH, loop_key, streams_key, versions_key
from .program_text import Dense, Sharded
from .python_text import identifiers

# The first two lines hold nothing of a model: there Python reads an encoding out of a comment (PEP 263).
TITLE = "# A sharded program in plain NumPy, with the chips as leading axes of arrays, and the dense one beside it.\n#"
RUNTIME: tuple[Callable[..., object], ...] = (
    numpy_runtime.Mesh,
    numpy_runtime.Streamed,
    numpy_runtime.append_wrapping,
    numpy_runtime.project,
    numpy_runtime._ordered,
    numpy_runtime.rotate,
    numpy_runtime.top_k,
    numpy_runtime.choose,
    numpy_runtime.erf,
    numpy_runtime.sigmoid,
    numpy_runtime.silu,
    numpy_runtime.gelu,
    numpy_runtime.gelu_exact,
    numpy_runtime.difference,
)


def emit_numpy(program: Program, spmd: SpmdProgram) -> str:
    """The text of a Python file for one sharded phase of `program`, run at shrunken dims.

    Run as a program it prints the largest relative difference between the sharded and the dense
    results, and exits with 1 when that is above 1e-9.
    """
    shrunken = shrink(program, [spmd])
    small, [local] = shrunken.program, shrunken.spmds
    sizes = dict(local.sizes)
    names = _names(program, spmd)
    sharded = Sharded(local, names, dict(zip(spmd.results, program.results, strict=True)))
    dense = Dense(small, sizes, names)
    parts = [
        _header(spmd, local),
        "import math\nfrom collections.abc import Mapping, Sequence\nfrom typing import Any\n\nimport numpy as np",
        'Axes = Sequence[str]  # mesh axes, major to minor: "yz", or ("node", "gpu")',
        *("\n" + inspect.getsource(part).rstrip() for part in _runtime(local)),
        "\n" + _constants(local),
        "\n" + _random_stored(small, small.true_sizes(sizes)),
        *(["\n" + _zero_padded(small, sizes)] if small.padding else []),
        "\n" + "\n".join(sharded.function()),
        "\n" + "\n".join(dense.function()),
        "\n"
        + _MAIN.strip().replace(
            "sharded(stored)", "sharded(zero_padded(stored))" if small.padding else "sharded(stored)"
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _runtime(local: SpmdProgram) -> Sequence[Callable[..., object]]:
    """What a file carries: what comes from the host where something does."""
    return RUNTIME if host_tensors(local) else [part for part in RUNTIME if part is not numpy_runtime.Streamed]


def _names(program: Program, spmd: SpmdProgram) -> dict[str, str]:
    """An identifier for every value, loop variable and list of cache versions, by name or key."""
    named = [*(v.name for v in program.values), *(v.name for v in spmd.values)]
    for placed in walk(program.body):
        match placed.item:
            case Repeat(name=name):
                named.append(loop_key(name))
            case Append(result=name):
                named.append(versions_key(name))
    named += map(streams_key, host_tensors(spmd))
    return identifiers(dict.fromkeys(named))


def _header(full: SpmdProgram, local: SpmdProgram) -> str:
    def listed(spmd: SpmdProgram) -> str:
        counts = [f"{d} = {n}" for d, n in spmd.sizes]
        counts += [f"repetitions of {name} = {n}" for name, n in repeat_counts(spmd).items()]
        counts += [f"entries kept in {visible(op.result)} = {op.keep}" for op in ops(spmd) if isinstance(op, Choose)]
        return ", ".join(counts)

    sent = moves(full)
    values = full.table()
    lines = [
        f"Model {visible(full.name)}, phase {full.phase}, on {full.mesh.chips} chips: {full.mesh}.",
        f"Full sizes: {listed(full)}.",
        f"Sizes here: {listed(local)}.",
        "A layout names after each dim the mesh axes that split it, major to minor: B_yzLE_x.",
        "Collectives:",
    ]
    wrapped = [piece for line in lines for piece in textwrap.wrap(line, WIDTH - 2)]
    for move in sent:
        value = values[move.result]
        wrapped.append(f"  {move.result}: {describe(move.collective, value.dims)}")
    return "\n".join([TITLE, *map(comment, wrapped)])


def _constants(local: SpmdProgram) -> str:
    mesh = ", ".join(f"{literal(name)}: {n}" for name, n in local.mesh.axes)
    sizes = textwrap.wrap(", ".join(f"{literal(d)}: {n}" for d, n in local.sizes), WIDTH - 8)
    text = f"{{{sizes[0]}}}" if len(sizes) == 1 else "{\n" + "\n".join("    " + line for line in sizes) + "\n}"
    return f"mesh = Mesh({{{mesh}}})\nsize = {text}"


def _random_stored(program: Program, sizes: Mapping[str, int]) -> str:
    lines = [
        "def random_stored(seed: int) -> dict[str, np.ndarray]:",
        '    """Every stored tensor, whole; in a repeat one for each repetition, stacked."""',
        "    rng = np.random.default_rng(seed)",
        "    return {",
    ]
    values = program.table()
    for stored, placed in stored_in(program.body).items():
        value = values[stored.value]
        shape = [*(repeat.count for repeat in placed.repeats), *(sizes[d] for d in value.dims)]
        note = comment(f"{stored.kind} {value.dtype} [{', '.join(value.dims)}]")
        lines.append(f"        {literal(value.name)}: {_draw(program, stored, value, sizes, shape)},  {note}")
    return "\n".join([*lines, "    }"])


def _zero_padded(program: Program, sizes: Mapping[str, int]) -> str:
    lines = [
        "def zero_padded(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:",
        '    """What is stored, with zeros beyond the true sizes of padded dims."""',
        "    beyond = {",
    ]
    values, true = program.table(), program.true_sizes(sizes)
    for stored, placed in stored_in(program.body).items():
        grown = [(0, 0)] * len(placed.repeats) + [(0, sizes[d] - true[d]) for d in values[stored.value].dims]
        if any(more for _, more in grown):
            lines.append(f"        {literal(stored.value)}: {grown},")
    padded = "np.pad(whole, beyond[name]) if name in beyond else whole"
    return "\n".join([*lines, "    }", f"    return {{name: {padded} for name, whole in stored.items()}}"])


def _draw(program: Program, stored: Stored, value: Value, sizes: Mapping[str, int], shape: Sequence[int]) -> str:
    if value.dtype is Dtype.I32:
        return f"rng.integers(0, {rows(program, value, sizes)}, {tuple(shape)}).astype(float)"
    fan = fan_in(program, value, sizes) if stored.kind == "param" else 1
    return f"rng.standard_normal({tuple(shape)})" + (f" / {fan}**0.5" if fan > 1 else "")


_MAIN = """
if __name__ == "__main__":
    np.seterr(divide="ignore", invalid="ignore", over="ignore", under="ignore")
    stored = random_stored(seed=0)
    expected, actual = dense(stored), sharded(stored)
    true = {name: actual[name][tuple(map(slice, whole.shape))] for name, whole in expected.items()}
    worst = max(difference(true[name], whole) for name, whole in expected.items())
    print(f"largest relative difference on {math.prod(mesh.shape)} virtual chips: {worst:.2e}")
    raise SystemExit(0 if worst <= 1e-9 else 1)
"""
