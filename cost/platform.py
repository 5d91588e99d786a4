"""Whose compiler an emitted module is written for."""

from __future__ import annotations

from enum import Enum


class Platform(Enum):
    """Of `ANY` a module is as its program is written; the others keep more of what was planned if written for them."""

    ANY = "any"
    TPU = "tpu"
    GPU = "gpu"
