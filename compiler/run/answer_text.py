"""What is asked of a model and what it answered, as a command line and a script, `escc.answers`, have them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...cost.hardware import Hardware
from ...ir.diagnostics import fail
from ...ir.mesh import Mesh
from ...ir.record import record
from ...ir.text.read import read_source
from ...passes.options import Options
from ..hf_import.weight_map import context_beside
from ..jax.check import require_jax
from ..plan.pipeline import load
from ..simulate.pointwise import Array
from ..text.arguments import checked
from ..text.files import path_of
from .answer import Answered, Asked, Planned, answer, plan_for, weights_of
from .generate_jax import check_processes
from .tokens import Tokenizer, stop_tokens, tokenizer_of


@record
class Prompts:
    """Prompts as they are given: texts, a file with one on each line, lists of token ids."""

    texts: tuple[str, ...]
    file: str | None
    ids: tuple[str, ...]

    @property
    def some(self) -> bool:
        """Whether there are any."""
        return bool(self.texts or self.ids or self.file is not None)


def asked_of(
    prompts: Prompts, checkpoint: Path, tokens: int, context: int | None, temperature: float, seed: int, scores: bool
) -> Asked:
    """What is asked, with texts as tokens. Raises InputError where there is no prompt, or one cannot be read."""
    texts = list(prompts.texts)
    if prompts.file is not None:
        texts += [line for line in read_source(path_of(prompts.file)).text.splitlines() if line.strip()]
    if not texts and not prompts.ids:
        raise fail("There is no prompt.", hint="give one with `--prompt TEXT` or `--prompt-ids N,N,...`")
    found, stops, _ = _tokens(checkpoint, [*texts, *map(_ids, prompts.ids)])
    return Asked(tuple(found), tokens, context, stops, temperature, seed, scores)


def _tokens(
    checkpoint: Path, prompts: Sequence[str | Sequence[int]]
) -> tuple[list[tuple[int, ...]], tuple[int, ...], Tokenizer | None]:
    """Prompts as tokens, the tokens that end a text, and what makes texts of tokens, None where prompts are ids."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts and len(texts) != len(prompts):
        raise fail("Prompts are texts or token ids, not both.")
    if not texts:
        return [tuple(map(int, prompt)) for prompt in prompts], stop_tokens(checkpoint), None
    tokenizer = tokenizer_of(checkpoint)
    return [tuple(tokenizer.ids(text)) for text in texts], tokenizer.stops, tokenizer


def _ids(listed: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in listed.split(","))
    except ValueError:
        raise fail(f"`{listed[:60]}` is no list of token ids.", hint="write `504,3575,282`") from None


def answer_ids(asked: Asked, done: Answered) -> str:
    """A line for each prompt, of ids."""
    pairs = zip(asked.prompts, done.tokens, strict=True)
    return "".join(f"{_listed(prompt)} -> {_listed(tokens)}\n" for prompt, tokens in pairs)


def _listed(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids))


def answer_text(planned: Planned, done: Answered) -> str:
    """How it went, in a few lines."""
    mesh, batch = planned.compiled[0].spmd.mesh, len(planned.asked.prompts)
    made = sum(map(len, done.tokens))
    lines = [
        f"{made} tokens for {batch} prompt{'s' if batch > 1 else ''} on {mesh.chips} devices, {mesh}",
        f"loading took {done.load_s:.1f} s, prefill {done.prefill_s:.2f} s with compiling it",
    ]
    if done.timed and done.decode_s:
        each = done.decode_s / done.timed
        lines.append(f"a step of decode takes {each * 1e3:.1f} ms, {batch / each:.1f} tokens a second")
    sent = planned.sent_bytes(done.steps)
    lines.append(f"by the plan a chip sent {sent / 1e6:.2f} MB in a prefill and {done.steps} steps of decode")
    entries, times = done.lost
    if entries:
        what = f"{times} times a token lost experts in a layer, {entries} in all, which had no room"
        lines.append(f"{what}: `--capacity full` has room for all")
    if done.full:
        places = dict(planned.compiled[1].spmd.sizes)[planned.model.counted[0]]
        more = "the model has no more" if places == planned.most else "more are planned with `--context`"
        lines.append(f"the context of {places} places is full: {more}")
    if done.wrong is not None:
        apart = "" if done.difference is None else f"; scores differ by at most {done.difference:.1e}"
        lines.append(f"{made - done.wrong} of {made} tokens are those of the unsharded model{apart}")
    return "\n".join(lines)


def npy(array: Array) -> bytes:
    """An array as a file of NumPy."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


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
    place, on = path_of(checkpoint), mesh if isinstance(mesh, Mesh) else Mesh.parse(mesh)
    check_processes(on, processes)
    ids, stops, tokenizer = _tokens(place, prompts)
    program = load(model, pins=pins)
    asked = Asked(tuple(ids), tokens, context, stops, temperature, seed)
    chip = hardware if isinstance(hardware, Hardware) else Hardware.load(hardware)
    made, limit = weights_of(path_of(model), program, place), context_beside(path_of(model))
    planned = plan_for(program, made, place, on, Options(chip), asked, limit)
    found = answer(planned, processes, check=False, stream=False).tokens
    return list(found) if tokenizer is None else [tokenizer.text(one) for one in found]
