"""Rotary positions in a config: their base, how much of a head they turn, and how they are scaled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...ir.record import record
from .common import Sizes
from .description import Heat, Rope
from .fields import Fields

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
SECTIONS = (
    "mrope_section",
    "mrope_interleaved",
    "interleaved",
)  # how positions in time and space share a head; text has but one


def ropes_by_kind(
    fields: Fields, sizes: Sizes, bases: Mapping[str, tuple[str, float]], scaled: str, share: float = 1.0
) -> dict[str, Rope]:
    """The rotary positions of layers of several kinds. `bases`: by kind the field with the base of the frequencies,
    empty for none, and the base where it is missing. `scaled`: the kind to which an older `rope_scaling` belongs.
    `share`: of a head that is turned, where an object does not say it."""
    plain = {kind: _Said(fields.number(name, base) if name else base, share) for kind, (name, base) in bases.items()}
    newer, older = fields.part("rope_parameters"), fields.part("rope_scaling")
    found = dict(plain)
    if older is not None and older.entries:
        found[scaled] = _said(older, plain[scaled], sizes)
    if newer is not None:
        for kind in bases:
            own = newer.part(kind)
            if own is not None and own.entries:
                found[kind] = _said(own, plain[kind], sizes)
        newer.refuse_unknown()
    return {
        kind: Rope(said.base, _turned(fields, sizes.head_dim, sizes.head_dim, said.share, "head_dim"), said.scaling)
        for kind, said in found.items()
    }


@record
class _Said:
    """What an object in a config says: the base of the frequencies, the share of a head, the scaling."""

    base: float
    share: float
    scaling: str | None = None


def rope(
    fields: Fields,
    sizes: Sizes,
    base: str = "rope_theta",
    share: tuple[str, float] | None = None,
    share_of: int | None = None,
    default_base: float = 10000.0,
    default_scaling: str | None = None,
    original: int | None = None,
    magnitudes: tuple[str, str] | None = None,
) -> Rope:
    """The rotary positions of a model.

    `base`: the field with the base of the frequencies. `share`: the field with the share of a head
    that is turned, and the share where it is missing; None: all of a head is turned. `share_of`: what
    that is a share of, if not of a head. `default_base`, `default_scaling`: where the config does
    not say. `original`: the positions of the first training, where they do not stand with the scaling.
    `magnitudes`: the fields of a scaling with that by which longrope makes queries and keys larger, in contexts up to
    those of the first training and in longer ones.
    """
    own_share = 1.0 if share is None else fields.number(*share)
    plain = _Said(fields.number(base, default_base), own_share, default_scaling)
    found = plain
    parts = [(name, fields.part(name)) for name in ("rope_scaling", "rope_parameters")]
    said = [
        (name, _said(part, plain, sizes, original, magnitudes))
        for name, part in parts
        if part is not None and part.entries
    ]
    if said:
        found = said[0][1]
    if len(said) == 2 and said[0][1] != said[1][1]:
        fields.refuse(said[0][0], f"`{said[0][0]}` and `{said[1][0]}` say different things.")
    _check_echo(fields, "rope_theta", found.base)
    if (found.scaling or "").startswith("yarn") and found.base <= 1:
        name = next((name for name, part in parts if part is not None and "rope_theta" in part.entries), base)
        fields.refuse(name, "YaRN takes frequencies that fall, and so a base above 1.")
    if share is not None:
        _check_echo(fields, "partial_rotary_factor", found.share)
    elif found.share != 1:
        fields.refuse("rope_parameters", f"Rope turns all of a head, and `partial_rotary_factor` is {found.share:g}.")
    where = share[0] if share is not None and share[0] in fields.entries else "head_dim"
    turned = _turned(fields, sizes.head_dim, share_of or sizes.head_dim, found.share, where)
    if (found.scaling or "").startswith("longrope"):
        _check_factors([part for _, part in parts if part is not None], turned // 2)
    return Rope(found.base, turned, found.scaling)


def _said(
    part: Fields, plain: _Said, sizes: Sizes, original: int | None = None, magnitudes: tuple[str, str] | None = None
) -> _Said:
    """What an object says, and of what it says nothing what stands beside it."""
    scaling = _scaling(part, sizes.context, original, magnitudes)
    base, share = part.number("rope_theta", plain.base), part.number("partial_rotary_factor", plain.share)
    if "alpha" in part.known & part.entries.keys():  # Hunyuan's, which makes the base larger for all contexts
        base *= part.number("alpha") ** (sizes.head_dim / max(1, sizes.head_dim - 2))
        if not base:
            part.refuse("alpha", "`alpha` makes the base of rope smaller than numbers can be.")
    part.inert(
        (*SECTIONS, "llama_4_scaling_beta", "max_position_embeddings", "finetuned")
    )  # of queries, read by `heated`
    part.refuse_unknown()
    return _Said(base, share, scaling)


def _check_echo(fields: Fields, name: str, number: float) -> None:
    """A field that some versions of `transformers` write beside the one that counts must agree with it."""
    if name not in fields.known and fields.get(name) is not None and fields.number(name) != number:
        fields.refuse(name, f"`{name}` is another than {number:g}, which counts here.", "remove it, or make them agree")


def _check_factors(parts: Sequence[Fields], pairs: int) -> None:
    """LongRoPE has a factor for each pair of elements that rope turns."""
    for part in parts:
        for name in ("short_factor", "long_factor"):
            node = part.get(name)
            if part.complete and node is not None and isinstance(node.value, tuple) and len(node.value) != pairs:
                part.refuse(name, f"`{name}` has {len(node.value)} factors, and rope turns {pairs} pairs.")


def heated(fields: Fields) -> Heat | None:
    """How queries grow with their place, where a scaling of rope says so."""
    for name in ("rope_parameters", "rope_scaling"):
        part = fields.part(name)
        said = part.get("llama_4_scaling_beta") if part is not None else None
        if part is not None and said is not None and said.value != 0:
            after = part.number("original_max_position_embeddings")
            return Heat(part.number("llama_4_scaling_beta"), after, first=0)
    return None


def number_text(number: float) -> str:
    """A number as the language writes it, exactly."""
    if number.is_integer() and number < 1e15:
        return str(int(number))
    return repr(number).replace("e-0", "e-").replace("e+", "e")


def rope_text(rope: Rope, text: str, dim: str) -> str:
    """A query or key turned by where it stands."""
    scaling = f", scaling={rope.scaling}" if rope.scaling else ""
    return f"rope({text}, over={dim}, at=L into M, base={number_text(rope.base)}{scaling})"


def _turned(fields: Fields, head_dim: int, share_of: int, share: float, where: str) -> int:
    turned = int(share_of * share)
    if not fields.complete or (2 <= turned <= head_dim and turned % 2 == 0):
        return turned
    message = f"Rope turns pairs, and here {turned} of the {head_dim} elements of a head."
    fields.refuse(where, message)
    return head_dim


def _scaling(fields: Fields, context: int, original: int | None, magnitudes: tuple[str, str] | None) -> str | None:
    """The scaling of the frequencies, as the language writes it; None for none.

    `context`: the most positions of the model, from which it was not extended unless that is said.
    """
    newer, older = fields.get("rope_type"), fields.get("type")  # the same by two names
    name, node = ("type", older) if newer is None else ("rope_type", newer)
    kind = "default" if node is None else node.value
    if newer is not None and older is not None and newer.value != older.value:
        fields.refuse("type", "`type` and `rope_type` differ.")
    match kind:
        case "default" | "mrope":
            return None
        case "dynamic":  # which changes contexts alone that are longer than the model has
            fields.optional("factor")
            fields.inert(["original_max_position_embeddings", "alpha", *YARN])
            return None
        case "linear":
            fields.inert(["original_max_position_embeddings"])
            return f"linear({number_text(fields.number('factor'))})"
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor")
            numbers = [fields.number(name) for name in names]
            numbers.append(fields.number("original_max_position_embeddings", float(context)))
            if fields.complete and numbers[1] > numbers[2]:
                fields.refuse(names[1], f"`{names[1]}` must not be above `{names[2]}`.")
            if numbers[1] == numbers[2]:  # between the two nothing turns
                numbers[2] = math.nextafter(numbers[2], math.inf)
            return f"llama3({', '.join(map(number_text, numbers))})"
        case "yarn" | "deepseek_yarn":
            return _yarn(fields, context)
        case "longrope" | "su":
            return _longrope(fields, context, original, magnitudes)
    fields.inert(fields.entries)  # one finding is enough
    shown = f"`{kind[:40]}`" if isinstance(kind, str) else "of this type"
    fields.refuse(name, f"Rope scaling {shown} is not supported.", f"supported are {', '.join(KINDS)}")
    return None


def _yarn(fields: Fields, context: int) -> str:
    """YaRN (arXiv:2309.00071), as `transformers` takes its numbers."""
    factor = fields.number("factor")
    fast, slow = fields.optional("beta_fast") or 32.0, fields.optional("beta_slow") or 1.0
    original = fields.number("original_max_position_embeddings", float(context))
    for name in ("attn_factor", "extrapolation_factor"):
        fields.must_be(name, [1, 1.0], "only YaRN without it is known")
    if fields.complete and fast < slow:
        fields.refuse("beta_fast", "`beta_fast` must not be below `beta_slow`.")
    numbers = [factor, fast, slow, original]
    attention = fields.optional("attention_factor")
    scale, all_dims = fields.optional("mscale"), fields.optional("mscale_all_dim")
    if attention is None and scale and all_dims:
        attention = magnified(factor, scale) / magnified(factor, all_dims)
    words = [*map(number_text, numbers), *([number_text(attention)] if attention is not None else [])]
    return f"yarn({', '.join([*words, *([] if fields.flag('truncate', True) else ['exact'])])})"


def magnified(factor: float, by: float = 1.0) -> float:
    """By what YaRN makes queries and keys larger."""
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(fields: Fields, context: int, known: int | None, magnitudes: tuple[str, str] | None) -> str:
    """LongRoPE (arXiv:2402.13753), with the factors of contexts up to the first training's, and of longer ones."""
    short, long = fields.numbers("short_factor"), fields.numbers("long_factor")
    original = fields.number("original_max_position_embeddings", float(known or context))
    factor = fields.optional("factor") or context / original
    if magnitudes is not None:
        attention, longer = (fields.number(name) for name in magnitudes)
        long = short  # with which `transformers` turns contexts of any length where magnitudes are said
    else:
        said = fields.optional("attention_factor")
        plain = factor <= 1 or original <= 1
        grown = 1.0 if plain else math.sqrt(1 + math.log(factor) / math.log(original))
        attention = longer = grown if said is None else said
    own, beyond = (
        f"{number_text(a)}, [{', '.join(map(number_text, b))}]" for a, b in ((attention, short), (longer, long))
    )
    if own == beyond or context <= original:
        return f"longrope({own})"
    return f"longrope({own}, {number_text(original)}, {beyond})"
