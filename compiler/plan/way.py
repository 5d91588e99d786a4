"""How a program is asked to be planned: what may be streamed, in how many stages, phases together or apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from ...ir.diagnostics import fail
from ...ir.record import record

AHEAD = 1  # layers, where none are asked for
MOST_AHEAD = 16  # layers: more take room and save nothing


class Offload(StrEnum):
    """What may be streamed from the host, all of some layers or single tensors of them. AUTO: weights, caches or both,
    whichever is quickest."""

    NONE = "none"
    WEIGHTS = "weights"
    CACHES = "caches"
    AUTO = "auto"


def ahead_of(ahead: int | None, streams: bool, dashes: str = "") -> int:
    """How many layers before they are needed tensors come from the host. `dashes`: what stands before the names of
    options. Raises InputError where that is asked for and none come from there, neither by `offload` nor by pins; and
    for what is no number from 0 to `MOST_AHEAD`."""
    if ahead is None:
        return AHEAD
    if not streams:
        raise fail(f"`{dashes}ahead` is of streams from the host.", hint=f"which `{dashes}offload` asks for")
    if not 0 <= ahead <= MOST_AHEAD:
        raise fail(f"`{dashes}ahead` is {ahead}.", hint=f"it is a count of layers, from 0 to {MOST_AHEAD}")
    return ahead


@record
class Way:
    """How a program is planned. `stages`: over how many its layers are divided, 0 for as many as are quickest, None for
    none; `micro_batches`: how many a phase has, by its name. `offload`, `ahead`: what may be streamed from the host,
    and how many layers before it is needed. Phases together or `separate`; with `check` run on virtual chips;
    `best_batch`: of the batch of most sequences a second, with streams or in stages."""

    stages: int | None = None
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    offload: Offload = Offload.NONE
    ahead: int = AHEAD
    separate: bool = False
    check: bool = False
    best_batch: bool = False
