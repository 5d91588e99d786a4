"""Answers of a model with real weights, for scripts: `escc.answers`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...cost.hardware import Hardware
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...passes.choose import Options
from ..jax.check import require_jax
from ..plan.pipeline import load
from ..text.arguments import checked
from .answer import Asked, answer, plan_for, weights_of
from .generate_jax import check_processes
from .tokens import stop_tokens, tokenizer_of


@checked
def answers(
    model: str | Path,
    checkpoint: str | Path,
    mesh: Mesh | str,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    tokens: int = 16,
    *,
    hardware: Hardware | str = "tpu-v4",
    pins: Sequence[str | Path] = (),
    context: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    processes: int = 1,
) -> list[str] | list[tuple[int, ...]]:
    """How prompts go on, by the emitted modules with the weights of a checkpoint: texts where the prompts are texts,
    token ids where they are ids.

    `model`: an imported file, with its weight map beside it; `checkpoint`: a folder of safetensors files or a GGUF
    file. Each sequence gets `tokens` at most. Both phases are planned for `mesh` and `hardware` as the prompts are, for
    `context` places if given. `temperature` 0 takes the likeliest token, another draws by `seed`. `processes` on this
    machine share the devices. Raises InputError for what is wrong, and where JAX is missing.
    """
    require_jax()
    place, on = Path(checkpoint), mesh if isinstance(mesh, Mesh) else Mesh.parse(mesh)
    check_processes(on, processes)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts and len(texts) != len(prompts):
        raise fail("Prompts are texts or token ids, not both.")
    tokenizer = tokenizer_of(place) if texts else None
    ids = [tuple(tokenizer.ids(p) if tokenizer and isinstance(p, str) else map(int, p)) for p in prompts]
    stops = tokenizer.stops if tokenizer else stop_tokens(place)
    program = load(model, pins=pins)
    asked = Asked(tuple(ids), tokens, context, stops, temperature, seed)
    chip = hardware if isinstance(hardware, Hardware) else Hardware.load(hardware)
    planned = plan_for(program, weights_of(Path(model), program, place), place, on, Options(chip), asked)
    found = answer(planned, processes, check=False, stream=False).tokens
    return list(found) if tokenizer is None else [tokenizer.text(one) for one in found]
