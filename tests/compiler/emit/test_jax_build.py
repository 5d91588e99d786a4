"""Modules for GPUs: the order of their caches, and steps that take tuples of parts where they take stacks, too."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from emitted_files import run_files
from forked_jax import run_code

from escc.compiler.emit.jax_build import _mixes, unrolls
from escc.compiler.emit.jax_order import in_memory_order
from escc.compiler.emit.jax_source import emit_jax, step_names
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load, parse
from escc.compiler.plan.streamed_layers import streaming
from escc.cost.hardware import Hardware, Host
from escc.cost.platform import Platform
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, stored_in
from escc.ir.text.pins import parse_pins
from escc.ir.text.read_spmd import parse_spmd
from escc.ir.verify.verify import verify
from escc.passes.options import Options

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")

# Runs each module at its small sizes as its stacks are and as tuples, and says how far apart all results are.
DRIVER = """
import importlib.util, sys
from dataclasses import replace
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 16)


def draw(shape, dtype, terms=1):
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0, min(terms, 7) if dtype != jnp.int32 else terms, shape).astype(dtype)
    return (rng.standard_normal(shape) / terms**0.5).astype(dtype)


for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("step", path)
    module = sys.modules["step"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)
    mesh, stacks = module.make_mesh(), module.tensors(module.SMALL, draw)
    ends = [jnp.int32(module.SMALL.M)] * (len(module.SPECS) - len(stacks))
    parts = [module.unstacked(tree) if isinstance(tree, dict) else tree for tree in stacks]
    results = []
    for unrolled, given in ((False, stacks), (True, parts)):
        cfg = replace(module.SMALL, unrolled=unrolled)
        places = jax.tree.map(partial(NamedSharding, mesh), module.specs(cfg))
        results.append(module.build(mesh, cfg)(*jax.device_put((*given, *ends), places)))
    (first, stacked, *lost), (same, tuples, *as_many) = results
    assert jax.tree.structure(tuples) == jax.tree.structure(module.unstacked(stacked))
    pairs = jax.tree.leaves([[first, module.unstacked(stacked), lost], [same, tuples, as_many]])
    half = len(pairs) // 2
    far = [np.abs(np.asarray(a, float) - np.asarray(b, float)).max() for a, b in zip(pairs[:half], pairs[half:])]
    print(max(far) < 1e-5, len(jax.tree.leaves(tuples)))
"""
CASES = {
    "heads": ("llama-3-8b", "gpu=2", "decode"),
    "one sequence, its context split": ("llama-3-8b", "gpu=16", "decode", 1, 2**17),
    "a prompt": ("llama-3-8b", "gpu=2", "prefill", 4),
    "experts and windows": ("gpt-oss-120b", "node=2,gpu=4", "decode"),
    "collectives that run as one": ("palm-8b", "gpu=4", "decode", 32),
    "repeats in a repeat": ("gemma-3-27b", "gpu=2", "decode"),
}


@cache
def planned(model: str, mesh: str, phase: str, batch: int = 16, context: int = 2048) -> CompiledPhase:
    new = {"L": context} if phase == "prefill" else {}
    program = load(Path(model), {"B": batch, "M": context} | new, phase=phase)
    return compile_phase(program, phase, Mesh.parse(mesh), Options(Hardware.load("h100")))


def text_of(name: str) -> str:
    one = planned(*CASES[name])
    return emit_jax(one.program, one.spmd, one.estimate, platform=one.platform)


def test_tuples_of_parts_give_what_stacks_give(tmp_path: Path) -> None:
    paths = []
    for n, name in enumerate(CASES):
        paths.append(tmp_path / f"case{n}.py")
        paths[-1].write_text(text_of(name))
    done = run_code(DRIVER, *map(str, paths))
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["True"] * len(CASES), done.stdout + done.stderr
    alone = text_of("one sequence, its context split").partition("def decode(")[2]
    assert ", append, " in alone and "lambda a: a.squeeze(" in alone
    assert "append_wrapping(" in text_of("experts and windows") and "put(" in text_of("heads")


# Values called as helpers call theirs, in more repeats than there are letters for their numbers.
NAMED = """
dim B = 4, L, M, E = 8, Q = 16
block b0(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param W: bf16[E,Q]
  param V: bf16[Q,E]
  cache cached: bf16[B,M,E]
  u[B,L,Q] = x[B,L,E] * W[E,Q]
  %s[B,L,E] = u[B,L,Q] * V[Q,E]
  put = append(cached, %s, L into M)
  s[B,L,M] = x[B,L,E] * put[B,M,E]
  p = softmax(s, over=M, mask=causal(L, M))
  given[B,L,E] = p[B,L,M] * put[B,M,E]
  return tanh(given)
}
BLOCKSmain(x: bf16[B,L,E]) { return repeat 2 DEEPEST(x) }
phase prefill { L = 16, M = 16 }
"""
DEEPER = "block b%d(x: bf16[B,L,E]) -> bf16[B,L,E] { return repeat 2 b%d(x) }\n"


@pytest.mark.parametrize(("value", "depth"), [("a", 1), ("at", 1), ("written", 2), ("i", 6)])
def test_a_value_is_not_taken_for_another_of_its_name(value: str, depth: int, tmp_path: Path) -> None:
    blocks = "".join(DEEPER % (n, n - 1) for n in range(1, depth))
    text = (NAMED % (value, value)).replace("BLOCKS", blocks).replace("DEEPEST", f"b{depth - 1}")
    one = compile_phase(parse(text), "prefill", Mesh.parse("gpu=2"), Options(Hardware.load("h100")))
    path = tmp_path / "named.py"
    path.write_text(emit_jax(one.program, one.spmd, one.estimate, platform=one.platform))
    done = run_code(DRIVER, str(path))
    assert done.stdout == f"True {2**depth}\n", done.stdout + done.stderr


MIXED = """
dim B = 8, E = 16
main(a: f32[B,E] @ B_yE, b: f32[B,E] @ B_yE_x) {
  c @ B_yE = a * 2
  d @ B_yE_x = b * 3
  p[B,E] @ BE = c[B,E]
  q[B,E] @ BE_x = d[B,E]
  return p, q
}
phase run { }
"""


@pytest.mark.parametrize(("pins", "mixes"), [("stored p BE\nstored q BE_x", True), ("stored p BE\nstored q BE", False)])
def test_values_that_differ_over_other_axes_are_moved_as_one(pins: str, mixes: bool, tmp_path: Path) -> None:
    program = parse(MIXED if mixes else MIXED.replace("E_x", "E"))
    held = parse_pins(Source("own.pins", pins), program)
    one = compile_phase(program, "run", Mesh.parse("2x2"), Options(Hardware.load("h100"), pins=held))
    text = emit_jax(one.program, one.spmd, one.estimate, platform=one.platform)
    assert "gather_together(" in text and ("check_vma=False" in text) == mixes
    assert run_files({"mixed": text}, tmp_path) == {"mixed": "0"}


@pytest.mark.parametrize(("layout", "mixes"), [("BE_x partialsum-z", True), ("BE_x", False), ("BE_xz", True)])
def test_partial_sums_differ_as_split_values_do(layout: str, mixes: bool) -> None:
    before = layout.replace("B", "B_y")
    text = f"""sharded "joined" main on x=2 y=2 z=2
sizes B=8 E=16
input a: f32 B_yE_x
input b: f32 {before}
  a' f32 BE_x = all-gather(y) B of a
+ b' f32 {layout} = all-gather(y) B of b
return a', b'
"""
    assert _mixes(parse_spmd(Source("joined.spmd", text))) == mixes


@pytest.mark.parametrize("name", CASES)
def test_no_function_of_a_module_takes_the_name_of_another(name: str) -> None:
    made = [node.name for node in ast.parse(text_of(name)).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len(made) == len(set(made)) and {"unstacked", "specs", "repetitions", "repeated", "written"} <= set(made)


def test_the_context_of_caches_stands_next_to_their_last_dim_and_parameters_as_they_are_declared() -> None:
    one = planned(*CASES["heads"])
    before = one.spmd.table()
    whole, sharded = in_memory_order(one.program, one.spmd, Platform.GPU)
    changed = {name: value.dims for name, value in sharded.table().items() if value.dims != before[name].dims}
    assert {before[name].dims for name in changed} == {tuple("BMKQ")} and set(changed.values()) == {tuple("BKMQ")}
    assert {each.value for each in stored_in(one.spmd.body, Kind.CACHE)} <= set(changed)
    verify(sharded, whole)
    assert in_memory_order(whole, sharded, Platform.GPU) == (whole, sharded), "what stands so already stays"
    assert in_memory_order(one.program, one.spmd, Platform.ANY) == (one.program, one.spmd)


def test_only_stacks_that_lie_on_gpus_are_taken_apart() -> None:
    one = planned(*CASES["heads"])
    names = step_names(one.spmd)
    assert [platform for platform in Platform if unrolls(one.spmd, names, platform)] == [Platform.GPU]
    fetched = streaming(load(Path("llama-3-8b"), {"B": 16, "M": 2048}, phase="decode"), {Kind.PARAM}, 1, 1)
    flat = parse("dim B, E = 64\nparam W: f32[E]\nmain(x: f32[B,E]) { return x * W }\nphase run { B = 64 }")
    host = Host(dram_bytes=1e12, dram_bytes_per_s=1e11, link_bytes_per_s=1e10, host_chips=8)
    chip = replace(Hardware.load("h100"), host=host)
    for program, phase in ((fetched, "decode"), (flat, "run")):
        other = compile_phase(program, phase, Mesh.parse("1"), Options(chip))
        assert not unrolls(other.spmd, step_names(other.spmd), Platform.GPU)


def test_dims_that_are_called_as_settings_are_fields_of_their_own() -> None:
    text = "dim unrolled = 64, capacity = 32\nmain(x: f32[unrolled,capacity]) { return 2 * x }\nphase run { }"
    one = compile_phase(parse(text), "run", Mesh.parse("1"), Options(Hardware.load("h100")))
    fields = step_names(one.spmd).fields
    assert set(fields) == {"unrolled", "capacity"} and not set(fields.values()) & set(fields)
