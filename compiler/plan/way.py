"""How a program is asked to be planned: what may be streamed, in how many stages, phases together or apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Offload(StrEnum):
    """What may be streamed from the host. AUTO: weights, caches or both, whichever is quickest."""

    NONE = "none"
    WEIGHTS = "weights"
    CACHES = "caches"
    AUTO = "auto"


@dataclass(frozen=True)
class Way:
    """How a program is planned. `stages`: over how many its layers are divided, 0 for as many as are quickest, None for
    none; `micro_batches`: how many a phase has, by its name. `offload`, `ahead`: what may be streamed from the host,
    and how many layers before it is needed. Phases together or `separate`; with `check` run on virtual chips;
    `best_batch`: of the batch of most sequences a second, with streams or in stages."""

    stages: int | None = None
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    offload: Offload = Offload.NONE
    ahead: int = 1
    separate: bool = False
    check: bool = False
    best_batch: bool = False
