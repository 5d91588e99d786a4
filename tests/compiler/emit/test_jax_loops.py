"""Loops in emitted JAX: the same results and bytes as the collectives in their place, in as few hops as can be."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from forked_jax import run_code
from jax_loop_cases import LOOPS

from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.jax.check import check_jax
from escc.compiler.jax.hlo import collectives_of
from escc.compiler.jax.planned import planned, sent_bytes
from escc.compiler.plan.compiled import CompiledPhase
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.estimate import Estimate, estimate
from escc.cost.hardware import Hardware
from escc.ir.dataflow import readers
from escc.ir.mesh import Mesh
from escc.ir.program import Program, Region, Repeat
from escc.ir.spmd import Compute, Move, SpmdProgram, Step
from escc.ir.verify.fused import objection, walk_loops
from escc.passes.options import Options

pytestmark = pytest.mark.usefixtures("forked_jax")

EXAMPLES = Path(__file__).parents[3] / "examples"
ESCC = str(Path(sysconfig.get_path("scripts")) / "escc")
HARDWARE = Hardware.of_paper("tpu-v4")


@dataclass(frozen=True)
class Emitted:
    """A program with loops, each block whole or by halves, as a file."""

    program: Program
    spmd: SpmdProgram
    halves: int

    @property
    def estimate(self) -> Estimate:
        """The costs, with blocks cut as this file has them."""
        cost = estimate(self.spmd, HARDWARE)
        return replace(cost, loops=tuple(replace(loop, halves=self.halves) for loop in cost.loops))

    @property
    def text(self) -> str:
        """The file."""
        return emit_jax(self.program, self.spmd, self.estimate)


def every() -> dict[str, Emitted]:
    """Written cases both ways and one way, others in turn."""
    found = {}
    for number, (name, make) in enumerate(LOOPS.items()):
        program, spmd = make()
        in_turn = name.startswith(("drawn", "int"))
        for halves in (1 + number % 2,) if in_turn else (1, 2):
            found[f"{name}, {halves}"] = Emitted(program, spmd, halves)
    return found


# Runs files one after the other in one process; then compiles the step of each, and keeps the module's text.
DRIVER = """
import importlib.util, pathlib, sys, tempfile
import jax
sys.modules["escc"] = None
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 24)
jax.config.update = lambda *_: None
for path in map(pathlib.Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        code, mesh = module.main(), module.make_mesh()
        if code:
            raise ValueError(code)
        shapes = module.tensors(module.FULL, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))
        ends = [jax.ShapeDtypeStruct((), jax.numpy.int32)] * (len(module.SPECS) - len(shapes))
        arguments = jax.tree.map(
            lambda leaf, spec: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
            ),
            (*shapes, *ends), module.SPECS,
        )
        with tempfile.TemporaryDirectory() as folder:
            options = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd-partitioning"}
            compiled = module.build(mesh).lower(*arguments).compile(compiler_options=options)
            [partitioned] = pathlib.Path(folder).glob("*.after_spmd-partitioning.*")
            path.with_suffix(".partitioned").write_text(partitioned.read_text())
            path.with_suffix(".final").write_text(compiled.as_text())
        print("exit", path.stem, code, flush=True)
    except Exception as error:
        print("exit", path.stem, repr(error)[:300], flush=True)
"""


def run_files(texts: dict[str, str], folder: Path) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """What each text, run as a program, exits with, and its modules: partitioned, and at last."""
    paths = {f"case{i}": name for i, name in enumerate(texts)}
    for stem, name in paths.items():
        (folder / f"{stem}.py").write_text(texts[name])
    done = run_code(DRIVER, *(str(folder / f"{stem}.py") for stem in paths), timeout=600)
    ends = re.findall(r"^exit (\S+) (.*)$", done.stdout, re.MULTILINE)
    assert len(ends) == len(texts), done.stdout + done.stderr
    modules = {}
    for stem, name in paths.items():
        kept = [folder / f"{stem}.{which}" for which in ("partitioned", "final")]
        if kept[0].exists():
            modules[name] = (kept[0].read_text(), kept[1].read_text())
    return {paths[stem]: code for stem, code in ends}, modules


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """All cases and what is broken of them, in one process: JAX takes a second to begin."""
    cases = every()
    whole = {name: one.text for name, one in cases.items()}
    return run_files(whole | broken(cases) | {HOP_TOO_MANY: hop_too_many(cases)}, tmp_path_factory.mktemp("loops"))


Ran = tuple[dict[str, str], dict[str, tuple[str, str]]]


@pytest.mark.parametrize("name", LOOPS)
def test_the_cases_are_loops(name: str) -> None:
    _, spmd = LOOPS[name]()
    loops = [loop for loop, _ in walk_loops(spmd.body)]
    assert loops
    assert [objection(loop, spmd.table(), readers(spmd)) for loop in loops] == [None] * len(loops)


def test_every_loop_gives_what_the_unsharded_program_gives(ran: Ran) -> None:
    assert {name: ran[0][name] for name in every()} == dict.fromkeys(every(), "0")


def unlooped(region: Region[Step]) -> Region[Step]:
    """The same steps one after the other."""
    items: list[Compute | Move | Repeat[Step]] = []
    for item in region.items:
        if isinstance(item, Repeat):
            items.append(replace(item, body=unlooped(item.body)))
        else:
            items.append(replace(item, looped=False))
    return replace(region, items=tuple(items))


def test_modules_pass_each_block_on_once_and_send_the_bytes_of_the_collectives(ran: Ran) -> None:
    for name, one in every().items():
        mesh = one.spmd.mesh
        partitioned, final = (collectives_of(text, mesh) for text in ran[1][name])
        assert partitioned == planned(one.spmd, one.estimate), name
        apart = replace(one.spmd, body=unlooped(one.spmd.body))
        assert sent_bytes(partitioned) == sent_bytes(planned(apart, estimate(apart, HARDWARE))), name
        hops = sum(
            times * one.halves * (math.prod(mesh.size(stage.axis) for stage in loop.stages) - 1)
            for loop, times in walk_loops(one.spmd.body)
        )
        for found in (partitioned, final):
            assert sum(times for sent, times in found.items() if sent.kind == "permute") == hops, name
            assert not {"all-gather", "reduce-scatter"} & {sent.kind for sent in found}, name


def test_halves_go_up_and_down_and_whole_blocks_one_way(ran: Ran) -> None:
    up, down = "{0,1},{1,2},{2,3},{3,4},{4,0}", "{0,4},{1,0},{2,1},{3,2},{4,3}"
    for halves, expected in ((1, {up: 4}), (2, {up: 4, down: 4})):
        text = ran[1][f"summed on an odd ring, {halves}"][0]
        assert Counter(re.findall(r"source_target_pairs=\{(\S*)\}", text)) == expected


ODD = "summed on an odd ring, 1"
BROKEN = [
    ("both dims of one value, 1", '[("x", 1), ("y", 0), ("z", 0)]', '[("x", 1), ("z", 0), ("y", 0)]'),
    ("both dims of one value, 2", "lax.dynamic_slice(total, starts, part.shape)", "0"),
    ("three gathers of one dim, 1", "whole * ways\n", "whole\n"),
    ("both dims of one value, 2", "step * n", "n"),
    ("summed on an odd ring, 2", "(-1, half, shape[first] - half)", "(-1, half, half)"),
    ("sums in a repeat, 1", "-number[0])", "number[0])"),
    ("sums in a repeat, 1", "cfg.bf16(0.5)", "cfg.bf16(1)"),
    ("terms of fewer dims, 1", '"AC,BC->AB"', '"BC,AC->AB"'),
]


HOP_TOO_MANY = "a hop too many"


def broken(cases: dict[str, Emitted]) -> dict[str, str]:
    """The files that BROKEN makes of cases."""
    texts = {}
    for name, right, wrong in BROKEN:
        before, marker, rest = cases[name].text.partition("\ndef dense(")
        assert right in before, (name, right, before)
        texts[f"{name}: {wrong}"] = before.replace(right, wrong) + marker + rest
    return texts


def hop_too_many(cases: dict[str, Emitted]) -> str:
    """A file whose loop sends a block on and back, which changes no result."""
    right = "else next(own)"
    assert right in cases[ODD].text
    return cases[ODD].text.replace(right, "else hop(hop(next(own), 'x', 1), 'x', -1)")


def test_broken_loops_exit_otherwise(ran: Ran) -> None:
    names = list(broken(every()))
    assert len(names) == len(BROKEN)
    assert [name for name in names if ran[0][name] == "0"] == []


def test_a_hop_too_many_does_not_go_unseen(ran: Ran) -> None:
    one = every()[ODD]
    assert ran[0][HOP_TOO_MANY] == "0"
    assert collectives_of(ran[1][HOP_TOO_MANY][0], one.spmd.mesh) != planned(one.spmd, one.estimate)


def test_all_files_pass_the_linter_and_fit_the_width(tmp_path: Path) -> None:
    for number, one in enumerate(every().values()):
        text = one.text
        assert all(len(line) <= 120 for line in text.splitlines())
        (tmp_path / f"case{number}.py").write_text(text)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--line-length", "120"]
    done = subprocess.run([*ruff, "--select", "E,F,I,B,UP", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def compiled(model: str, phase: str, mesh: str = "4x4x4", *pins: str) -> CompiledPhase:
    paths = [EXAMPLES / "pins" / f"{name}.pins" for name in pins]
    program = load(EXAMPLES / f"{model}.esti", None, paths)
    return compile_phase(program, phase, Mesh.parse(mesh), Options(HARDWARE, overlap=True))


def test_the_palm_block_reads_well_and_moves_the_planned_bytes() -> None:
    one = compiled("palm-540b", "decode")
    text = emit_jax(one.program, one.spmd, one.estimate)
    assert len(text.splitlines()) < 340
    plain = [" ".join(line.split()) for line in text.splitlines()]
    loop = plain[plain.index("q, k, v, u, g = gathered_einsums(") :]
    loop = loop[: loop.index(")") + 1]
    assert '("BE,EHQ->BHQ", cfg.bf16, w["Wq"]), # BH_yzQ partialsum-x 17.6 us' in loop
    assert loop[-2:] == ["both_ways=True,", ")"]
    report = check_jax(one)
    assert report.sound
    assert sent_bytes(report.module) == 118 * 21_561_792
    permutes = sum(loop.times * loop.permutes for loop in one.estimate.loops)
    assert report.final["permute"] == permutes > 0


@pytest.mark.parametrize("pins", ["ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz"])
def test_the_feed_forward_loops_under_every_layout(pins: str) -> None:
    report = check_jax(compiled("feed-forward", "main", "2x2x2", pins))
    assert report.sound
    assert report.final["permute"] > 0


def test_the_command_line_checks_loops() -> None:
    small = ["--set", "E=3840", "--set", "F=122880", "--set", "B=509"]
    command = [ESCC, "check", str(EXAMPLES / "feed-forward.esti"), "--chips", "2x3", *small, "--network", "links"]
    done = subprocess.run(
        [*command, "--backend", "jax", "--overlap"], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "permute" in done.stdout
    assert "as planned" in done.stdout
