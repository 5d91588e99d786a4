"""No input of under 100 kB takes more than 10 s of CPU to be refused, or to be found right, whatever it is full of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from fuzz.filled import CLOSE, CONFIGS, HARDWARE, LONG, MEASUREMENTS, MODELS, OPEN, OPTIONS, PINS, filled, shuffled
from fuzz.harness import run

TEXTS: Mapping[str, tuple[Mapping[str, Callable[[], str]], str, tuple[str, ...]]] = {
    "model": (MODELS, "m.esti", ("check",)),
    "hardware": (HARDWARE, "m.toml", ("hardware",)),
    "measurements": (MEASUREMENTS, "m.csv", ("calibrate", "--hardware", "h100")),
    "config": (CONFIGS, "config.json", ("import",)),
}
MANY = tuple(f"a{k}" for k in range(30))
CASES = [(kind, name) for kind, (texts, _, _) in TEXTS.items() for name in texts]


def accepted(*arguments: str) -> str:
    """What is said to a command that is answered in time."""
    outcome = run(arguments)
    assert outcome.wrong is None, outcome.wrong
    return outcome.said


@cache
def written(folder: Path, name: str, text: str) -> str:
    assert len(text.encode()) < 100_000
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_file_full_of_one_construct(kind: str, name: str, tmp_path: Path) -> None:
    texts, file, command = TEXTS[kind]
    accepted(*command, written(tmp_path, file, texts[name]()))


@pytest.mark.parametrize("name", PINS)
def test_pins_beside_a_long_program(name: str, tmp_path: Path) -> None:
    arguments = ("--chips", "2x2", "--pin", written(tmp_path, "m.pins", PINS[name]()))
    accepted("compile", written(tmp_path, "m.esti", LONG), *arguments)


@pytest.mark.parametrize("command", [("compile",), ("sweep", "--batch", "1")])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_full_of_one_thing(name: str, command: tuple[str, ...], tmp_path: Path) -> None:
    option, text = OPTIONS[name]
    chips = () if option == "--chips" else ("--chips", "2")
    accepted(*command, written(tmp_path, "m.esti", OPEN + CLOSE), *chips, option, text())


@pytest.mark.parametrize(
    ("tensor", "dims", "chips", "said"),
    [
        ("[" + filled("a0", ",a{k}") + "]", "a0=1", "2", "at most 32 are supported"),
        ("ABC", filled("A=1", ",A{k}=1"), "2", "has no dim `A1`"),
        (
            "[" + ",".join(f"a{k}" for k in range(30)) + "]",
            ",".join(f"a{k}=1099511627776" for k in range(30)),
            "2",
            "2^60 elements",
        ),
        ("AB", "A=1048576,B=1048576", "2x2x2x2x2x2", "layouts of AB"),
    ],
)
def test_layouts_of_a_tensor(tensor: str, dims: str, chips: str, said: str) -> None:
    assert said in accepted("layouts", tensor, "--dims", dims, "--chips", chips)


def test_a_dim_that_is_not_there_is_said_before_anything_is_planned(tmp_path: Path) -> None:
    (tmp_path / "no.pins").write_text("")
    arguments = ("--chips", "4x4x4", "--against", f"a={tmp_path / 'no.pins'}", "--over", "Zed")
    outcome = run(("explain", "palm-540b", *arguments))
    assert outcome.code == 1 and "no dim `Zed`" in outcome.said


def test_texts_are_as_full_as_they_are_meant_to_be() -> None:
    assert len({shuffled(k) for k in range(1_000)}) == 1_000
    assert sum(len(text()) > 70_000 for text in MODELS.values()) > 15
