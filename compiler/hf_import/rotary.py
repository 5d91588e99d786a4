"""Rotary positions in a config: their base, how much of a head they turn, and how they are scaled."""

from __future__ import annotations

from .fields import Fields
from .transformer import Rope

KINDS = ("default", "linear", "llama3")


def rope(fields: Fields, head_dim: int, base: str = "rope_theta", share: tuple[str, float] | None = None) -> Rope:
    """The rotary positions of a model.

    `base`: the field with the base of the frequencies. `share`: the field with the share of a head
    that is turned, and the share where it is missing; None: all of a head is turned.
    """
    newer = fields.part("rope_parameters")  # where `transformers` keeps all of it from version 5 on
    scaling = _scaling(newer) if newer is not None else None
    older = fields.part("rope_scaling")
    if older is not None and newer is not None:
        fields.refuse("rope_scaling", "Both `rope_scaling` and `rope_parameters` are given.")
    elif older is not None:
        scaling = _scaling(older)
        older.refuse_unknown()
    theta, portion = fields.number(base, 10000.0), 1.0 if share is None else fields.number(*share)
    if newer is not None:
        theta = newer.number("rope_theta", theta)
        portion = portion if share is None else newer.number("partial_rotary_factor", portion)
        newer.refuse_unknown()
    where = share[0] if share is not None and share[0] in fields.entries else "head_dim"
    return Rope(theta, _turned(fields, head_dim, portion, where), scaling)


def number_text(number: float) -> str:
    """A number as the language writes it, exactly."""
    if number.is_integer() and number < 1e15:
        return str(int(number))
    return repr(number).replace("e-0", "e-").replace("e+", "e")


def _turned(fields: Fields, head_dim: int, portion: float, where: str) -> int:
    turned = int(head_dim * portion)
    if not fields.complete or (2 <= turned <= head_dim and turned % 2 == 0):
        return turned
    message = f"Rope turns pairs, and here {turned} of the {head_dim} elements of a head."
    fields.refuse(where, message)
    return head_dim


def _scaling(fields: Fields) -> str | None:
    """The scaling of the frequencies, as the language writes it; None for none."""
    newer, older = fields.get("rope_type"), fields.get("type")  # the same by two names
    name, node = ("type", older) if newer is None else ("rope_type", newer)
    kind = "default" if node is None else node.value
    if newer is not None and older is not None and newer.value != older.value:
        fields.refuse("type", "`type` and `rope_type` differ.")
    match kind:
        case "default":
            return None
        case "linear":
            fields.inert(["original_max_position_embeddings"])
            return f"linear({number_text(fields.number('factor'))})"
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            numbers = [fields.number(name) for name in names]
            if fields.complete and numbers[1] >= numbers[2]:
                fields.refuse(names[1], f"`{names[1]}` must be below `{names[2]}`.")
            return f"llama3({', '.join(map(number_text, numbers))})"
    fields.inert(fields.entries)  # one finding is enough
    shown = f"`{kind[:40]}`" if isinstance(kind, str) else "of this type"
    fields.refuse(name, f"Rope scaling {shown} is not supported.", f"supported are {', '.join(KINDS)}")
    return None
