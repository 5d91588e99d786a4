"""What comes from a host, as formulas: the figures of `cost.streams`, in symbols instead of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy
from sympy import Expr, Symbol

from ...ir.collective import CollectiveKind
from ...ir.record import record
from ...ir.spmd import SpmdProgram
from ..hardware import Hardware
from ..network import Network
from ..streams import FetchCost, LocalBytes, bytes_moved, carried_s, nvme_share, streamed_repeats, streamed_s
from ..topology import hosts_of


@record
class SymbolicFetch:
    """The fetches of a repeat. `incoming_s`: until what one repetition needs has come, and been gathered. `seconds`:
    all repetitions, of the symbols `step` and `fetch`, which are what one takes to run and to come."""

    cost: FetchCost
    incoming_s: Expr
    seconds: Expr
    step: Symbol
    fetch: Symbol


def symbolic_fetches(
    spmd: SpmdProgram,
    hardware: Hardware,
    costs: tuple[FetchCost, ...],
    network: Network,
    local: tuple[LocalBytes, LocalBytes],
    ways: Callable[[tuple[str, ...]], Any],
    named: Callable[[str], Symbol],
) -> tuple[tuple[SymbolicFetch, ...], dict[Symbol, sympy.Rational]]:
    """The formulas of a program's fetches, and what their symbols are worth. `costs`: the same in numbers. `network`,
    the second of `local` and `ways`, over how many chips axes go, are in symbols; `named` makes a symbol of a name that
    nothing else has."""
    host = hardware.host
    if host is None or not costs:
        return (), {}
    rates = {"link": host.link_bytes_per_s, "dram": host.dram_bytes_per_s, "nvme": host.nvme_bytes_per_s}
    symbols = {name: named(name) for name, rate in rates.items() if rate}
    ours: Any = replace(
        host,
        link_bytes_per_s=symbols["link"],
        dram_bytes_per_s=symbols["dram"],
        nvme_bytes_per_s=symbols.get("nvme", 0.0),
    )
    numeric, symbolic = local
    beyond = nvme_share(spmd, hardware, numeric)
    from_nvme = sympy.Rational(beyond) if beyond else 0
    chips = hosts_of(spmd.mesh, hardware).most_chips
    sizes = {symbols[name]: sympy.Rational(rate) for name, rate in rates.items() if rate}
    found = []
    for cost, (_, _, tensors) in zip(costs, streamed_repeats(spmd), strict=True):
        into, out = sympy.Integer(0), sympy.Integer(0)
        gathered: dict[tuple[str, ...], Any] = {}
        for tensor, share in tensors:
            part = sympy.Rational(share.numerator, share.denominator)
            comes, returns = bytes_moved(tensor, spmd, symbolic)
            into, out = into + part * comes, out + part * returns
            if comes != 0 and tensor.gathered_axes:
                axes = tensor.gathered_axes
                gathered[axes] = gathered.get(axes, 0) + part * symbolic(tensor.value)
        over = [one for one in carried_s(ours, chips, into, out, from_nvme, _larger) if one != 0]
        gather_s = sympy.Add(
            *(
                network.collective_s(CollectiveKind.ALL_GATHER, axes, held / ways(axes), held)
                for axes, held in gathered.items()
            )
        )
        incoming_s = _larger(*over) + gather_s
        step, fetch = named(f"t_{cost.repeat}"), named(f"fetch_{cost.repeat}")
        seconds = sympy.sympify(streamed_s(cost.count, cost.streamed, step, fetch, cost.ahead, _larger))
        sizes |= {step: sympy.Rational(cost.step_s), fetch: sympy.Rational(cost.fetch.seconds)}
        found.append(SymbolicFetch(cost, incoming_s, seconds, step, fetch))
    return tuple(found), sizes


def _larger(*terms: Any) -> Any:
    """The largest of formulas that are not negative, as it stands."""
    some = [term for term in terms if term != 0] or [terms[0]]
    return sympy.Max(*some, evaluate=False) if len(some) > 1 else some[0]
