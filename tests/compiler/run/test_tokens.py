"""Tokenizers of checkpoints: texts go there and back, and what is no tokenizer ends in a sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import gguf
import pytest
import tokenizers

from escc.compiler.run.tokens import stop_tokens, tokenizer_of
from escc.ir.diagnostics import InputError

LETTERS = ["a", "b", "c", "ab", "<end>"]
SAID: dict[str, object] = {
    "model": "gpt2",
    "pre": "gpt-2",
    "tokens": LETTERS,
    "token_type": [1, 1, 1, 1, 3],
    "merges": ["a b"],
    "eos_token_id": 4,
    "bos_token_id": 4,
    "add_bos_token": True,
}


def written(path: Path, said: Mapping[str, object]) -> Path:
    """A GGUF file with a tokenizer and nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in said.items():
        add = {str: writer.add_string, list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32}
        add[type(value)](f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_text_goes_there_and_back(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(written(tmp_path / "model.gguf", SAID))
    assert tokenizer.ids("abc<end>") == [4, 3, 2, 4] and tokenizer.text([3, 2]) == "abc"
    assert tokenizer.stops == (4,)
    tokenizer = tokenizer_of(written(tmp_path / "model.gguf", SAID | {"add_bos_token": False}))
    assert tokenizer.ids("cab") == [2, 3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "llama"}, "is `llama` with `gpt-2`, which is not understood"),
        ({"pre": [1, 2]}, "which is not understood"),
        ({"tokens": 3}, "has no list `tokenizer.ggml.tokens`"),
        ({"tokens": [1, 2, 3, 4, 5]}, "has no list `tokenizer.ggml.tokens`"),
        ({"token_type": [1, 1]}, "has 5 tokens, and types of 2"),
        ({"merges": ["a d"]}, "cannot be read"),
        ({"merges": ["ab"]}, "cannot be read"),
    ],
)
def test_what_is_no_tokenizer_is_refused(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        tokenizer_of(written(tmp_path / "model.gguf", SAID | changed))
    assert message in caught.value.diagnostics[0].message


def test_what_a_tokenizer_was_saved_with_neither_cuts_a_text_nor_fills_it_up(tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.enable_truncation(max_length=3)
    made.enable_padding(length=6)
    made.save(str(tmp_path / "tokenizer.json"))
    os.mkfifo(tmp_path / "generation_config.json")  # of which nothing comes
    (tmp_path / "config.json").write_text('{"eos_token_id": 1}')
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.ids("b a a b") == [1, 0, 0, 1] and tokenizer.ids("b") == [1] and tokenizer.stops == (1,)


def test_a_place_of_the_end_that_is_no_number_is_none(tmp_path: Path) -> None:
    assert stop_tokens(written(tmp_path / "model.gguf", SAID | {"eos_token_id": "4"})) == ()


def test_only_what_the_library_raises_is_said_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        tokenizer_of(tmp_path)
    monkeypatch.setattr("tokenizers.Tokenizer.from_file", Mock())
    monkeypatch.setattr("escc.compiler.run.tokens.stop_tokens", Mock(side_effect=KeyError("of ours")))
    with pytest.raises(KeyError, match="of ours"):
        tokenizer_of(tmp_path)
