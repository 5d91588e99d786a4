"""Tensor splits and stages of Megatron-530B on A100-80: predicted times beside the published ones."""

from dataclasses import replace

import pytest

from escc.compiler.calibrate.named_layouts import AttentionLayout, FeedForwardLayout, named_pins
from escc.compiler.plan.pipeline import load
from escc.cost.hardware import Hardware, load_engine
from escc.ir.mesh import Mesh
from escc.ir.program import Program
from escc.passes.choose import Options, choose
from escc.passes.stages.choose_stages import choose_stages

PUBLISHED_S = {  # Pope et al. 2022, table D.2: FasterTransformer, 20 tokens in and 8 out, by batch and splits
    256: {"tp16": 3.341, "tp32": 2.483, "pp3-tp8": 3.140},
}


@pytest.fixture(scope="module")
def chip() -> Hardware:
    return Hardware.load("a100-80").with_engine(load_engine("fastertransformer"))


def megatron(batch: int) -> Program:
    program = load("megatron-530b")
    sized = [{"B": batch, "L": 20, "M": 20}, {"B": batch, "L": 1, "M": 28}]
    phases = (
        replace(phase, sizes=tuple((d, sizes.get(d, n)) for d, n in phase.sizes), calls=calls)
        for phase, sizes, calls in zip(program.phases, sized, (1, 7), strict=True)
    )
    return replace(program, phases=tuple(phases))


def pins(program: Program, phase: str, mesh: Mesh):
    sizes = dict(program.phase(phase).sizes)
    return named_pins(program, sizes, mesh, FeedForwardLayout.WS1D, AttentionLayout.HEADS)


def tensor_s(batch: int, nodes: int, chip: Hardware) -> float:
    program, mesh = megatron(batch), Mesh.parse(f"node={nodes},gpu=8")
    return sum(
        phase.calls * choose(program, phase.name, mesh, Options(chip, pins=pins(program, phase.name, mesh))).price
        for phase in program.phases
    )


def stages_s(batch: int, chip: Hardware) -> float:
    """Three stages, each node one; as many micro-batches, as even as whole sequences allow."""
    program, mesh = megatron(3 * -(-batch // 3)), Mesh.parse("node=3,gpu=8")
    total = 0.0
    for phase in program.phases:
        options = Options(chip, pins=pins(program, phase.name, mesh.without("node")))
        total += choose_stages(program, [phase.name], mesh, "node", "B", options, {phase.name: 3}).price
    return total


@pytest.mark.parametrize("batch", PUBLISHED_S)
def test_splits_and_stages_of_fastertransformer(batch, chip):
    published = PUBLISHED_S[batch]
    found = {"tp16": tensor_s(batch, 2, chip), "tp32": tensor_s(batch, 4, chip), "pp3-tp8": stages_s(batch, chip)}
    errors = [abs(found[name] / seconds - 1) for name, seconds in published.items()]
    assert sum(errors) / len(errors) < 0.12
    assert sorted(found, key=found.__getitem__) == sorted(published, key=published.__getitem__)
