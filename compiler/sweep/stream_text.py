"""What places serve of a stream, as a table, an answer with the command that compiles it, and as data."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict

from ...passes.plan import PROVEN
from ..text.terminal import count_text, share_text, table, time_text
from .stream import Found, Limits, Request, Wanted

HEAD = ("", "hardware", "chips", "slice", "weights", "caches", "batch")
FIGURES = ("a token", "first token", "tokens/s", "each", "HBM")
LEFT = 2
BEST = {Wanted.THROUGHPUT: "Most tokens a second", Wanted.COST: "Cheapest", Wanted.LATENCY: "Quickest"}


def stream_text(request: Request, found: Sequence[Found], options: str) -> str:
    """The places, best first, and the answer; `options`: those of the command that are the same in the one that
    compiles it."""
    stream = request.stream(1)
    lines = [
        f"{request.program().name}: a stream of {request.input_tokens:,} tokens in and {request.output_tokens:,} out"
        + (f", taken in {stream.new:,} at a time" if stream.chunks > 1 else "")
        + _limits(request.limits)
    ]
    rows = [_row(one, k == 0) for k, one in enumerate(found) if one.served is not None]
    if rows:
        unit = "chip-s/M" if found[0].dollars_per_million is None else "dollars/M"
        lines += table([(*HEAD, *FIGURES, unit, "proven"), *rows], LEFT)
    lines += [f"  {_where(one)}: no plan; {one.reason}" for one in found if one.served is None]
    best = found[0]
    if best.served is None:
        return "\n".join([*lines, "", "None serves it."]) + "\n"
    lines += ["", f"{BEST[request.wanted]}: {_where(best)}, {best.batch} at once"]
    lines.append(
        f"  {time_text(best.served.token_s)} between tokens: a step of {time_text(best.served.step_s)}, and "
        f"{(best.batch or 0) / request.output_tokens:.3g} prompts of {time_text(best.served.prefill_s)} beside it; "
        f"{time_text(best.served.pause_s)} at most"
    )
    if best.ordered:
        lines.append(f"  of {', '.join(best.ordered)} only layouts with axes in mesh order were looked at")
    if best.refused and request.batch is None:
        refused = ", ".join(map(str, best.refused))
        beyond = "beyond what is asked for or what fits, or giving no more"
        lines.append(f"  planned on this slice as well, and {beyond}: batches of {refused}")
    lines += ["", "Its layouts, or with `--emit jax` its program:", f"  {command(request, best, options)}"]
    return "\n".join(lines) + "\n"


def _limits(limits: Limits) -> str:
    parts = []
    if limits.token_s is not None:
        parts.append(f"a token within {time_text(limits.token_s)}")
    if limits.first_token_s is not None:
        parts.append(f"the first within {time_text(limits.first_token_s)}")
    return f", {' and '.join(parts)}" if parts else ""


def _where(found: Found) -> str:
    place = found.place
    types = [f"{kind} {what}" for kind, what in ((place.weights, "weights"), (place.caches, "caches")) if kind]
    shape = "" if found.mesh == str(place.chips) else f" as {found.mesh}"
    return f"{place.chips} {place.hardware.chip}{shape}" + "".join(f", {one}" for one in types)


def _row(found: Found, best: bool) -> tuple[str, ...]:
    place, served, cost = found.place, found.served, found.cost
    assert served is not None and cost is not None, "rows are of places that serve"
    return (
        "*" if best else "",
        place.hardware.chip,
        str(place.chips),
        found.mesh,
        str(place.weights or "-"),
        str(place.caches or "-"),
        str(found.batch),
        time_text(served.token_s),
        time_text(served.first_token_s),
        count_text(served.tokens_per_s),
        count_text(served.tokens_per_s_per_user),
        f"{served.hbm_bytes / place.hardware.hbm_bytes:.0%}",
        count_text(cost),
        _proven(found),
    )


def _proven(found: Found) -> str:
    """Of which batches it is proven that none gives more, or how much more at the most; or that its own gives no
    more in other layouts."""
    if found.more <= PROVEN:
        return "all batches"
    if found.more < 1:
        return f"within {share_text(found.more)}"
    return "its batch" if found.proven else "no"


def command(request: Request, found: Found, options: str) -> str:
    """The command that compiles what was found, and gives the same figures."""
    place = found.place
    types = [("--weights", place.weights), ("--caches", place.caches)]
    parts = [
        "escc compile",
        # A bare number is a count of chips, of which all slices would be compiled.
        f"{options} --chips {f'x={found.mesh}' if found.mesh.isdigit() else shlex.quote(found.mesh)}",
        *(f"{option} {kind}" for option, kind in types if kind),
        f"--input {request.input_tokens} --output {request.output_tokens} --batch {found.batch}",
        *([f"--chunk {request.chunk}"] if request.chunk is not None else []),
    ]
    if found.hbm_fraction != 1.0:
        parts.append(f"--hbm-fraction {found.hbm_fraction!r}")
    return " ".join(parts)


def stream_data(request: Request, found: Sequence[Found]) -> dict[str, object]:
    """The same for JSON."""
    return {
        "model": request.program().name,
        "input_tokens": request.input_tokens,
        "output_tokens": request.output_tokens,
        "chunk": request.chunk,
        "max_latency_s": request.limits.token_s,
        "max_first_token_s": request.limits.first_token_s,
        "target": request.wanted.value,
        "places": [
            {
                "hardware": one.place.hardware.name,
                "chips": one.place.chips,
                "weights": one.place.weights,
                "caches": one.place.caches,
                "slice": one.mesh,
                "batch": one.batch,
                "proven": one.proven,
                "most_tokens_per_s": one.most_tokens_per_s if math.isfinite(one.most_tokens_per_s) else None,
                "refused": list(one.refused),
                "served": None if one.served is None else asdict(one.served),
                "chip_s_per_million": one.chip_s_per_million,
                "dollars_per_million": one.dollars_per_million,
                "reason": one.reason,
            }
            for one in found
        ],
    }
