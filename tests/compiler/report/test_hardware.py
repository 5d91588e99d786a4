"""`escc hardware`: the sheet of a chip has its figures, those of its host included."""

from __future__ import annotations

from pathlib import Path

import pytest

from escc.compiler.report.hardware import hardware_sheet
from escc.cost.hardware import Hardware, presets

FILES = Path(__file__).parents[3] / "examples" / "hardware"


def host_of(sheet: str) -> dict[str, str]:
    """The rows of the host, by name."""
    lines = sheet.split("\nhost\n")[1].split("\n\n")[0].splitlines()
    return {name: rest.strip() for name, rest in (line.strip().split("  ", 1) for line in lines)}


def test_a_host_is_shown_with_all_that_streams_are_priced_by() -> None:
    found = host_of(hardware_sheet(Hardware.load(str(FILES / "dgx-2.toml"))))
    host = Hardware.load(str(FILES / "dgx-2.toml")).host
    assert host is not None and host.link_chips > 1
    assert found["chips"] == f"{host.host_chips} to a host"
    assert found["DRAM"].startswith(f"{host.dram_bytes / 1e9:g} GB at ")
    assert found["link"].endswith(f"shared by {host.link_chips} chips")
    assert found["NVMe"].startswith(f"{host.nvme_bytes / 1e9:g} GB at ")


@pytest.mark.parametrize("name", presets())
def test_a_chip_without_a_host_has_no_such_part(name: str) -> None:
    chip = Hardware.load(name)
    assert ("\nhost\n" in hardware_sheet(chip)) == (chip.host is not None)
