"""Options that commands share: numbers with a fraction are numbers, wherever one is taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from escc.compiler.commands.main import LATE, app


def fractions() -> Iterator[tuple[str, str]]:
    """Each option of a command that takes a number with a fraction."""
    group = typer.main.get_command(app)
    for name in LATE:
        command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]
        for option in command.params:
            if "float" in option.type.name:
                yield name, option.opts[-1]


OPTIONS = list(fractions())
ARGUMENTS = {
    "compile": ("feed-forward", "--chips", "4"),
    "explain": ("feed-forward", "--chips", "4"),
    "check": ("feed-forward", "--chips", "4", "--backend", "jax"),
    "run": ("feed-forward", "--chips", "4"),
    "sweep": ("feed-forward", "--chips", "4", "--batch", "4"),
}


def test_all_options_with_fractions_are_known() -> None:
    assert {("compile", "--hbm-fraction"), ("sweep", "--price"), ("run", "--temperature")} < set(OPTIONS)
    assert ("sweep", "--max-cost") in OPTIONS and {command for command, _ in OPTIONS} == set(ARGUMENTS)


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_what_is_no_finite_number_is_wrong_usage(command: str, option: str, number: str) -> None:
    found = CliRunner().invoke(app, [command, *ARGUMENTS[command], f"{option}={number}"])
    assert found.exit_code == 2 and f"Invalid value for '{option}'" in found.stderr
    assert not found.stdout


@pytest.mark.parametrize(
    "command",
    [
        *(
            ("run", "palm-8b", "--chips", "4"),
            ("import", "config.json"),
            ("schedule", "a.csv", "palm-8b", "--chips", "4"),
        ),
        *(("sweep", "palm-8b", "--chips", "4", "--batch", "4"), ("calibrate",)),
    ],
    ids=lambda command: command[0],
)
def test_force_without_a_file_to_write_is_refused(command: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, [*command, "--force"])
    assert found.exit_code == 1 and "`--force` writes over files, and none is written here." in found.stderr


@pytest.mark.parametrize("price", ["1e308", "0"])
def test_what_nothing_can_cost_is_wrong_usage(price: str) -> None:
    found = CliRunner().invoke(app, ["sweep", *ARGUMENTS["sweep"], "--price", price])
    assert found.exit_code == 2 and "Invalid value for '--price'" in found.stderr
