"""`escc run`: a model generates, shrunken on virtual chips beside the dense reference, or with the weights of a
checkpoint by the emitted JAX modules."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

import typer

from ...ir.choices import with_capacity
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...passes.options import Options
from ..hf_import.weight_map import context_beside
from ..jax.check import require_jax
from ..plan.pipeline import load
from ..plan.way import Offload, ahead_of
from ..run.answer import Planned, answer, plan_for, weights_of
from ..run.answer_text import Prompts, answer_ids, answer_text, asked_of, npy
from ..run.generate import Plan, alone_on, in_stages, prepare, run_prepared, streaming_on
from ..run.generate_jax import (
    check_processes,
    disagreement,
    generate_jax,
    generation_text,
    held_exactly,
    jax_disagreement,
    jax_text,
)
from ..run.language_model import DECODE, PREFILL
from ..text.arguments import capacity_of
from ..text.files import path_of, refuse_existing, write_files
from ..text.terminal import complain, note, say
from . import options as opt


class Backend(StrEnum):
    """What a model generates with."""

    NUMPY = "numpy"
    JAX = "jax"


def run_command(
    file: opt.File,
    chips: opt.Chips,
    tokens: Annotated[int, typer.Option(metavar="N", help="How many each sequence gets, the first from prefill.")] = 16,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A folder of safetensors files or a GGUF file, whose weights then answer."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="To be continued; any number of them.")
    ] = None,
    prompt_file: Annotated[str | None, typer.Option(metavar="FILE", help="A prompt on each line.")] = None,
    prompt_ids: Annotated[
        list[str] | None, typer.Option(metavar="N,N,...", help="A prompt as token ids; any number of them.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Places that are planned; as many as are needed by default.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1e3,
            callback=opt.finite,
            help="Of the draw of tokens by `--seed`; without it, or 0, the likeliest is taken.",
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Answer with the unsharded model too, and compare.")] = False,
    logits: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the scores [step, prompt, token] of all steps (.npy).")
    ] = None,
    force: opt.Force = False,
    hardware: opt.Chip = "tpu-v4",
    datasheet: opt.Datasheet = False,
    network: opt.Net = None,
    engine: opt.EngineName = None,
    set_: opt.Sets = None,
    pin: opt.Pins = None,
    weights: opt.Weights = None,
    caches: opt.Caches = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep plans to the memory of a chip, as streams do, though what runs is small."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights and prompts.")] = 0,
    capacity: opt.Capacity = None,
    offload: opt.Offloading = Offload.NONE,
    ahead: opt.Ahead = None,
    stages: opt.Stages = None,
    micro_batches: opt.MicroBatches = None,
    backend: Annotated[
        Backend, typer.Option(help="Virtual chips; or also JAX, which runs the emitted modules on CPU devices.")
    ] = Backend.NUMPY,
    processes: Annotated[
        int, typer.Option(metavar="N", help="Of JAX, on this machine, which share the chips equally.")
    ] = 1,
) -> None:
    """Generate with shrunken dims and random weights on virtual chips, and in JAX, and compare with the reference;
    or with `--checkpoint` answer prompts, planned as they are, by the emitted modules on JAX devices."""
    mesh, room = Mesh.parse(chips), capacity_of(capacity)
    chip = opt.chip_of(hardware, datasheet, network, engine)
    sizes, pins = opt.bindings(set_ or [], "--set"), [path_of(path) for path in pin or []]
    program = with_capacity(load(file, sizes, pins, weights=weights, caches=caches), room)
    prompts = Prompts(tuple(prompt or ()), prompt_file, tuple(prompt_ids or ()))
    wanted = opt.stages_of(stages, micro_batches)
    opt.refuse_idle_force(force, logits is not None, "name one by `--logits FILE`")
    streams = offload is not Offload.NONE or bool(program.on_host)
    layers_ahead = ahead_of(ahead, streams, "--")
    options = Options(chip, capacity_bytes=chip.room_bytes if memory or streams else math.inf)
    if checkpoint is not None:
        if streams:
            raise fail("Weights of a checkpoint go to plans without streams.", hint="leave `--offload` out")
        if stages is not None:
            raise fail("Weights of a checkpoint go to plans without stages.", hint="leave `--stages` out")
        require_jax()
        check_processes(mesh, processes)
        asked = asked_of(prompts, path_of(checkpoint), tokens, context, temperature or 0.0, seed, logits is not None)
        made = weights_of(path_of(file), program, path_of(checkpoint))
        if check and processes > 1:
            raise fail("The unsharded model runs in one process.", hint="leave `--processes` out")
        if logits is not None:
            refuse_existing(path_of(logits).parent, [path_of(logits).name], force)
        limit = context_beside(path_of(file))
        planned = plan_for(program, made, path_of(checkpoint), mesh, options, asked, limit)
        _answer(planned, processes, check, logits, force, texts=not prompts.ids)
        return
    if room is not None:
        raise fail(
            "With random weights all chosen entries have room, so that tokens can be compared.",
            hint="leave `--capacity` out, or name weights with `--checkpoint`",
        )
    if prompts.some or check or logits is not None:
        raise fail("Prompts are answered with real weights.", hint="name them with `--checkpoint`")
    for option, given in {"--context": context, "--temperature": temperature}.items():
        if given is not None:
            raise fail(f"`{option}` is of answers with real weights.", hint="name them with `--checkpoint`")
    if backend is Backend.JAX:
        require_jax()
        check_processes(mesh, processes)
        if stages is not None and processes != 1:
            raise fail("Stages run in one process.", hint="leave `--processes` out")
    elif processes != 1:
        raise fail("Virtual chips run in one process.", hint="several are started with `--backend jax`")
    plan: Plan = streaming_on(mesh, options, offload, layers_ahead) if streams else alone_on(mesh, options)
    if stages is not None:
        counts = opt.counts_by_phase(micro_batches, (PREFILL, DECODE))
        plan = in_stages(mesh, options, wanted or None, counts, offload, layers_ahead)
    prepared = prepare(program, plan, tokens, seed)
    if backend is Backend.JAX:
        prepared = held_exactly(prepared)
    done = run_prepared(prepared)
    for stage in prepared.compiled.stages:
        for one in stage:
            complain(one.warnings)
    say(generation_text(done))
    wrong = disagreement(done)
    if backend is Backend.JAX and wrong is None:
        found = generate_jax(prepared, processes)
        say(jax_text(done, found, processes))
        wrong = jax_disagreement(done, found)
    if wrong is not None:
        raise fail(wrong)


def _answer(planned: Planned, processes: int, check: bool, logits: str | None, force: bool, texts: bool) -> None:
    """Run what is planned with real weights, and say what came of it."""
    complain(planned.warnings)
    done = answer(planned, processes, check, stream=texts)
    if done.scores is not None and logits is not None:
        write_files(path_of(logits).parent, {path_of(logits).name: npy(done.scores)}, force)
    if not texts:
        say(answer_ids(planned.asked, done))
    note(answer_text(planned, done))
    if done.wrong:
        raise fail(f"{done.wrong} tokens are not those of the unsharded model.")
