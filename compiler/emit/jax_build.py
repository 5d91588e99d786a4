"""The part of an emitted JAX module that makes its mesh and its jitted step, and hands over stacks as GPUs want them.

Parameters and caches of repetitions are stacks, over which a step scans. The compiler of GPUs copies a part of a stack
before a product reads it, in a loop as out of one, and reads an array of its own where it lies. Modules for GPUs take
either: stacks; or, where their `Config` says `unrolled`, tuples of parts, and then their repetitions come one after
another, alike, so that each kernel is tuned once. A step of LLaMA-3-8B on an H200 with JAX 0.11.2, everything in bf16,
in ms:

    sequences, of 2,048 tokens             16    64
    predicted, `--hardware h200`         6.03  10.1
    stacks, caches as they are declared  20.1  45.5
    stacks, caches in the other order    16.1
    tuples                               6.18  10.4

Out of a loop only some products read parts of stacks where they lie, and each kernel is tuned for each layer: 8.16 ms,
and 52 s of compiling for 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from ...cost.platform import Platform
from ...ir.dataflow import regions
from ...ir.inert import docstring, literal
from ...ir.mesh import Mesh
from ...ir.spmd import Move, SpmdProgram
from ...ir.streams import host_tensors
from ...ir.verify.fused import together
from .jax_text import NARROW
from .jax_tree import TREES, Names

OLDEST = (0, 10)  # the first JAX whose gathers can say that their result is the same everywhere
APART = '''def repetitions(stack, depth):
    """The parts of a stack of repetitions, of which there are stacks where repeats are `depth` deep."""
    return tuple(repetitions(part, depth - 1) for part in stack) if depth else stack


def unstacked(tree, parts=repetitions, depth=0):
    """Parameters or caches as an unrolled step takes them: of each stack of repetitions a tuple of its parts."""
    return {
        name: unstacked(some, parts, depth + (name in REPEATS)) if isinstance(some, dict) else parts(some, depth)
        for name, some in tree.items()
    }


def specs(cfg: Config = FULL):
    """SPECS, or what takes their place where a step is unrolled."""
    if not cfg.unrolled:
        return SPECS
    one = partial(unstacked, parts=lambda spec, depth: P(*spec[depth:]))
'''


def unrolls(spmd: SpmdProgram, names: Names, platform: Platform) -> bool:
    """Whether a module takes tuples of parts in place of stacks: one for GPUs that has stacks, of which nothing comes
    from a host."""
    return platform is Platform.GPU and any(leaf.repeats for leaf in names.leaves) and not host_tensors(spmd)


def mesh_and_build_text(spmd: SpmdProgram, names: Names, step: str, parts: bool, kernels: bool) -> str:
    """The text of `make_mesh` and `build`, of a step of that name. `parts`: it takes tuples of these, too; `kernels`:
    it runs kernels, of whose results JAX does not know where they differ between chips."""
    axes = ", ".join(map(literal, spmd.mesh.names)) + ("," if len(spmd.mesh.names) == 1 else "")
    oldest = ".".join(map(str, OLDEST))
    making = f'''def make_mesh():
    """The mesh, of the first {spmd.mesh.chips} devices. Its axes are Auto, as code the compiler partitions wants."""
    if jax.__version_info__ < {OLDEST}:
        raise RuntimeError(f"This program takes JAX {oldest} or newer, and this is {{jax.__version__}}.")
    if len(jax.devices()) < {spmd.mesh.chips}:
        raise RuntimeError(f"This program takes {spmd.mesh.chips} devices, and JAX has {{len(jax.devices())}}.")
    types = (AxisType.Auto,) * {len(spmd.mesh.names)}
{_made(spmd.mesh, axes)}'''
    return "\n\n\n".join(
        [making, *([_apart(names)] if parts else []), _build(names, step, parts, kernels or _mixes(spmd))]
    )


def _mixes(spmd: SpmdProgram) -> bool:
    """Whether values that differ between chips of other axes are moved as one. JAX takes each of what comes of it to
    differ between chips of all of these axes, so that it must not check where values do."""
    values = spmd.table()
    for region, _ in regions(spmd.body):
        for run in together(region.items):
            layouts = [values[item.result].layout for item in run if isinstance(item, Move)]
            if len({frozenset((*one.split_axes, *one.partial)) for one in layouts}) > 1:
                return True
    return False


def _apart(names: Names) -> str:
    """What takes stacks apart, and says where the parts lie."""
    repeats = dict.fromkeys(names.keys[repeat] for leaf in names.leaves for repeat in leaf.repeats)
    trees = [tree.upper() for kind, tree in TREES.items() if names.of(kind)]
    taken = ", ".join([*(f"one({tree})" for tree in trees), f"*SPECS[{len(trees)}:]"])
    return f"REPEATS = {tuple(map(str, repeats))}\n\n\n{APART}    return ({taken})"


def _build(names: Names, step: str, parts: bool, mixes: bool) -> str:
    """The text of `build`; `mixes`: JAX is not asked whether results differ between chips."""
    says, donated = f"The jitted step of ({', '.join(names.arguments)})", ""
    cached = "caches" in names.arguments
    if cached:
        says += ". The caches are donated, and written in place"
        donated = f", donate_argnums={names.arguments.index('caches')}"
    lines = ["def build(mesh, cfg: Config = FULL):", f'    """{docstring(says + ".")}"""']
    given, made = "SPECS", "RESULTS"
    if parts:
        lines.append("    taken, made = specs(cfg), RESULTS")
        given, made = "taken", "made"
    if parts and cached:
        lines[-1] = "    taken = specs(cfg)"
        lines.append(f"    made = (RESULTS[0], taken[{names.arguments.index('caches')}], *RESULTS[2:])")
    unchecked = ", check_vma=False" if mixes else ""
    call = f"jax.shard_map(partial({step}, cfg), mesh=mesh, in_specs={given}, out_specs={made}{unchecked})"
    return "\n".join(
        [*lines, f"    sharded = {call}", f"    return jax.jit({NARROW}(sharded){donated})  # places are of 32 bits"]
    )


def _made(mesh: Mesh, axes: str) -> str:
    """The end of `make_mesh`. For an axis of 4 JAX takes two sides of 2 of a slice, if there are two, and does not find
    the others then: of 2x2x4 chips stand where their coordinates say."""
    made = f"return jax.make_mesh({mesh.sizes}, ({axes}), axis_types=types, devices=jax.devices()[:{mesh.chips}])"
    sides = [size for size in mesh.sizes if size > 1]
    others = (sides[:n] + sides[n + 1 :] for n in range(len(sides)))
    if not any(math.prod(pair) == size for size, rest in zip(sides, others, strict=True) for pair in _several(rest)):
        return f"    {made}"
    return f"""    try:
        {made}
    except NotImplementedError:
        chips = sorted(jax.devices()[:{mesh.chips}], key=lambda chip: tuple(chip.coords))
        return Mesh(np.reshape(np.array(chips), {mesh.sizes}), ({axes}), axis_types=types)"""


def _several(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every two and more of some sizes."""
    return (found for n in range(2, len(sizes) + 1) for found in combinations(sizes, n))
