"""Products that may never be there, as what plans hold at the least has to know them."""

from __future__ import annotations

from collections.abc import Mapping

from ...cost.products import taken, takers
from ...ir.record import record
from ...ir.spmd import SpmdProgram


@record
class Takings:
    """Products that may never be there: `products` by the pointwise ops in which they go, and by the products that go
    last the ops that are then written `over` another value."""

    products: Mapping[str, tuple[str, ...]]
    over: Mapping[str, str]


def takings(plain: SpmdProgram, ordered: bool, fused: bool) -> Takings:
    """Those of an unsharded program: where steps keep their order, of each op the product right before it, else all
    that may be."""
    if not fused:
        return Takings({}, {})
    if not ordered:
        some = takers(plain)
        over = {name: one.result for one in some if len(one.over) > 1 for name in one.products}
        return Takings({one.result: one.products for one in some}, over)
    last = taken(plain)
    return Takings({t.result: (t.product,) for t in last}, {t.product: t.result for t in last if t.over is not None})
