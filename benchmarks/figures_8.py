"""Figure 8: a decode step of eight layers of PaLM 540B against the context, with three kinds of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from figures_plans import Programs, step_of, totals
from figures_plot import INK, MARKS, SERIES, Figure, Sheet, count, label, log_up, ticks

from escc.compiler.calibrate.named_layouts import AttentionLayout
from escc.compiler.calibrate.rows import DECODE, Step
from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.cost.memory import memory
from escc.ir.mesh import Mesh
from escc.ir.program import Kind, Repeat, Stored, operand_names, walk
from escc.ir.spmd import Compute, SpmdProgram

MESH = Mesh.parse("4x4x4")
BATCH, LAYERS = 256, 8
CONTEXTS = tuple(1 << k for k in range(7, 16))
CACHE_SHARE = 0.30  # of the HBM, table 1
PUBLISHED_SHARES = (0.08, 0.31)  # attention's share of a step at the contexts of SHARED
SHARED = ((8192, 512), (32768, 128))  # contexts and batches


@dataclass(frozen=True)
class Variant:
    """A kind of attention. `published`: the longest context of table 1 at batch 512, 30% of HBM for caches."""

    name: str
    model: str
    attention: AttentionLayout
    published: int


VARIANTS = (
    Variant("multihead", "palm-540b-multihead", AttentionLayout.HEADS, 330),
    Variant("multiquery over heads", "palm-540b", AttentionLayout.HEADS, 165),
    Variant("multiquery over batch", "palm-540b", AttentionLayout.BATCH, 10_700),
)


@dataclass(frozen=True)
class Curve:
    """A step's seconds in the short model, by context.

    `fits`: the longest context for which the whole model fits into the HBM, None where all that were planned do;
    `allowed`: the longest whose caches take no more than the share of the HBM that table 1 leaves them, at
    batch 512.
    """

    seconds: tuple[float, ...]
    fits: int | None
    allowed: float


@dataclass(frozen=True)
class Curves:
    """The curves of all variants, and the share of attention in steps of the whole model over the batch."""

    contexts: tuple[int, ...]
    of: Mapping[Variant, Curve]
    shares: tuple[float, ...]


def steps(contexts: Sequence[int] = CONTEXTS) -> list[Step]:
    """What is to be planned: the whole model, as its memory counts."""
    return [*(_step(variant, n) for variant in VARIANTS for n in contexts), *_shared_steps()]


def _step(variant: Variant, context: int, batch: int = BATCH) -> Step:
    return step_of(DECODE, MESH, batch, context, attention=variant.attention, model=variant.model)


def _shared_steps() -> list[Step]:
    return [_step(VARIANTS[-1], context, batch) for context, batch in SHARED]


def curves(programs: Programs, hardware: Hardware, contexts: Sequence[int] = CONTEXTS) -> Curves:
    """What the planned steps take."""
    of = {}
    for variant in VARIANTS:
        planned = [programs[_step(variant, n)] for n in contexts]
        taken = tuple(totals(shortened(spmd, LAYERS), hardware).total_s for spmd in planned)
        held = [float(memory(spmd).total_bytes) for spmd in planned]
        for_caches = CACHE_SHARE * hardware.hbm_bytes / (cache_bytes(planned[-1]) / contexts[-1])
        of[variant] = Curve(taken, longest(contexts, held, hardware.hbm_bytes), for_caches * BATCH / 512)
    shares = tuple(attention_share(programs[step], hardware) for step in _shared_steps())
    return Curves(tuple(contexts), of, shares)


def shortened(spmd: SpmdProgram, layers: int) -> SpmdProgram:
    """The program with so many layers in its repeats."""
    items = tuple(replace(item, count=layers) if isinstance(item, Repeat) else item for item in spmd.body.items)
    return replace(spmd, body=replace(spmd.body, items=items))


def longest(contexts: Sequence[int], held: Sequence[float], capacity: float) -> int | None:
    """The context at which what is held reaches the capacity, on straight lines between those that were planned;
    None where all fit, 0 where the shortest does not."""
    if held[0] > capacity:
        return 0
    for (a, b), (low, high) in zip(pairwise(contexts), pairwise(held), strict=True):
        if high > capacity:
            return int(a + (capacity - low) / (high - low) * (b - a))
    return None


def cache_bytes(spmd: SpmdProgram) -> float:
    """Bytes of all caches on a chip."""
    stored = (placed.item for placed in walk(spmd.body) if isinstance(placed.item, Stored))
    caches = {item.value for item in stored if item.kind is Kind.CACHE}
    return float(sum(size for name, size in memory(spmd).stored if name in caches))


def attention_share(spmd: SpmdProgram, hardware: Hardware) -> float:
    """The share of a step that ops over the context take: scores, their softmax, the weighted sum."""
    found, values = estimate(spmd, hardware), spmd.table()
    over = {
        placed.item.result
        for placed in walk(spmd.body)
        if isinstance(placed.item, Compute)
        and any("M" in values[name].dims for name in (placed.item.result, *operand_names(placed.item.op)))
    }
    return sum(op.times * op.seconds for op in found.ops if op.result in over) / found.totals().total_s


def draw(found: Curves) -> str:
    """The figure; dotted where the whole model does not fit."""
    sheet = Sheet()
    panel = sheet.panel
    for n, (variant, curve) in enumerate(found.of.items()):
        taken = [1e3 * seconds for seconds in curve.seconds]
        fits = [curve.fits is None or context <= curve.fits for context in found.contexts]
        inside = sum(fits)
        panel.plot(found.contexts, taken, color=SERIES[n], linestyle=":", marker=MARKS[n], fillstyle="none")
        panel.plot(found.contexts[:inside], taken[:inside], color=SERIES[n], marker=MARKS[n], label=variant.name)
        if curve.fits is not None:
            panel.axvline(curve.fits, color=SERIES[n], linewidth=1, linestyle="--")
    panel.plot([], [], color=INK, linestyle=":", label="does not fit with all layers")
    panel.set_xscale("log", base=2)
    log_up(panel, [1e3 * seconds for curve in found.of.values() for seconds in curve.seconds])
    ticks(panel, found.contexts, [count(context) for context in found.contexts])
    label(panel, "context, tokens", f"milliseconds of a decode step of {LAYERS} layers")
    panel.legend(loc="upper left")
    return sheet.svg()


def words(found: Curves, hardware: Hardware) -> str:
    """What agrees with the paper, and what does not."""
    quickest = [min(found.of, key=lambda variant: found.of[variant].seconds[n]) for n in range(len(found.contexts))]
    batch, heads = VARIANTS[-1], VARIANTS[1]
    from_ = next((n for n, best in zip(found.contexts, quickest, strict=True) if best is batch), None)
    stays = from_ is not None and all(
        best is batch for n, best in zip(found.contexts, quickest, strict=True) if n >= from_
    )
    lead = (
        f"multiquery split over the batch is the quickest from {from_:,} tokens on"
        if stays
        else "multiquery split over the batch is not the quickest at long contexts"
    )
    ends = {variant: curve.seconds[-1] for variant, curve in found.of.items()}
    room = "; ".join(f"{variant.name} {_room(curve, found.contexts)}" for variant, curve in found.of.items())
    allowed = ", ".join(
        f"{curve.allowed:,.0f} ({variant.name}; {variant.published:,} published, "
        f"{curve.allowed / variant.published - 1:+.1%})"
        for variant, curve in found.of.items()
    )
    low, high = PUBLISHED_SHARES
    shares = " and ".join(
        f"{share:.0%} at {context:,} (batch {size})"
        for share, (context, size) in zip(found.shares, SHARED, strict=True)
    )
    return (
        f"With {LAYERS} layers, batch {BATCH} and 64 chips {lead}; at {found.contexts[-1]:,} it takes "
        f"{1e3 * ends[batch]:.1f} ms, over heads {ends[heads] / ends[batch]:.1f} times and multihead "
        f"{ends[VARIANTS[0]] / ends[batch]:.1f} times as much. As in the paper, the lines are dotted where the model "
        f"with all of its layers does not fit: {room}. The paper has multihead and multiquery over heads end at 512. "
        f"The contexts whose caches fill {CACHE_SHARE:.0%} of the HBM at batch 512 are {allowed}. Attention's share "
        f"of a step of the whole model is {shares}; the paper has {low:.0%} to {high:.0%}. Here it is what ops "
        f"over the context take at the rates of all ops, and a cache is read at the same share of the HBM's peak "
        f"as weights."
    )


def _room(curve: Curve, contexts: Sequence[int]) -> str:
    return f"fits up to {curve.fits:,} tokens" if curve.fits is not None else f"fits at {contexts[-1]:,} still"


def figure(programs: Programs, hardware: Hardware) -> Figure:
    """Draw and describe what was planned."""
    found = curves(programs, hardware)
    return Figure("8", "Decode latency against the context", draw(found), words(found, hardware))
