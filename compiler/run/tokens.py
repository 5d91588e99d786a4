"""Text as tokens and back: the tokenizer of a checkpoint, and the tokens at which its texts end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ir.diagnostics import fail
from ..hf_import.checkpoint import gguf_fields
from ..text.extras import optional

IDS = "give token ids with `--prompt-ids`"
CONTROL = 3  # the type of a token in a GGUF file that stands for no text


class Tokenizer:
    """Tokens of texts. `stops`: those at which a text ends."""

    def __init__(self, made: Any, stops: Sequence[int], first: Sequence[int] = ()):
        self._made, self.stops, self._first = made, tuple(stops), list(first)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        return [*self._first, *self._made.encode(text).ids]

    def text(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self._made.decode([int(i) for i in ids], skip_special_tokens=False))


def tokenizer_of(checkpoint: Path) -> Tokenizer:
    """The tokenizer of a folder (its `tokenizer.json`) or GGUF file. Raises InputError where there is none, or none
    that is understood."""
    library = optional("tokenizers", "Text for a model")
    if checkpoint.suffix == ".gguf":
        return _of_gguf(library, checkpoint)
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        raise fail(f"The folder `{checkpoint}` has no `tokenizer.json`.", hint=IDS)
    try:
        made = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare one
        raise fail(f"`{path}` cannot be read: {str(error)[:200].rstrip('.')}.", hint=IDS) from None
    # A file keeps what was set when it was saved, in training perhaps. Of a prompt all is taken, and nothing else.
    made.no_truncation()
    made.no_padding()
    return Tokenizer(made, stop_tokens(checkpoint))


def stop_tokens(checkpoint: Path) -> tuple[int, ...]:
    """The tokens at which texts end, as a checkpoint says."""
    if checkpoint.suffix == ".gguf":
        said = gguf_fields(checkpoint)
        found = [said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
        return tuple(sorted({one for one in found if type(one) is int}))
    for path in (checkpoint / "generation_config.json", checkpoint / "config.json"):
        if not path.is_file():  # of a pipe nothing may ever come
            continue
        try:
            told = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        some = told if isinstance(told, list) else [told]
        if some and all(type(one) is int for one in some):
            return tuple(sorted(set(some)))
    return ()


def _of_gguf(library: Any, path: Path) -> Tokenizer:
    """Pairs of bytes, as GPT-2 and what came after it have them."""
    said = gguf_fields(path)
    kind, before = said.get("tokenizer.ggml.model"), said.get("tokenizer.ggml.pre", "default")
    ahead: dict[str, list[Any]] = {
        "default": [],
        "gpt-2": [],
        "smollm": [library.pre_tokenizers.Digits(individual_digits=True)],
    }
    if kind != "gpt2" or str(before) not in ahead:
        raise fail(f"The tokenizer of `{path}` is `{kind}` with `{before}`, which is not understood.", hint=IDS)
    tokens, kinds = _listed(said, "tokens", str, path), _listed(said, "token_type", int, path)
    merges = [tuple(pair.split(" ", 1)) for pair in _listed(said, "merges", str, path)]
    if len(kinds) != len(tokens):
        raise fail(f"The tokenizer of `{path}` has {len(tokens):,} tokens, and types of {len(kinds):,}.", hint=IDS)
    try:
        made = library.Tokenizer(library.models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    except Exception as error:  # the library raises a bare one
        raise fail(f"The tokenizer of `{path}` cannot be read: {str(error)[:200]}.", hint=IDS) from None
    level = library.pre_tokenizers.ByteLevel(add_prefix_space=bool(said.get("tokenizer.ggml.add_space_prefix", False)))
    made.pre_tokenizer = library.pre_tokenizers.Sequence([*ahead[str(before)], level])
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens([t for t, k in zip(tokens, kinds, strict=True) if k == CONTROL])
    begin = said.get("tokenizer.ggml.bos_token_id") if said.get("tokenizer.ggml.add_bos_token", False) else None
    return Tokenizer(made, stop_tokens(path), [begin] if type(begin) is int else [])


def _listed(said: Mapping[str, Any], name: str, kind: type, path: Path) -> list[Any]:
    """A list in the metadata of a GGUF file. Raises InputError where it is none of such entries."""
    found = said.get(f"tokenizer.ggml.{name}")
    if not isinstance(found, list) or not all(type(one) is kind for one in found):
        raise fail(f"The tokenizer of `{path}` has no list `tokenizer.ggml.{name}` as it should be.", hint=IDS)
    return found
