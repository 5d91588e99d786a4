"""What is asked of a model and what it answered, as a command line has them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...ir.diagnostics import fail
from ...ir.text.read import read_source
from ..simulate.pointwise import Array
from .answer import Answered, Asked, Planned
from .tokens import stop_tokens, tokenizer_of


@dataclass(frozen=True)
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
        texts += [line for line in read_source(Path(prompts.file)).text.splitlines() if line.strip()]
    if not texts and not prompts.ids:
        raise fail("There is no prompt.", hint="give one with `--prompt TEXT` or `--prompt-ids N,N,...`")
    if texts and prompts.ids:
        raise fail("Prompts are texts or token ids, not both.")
    if prompts.ids:
        found, stops = [_ids(listed) for listed in prompts.ids], stop_tokens(checkpoint)
    else:
        tokenizer = tokenizer_of(checkpoint)
        found, stops = [tuple(tokenizer.ids(text)) for text in texts], tokenizer.stops
    return Asked(tuple(found), tokens, context, stops, temperature, seed, scores)


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
        lines.append(f"the context of {places} places is full: more are planned with `--context`")
    if done.wrong is not None:
        apart = "" if done.difference is None else f"; scores differ by at most {done.difference:.1e}"
        lines.append(f"{made - done.wrong} of {made} tokens are those of the unsharded model{apart}")
    return "\n".join(lines)


def npy(array: Array) -> bytes:
    """An array as a file of NumPy."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
