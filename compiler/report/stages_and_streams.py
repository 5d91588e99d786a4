"""A model compiled in stages, or with streams from the host, as a script or a notebook holds it."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.mesh import Mesh
from ...ir.program import Program
from ...passes.options import Options
from ..plan.offload import of_batch, on_meshes
from ..plan.pipeline import with_runs
from ..plan.staged import Staged
from ..plan.tries import most_sequences_staged, tries
from ..plan.way import Way
from .compiled_model import CompiledModel
from .compiled_pipeline import CompiledPipeline
from .offload_text import batches_text, offload_text, staged_batches_text
from .staged_text import tries_text


def staged_or_streamed(
    program: Program, meshes: Sequence[Mesh], options: Options, phases: Sequence[str], way: Way
) -> CompiledModel | CompiledPipeline:
    """The phases of a program on the best of several meshes, in stages, or with streams. Raises as `compile` does."""
    if way.stages is not None:
        return _staged(program, meshes, options, phases, way)
    return _offloaded(program, meshes, options, phases, way)


def _offloaded(
    program: Program, meshes: Sequence[Mesh], options: Options, phases: Sequence[str], way: Way
) -> CompiledModel:
    """With streams from the host."""
    batches = on_meshes(program, phases, meshes, options, way.offload, way.ahead, way.best_batch)
    found = batches[0].found
    assert found is not None, "what is tried first fits"
    texts = [batches_text(batches)] if way.best_batch else []
    compiled = with_runs(found.compiled) if way.check else found.compiled
    return CompiledModel(compiled, (), found, "\n".join([*texts, offload_text(found)]))


def _staged(
    program: Program, meshes: Sequence[Mesh], options: Options, phases: Sequence[str], way: Way
) -> CompiledModel | CompiledPipeline:
    """The quickest of the ways to have stages, or none."""
    wanted, texts, tried = way.stages or None, [], None
    if way.best_batch:
        how = options, wanted, way.micro_batches, way.offload, way.ahead
        batches = most_sequences_staged(program, phases, meshes, *how)
        texts, program = [staged_batches_text(batches)], of_batch(program, batches[0].batch)
        tried = None if way.check else batches[0].found
    if tried is None:
        tried = tries(program, phases, meshes, options, wanted, way.micro_batches, way.check, way.offload, way.ahead)
    best = tried[0].found
    assert best is not None, "what is tried first fits"
    if isinstance(best, Staged):
        return CompiledPipeline(best, tried, "\n".join(texts))
    return CompiledModel(best, tried=tried, choice="\n".join([*texts, tries_text(tried)]))
