"""Sets of tensors that are streamed, all at once: beside the same programs one by one."""

from dataclasses import replace

import numpy as np
import pytest
from programs import TINY_DECODER

from escc.compiler.plan.pipeline import parse
from escc.compiler.plan.streamed_layers import streamed_names, streaming
from escc.cost.hardware import Hardware, Host
from escc.cost.streamed_sets import StreamedSets, stored_by_count
from escc.cost.streams import least_copies, least_fetched_s, least_stored_bytes
from escc.ir.mesh import Mesh
from escc.ir.program import Kind
from escc.passes.stages.divide import turns

HOST = Host(2e5, 1e9, 1e7, host_chips=2, nvme_bytes=1e9, nvme_bytes_per_s=1e6)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("parts", [1, 2])
def test_sets_take_what_programs_that_stream_them_take(phase: str, parts: int):
    program, mesh = turns(parse(TINY_DECODER), "B", {phase: (parts, 1)}), Mesh.parse("2x3")
    both = {Kind.PARAM, Kind.CACHE}
    names = list(streamed_names(program, both))
    programs = [streaming(program, both, count, 1) for count in range(6)]
    members = np.random.default_rng(0).random((8, len(names))) < 0.5
    sets = StreamedSets.of(names, stored_by_count(programs), least_copies(program, phase, mesh), parts)
    for host in (HOST, replace(HOST, nvme_bytes=0.0)):  # which then has no room for some
        chip = replace(Hardware.load("h100"), host=host)
        stored, fetched_s = sets.stored_bytes(members), sets.fetched_s(members, mesh, chip)
        for row, count in np.ndindex(stored.shape):
            of = {name for name, member in zip(names, members[row], strict=True) if member}
            streamed = streaming(program, of, count, 1)
            assert stored[row, count] == pytest.approx(least_stored_bytes(streamed, phase, mesh))
            assert fetched_s[row, count] == pytest.approx(least_fetched_s(streamed, mesh, chip, phase))
