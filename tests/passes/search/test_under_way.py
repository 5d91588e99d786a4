"""What is under way as a step runs: never more than is there in any order of the steps, and in some all of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from problems import drawn
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from escc.compiler.plan.pipeline import program_of
from escc.cost.memory import points
from escc.ir.diagnostics import Source
from escc.ir.mesh import Mesh
from escc.passes.search.taken_products import Takings
from escc.passes.search.under_way import UnderWay

from .test_memory_bounds import alone, compare, searched
from .test_step_order import ATTENTION, LATE, LINKS, compared, ordered

PARALLEL = """
dim B = 16, L = 32, M = 32, E = 64, H = 8, Q = 16, F = 128
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param s1, b1, s2, b2: bf16[E]
  param Wq, Wk, Wv: bf16[E,H,Q]
  param Wo: bf16[H,Q,E]
  param bi: bf16[F]
  param bv: bf16[H,Q]
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  cache keys, values: bf16[B,M,H,Q]
  n1 = layernorm(x, s1, b1, over=E, eps=1e-5)
  q[B,L,H,Q] = n1[B,L,E] * Wq[E,H,Q]
  k[B,L,H,Q] = n1[B,L,E] * Wk[E,H,Q]
  v[B,L,H,Q] = n1[B,L,E] * Wv[E,H,Q]
  r = rope(q, over=Q, at=L into M)
  ks = append(keys, rope(k, over=Q, at=L into M), L into M)
  vs = append(values, v + bv, L into M)
  s[B,L,H,M] = r[B,L,H,Q] * ks[B,M,H,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,H,Q] = p[B,L,H,M] * vs[B,M,H,Q]
  a[B,L,E] = o[B,L,H,Q] * Wo[H,Q,E]
  n2 = layernorm(x, s2, b2, over=E, eps=1e-5)
  u[B,L,F] = n2[B,L,E] * Wi[E,F]
  h = gelu(u + bi)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d
}
main(x: bf16[B,L,E]) { return repeat 2 layer(x) }
"""


class Steps:
    """Steps that each make one value of others, by number; the first `inputs` are made of nothing. `orders` are all
    those in which they may run."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.count = int(rng.integers(4, 12))
        self.of = [sorted({int(m) for m in rng.integers(0, n, size=rng.integers(1, 3))}) for n in range(1, self.count)]
        self.of.insert(0, [])
        self.bytes = rng.integers(1, 9, size=self.count).astype(float)
        self.scores = {n for n in range(1, self.count) if rng.random() < 0.3}
        self.orders = [self._order(rng) for _ in range(int(rng.integers(1, 5)))]

    def _order(self, rng: np.random.Generator) -> list[int]:
        left, out = set(range(self.count)), list[int]()
        while left:
            ready = sorted(n for n in left if not left & {*self.of[n]})
            out.append(ready[rng.integers(len(ready))])
            left.remove(out[-1])
        return out

    def precedes(self, first: int, second: int) -> bool:
        """Whether a step runs before another in all orders."""
        return all(order.index(first) < order.index(second) for order in self.orders)

    def under_way(self) -> UnderWay:
        """What is to be tested, of these."""
        order: Any = SimpleNamespace(
            repeats=dict.fromkeys(range(self.count), ("layer",)),
            reads={n: [f"v{m}" for m in of] for n, of in enumerate(self.of)},
            is_step=lambda n: True,
            precedes=self.precedes,
        )
        return UnderWay(order, tensors(self.bytes), {f"v{n}" for n in self.scores}, Takings({}, {}))

    def there(self, order: list[int], now: int, blocks: bool) -> float:
        """What is held as a step runs, without what it reads and makes; in `blocks`: of scores what they are made
        of."""
        done = {*order[: order.index(now)]}
        waited = {m for n in order if n not in done and n != now for m in self.of[n]}
        while blocks and (seen := waited & self.scores):
            waited = waited - seen | {m for n in seen for m in self.of[n]}
        return sum(self.bytes[n] for n in (waited & done) - {*self.of[now]})

    def flow(self, now: int) -> float:
        """What flows at the most from what is sure to have been made to what is sure to be still to come, as another
        algorithm has it: each value is an arc from 2n to 2n + 1."""
        begin, end, much = 2 * self.count, 2 * self.count + 1, 1000
        flows = np.zeros((end + 1, end + 1), dtype=np.int32)
        for n, of in enumerate(self.of):
            if n == now or n in self.of[now]:
                continue
            if self.precedes(now, n):
                flows[[2 * m + 1 for m in of], end] = much
                continue
            flows[2 * n, 2 * n + 1] = self.bytes[n]
            flows[[2 * m + 1 for m in of], 2 * n] = much
            if self.precedes(n, now) and n not in self.scores:
                flows[begin, 2 * n] = much
        return float(maximum_flow(csr_array(flows), begin, end).flow_value)


def tensors(sizes: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """Values v0, v1, ... that the nodes of these numbers make, of so many bytes on each of two chips."""
    shards = SimpleNamespace(space=SimpleNamespace(shards=np.array([1, 2])))
    return {
        f"v{n}": SimpleNamespace(
            total_bytes=2 * size, space=shards, source=SimpleNamespace(node=n, rows=np.arange(3)), uses=()
        )
        for n, size in enumerate(sizes)
    }


def test_it_is_no_more_than_is_there_in_any_order_and_nearly_all_that_flows() -> None:
    found = most = 0.0
    for seed in range(200):
        steps = Steps(seed)
        under_way = steps.under_way()
        for now in range(1, steps.count):
            demand = under_way.at(now, ())
            size = 0.0 if demand is None else float(demand.bytes.max())
            for order in steps.orders:
                assert size <= steps.there(order, now, blocks=False), (seed, now)
                assert size <= steps.there(order, now, blocks=True), (seed, now)
            assert size <= steps.flow(now), (seed, now)
            found, most = found + size, most + steps.flow(now)
    assert found > 0.98 * most > 0


def test_what_is_counted_is_not_under_way() -> None:
    steps = Steps(0)
    steps.count, steps.scores, steps.bytes = 4, set(), np.array([4.0, 3.0, 5.0, 1.0])
    steps.of, steps.orders = [[], [0], [0], [1]], [[0, 1, 2, 3], [0, 2, 1, 3]]
    under_way = steps.under_way()
    demand = under_way.at(2, ())
    assert demand is None, "what the step reads is there anyway, and may be all that is waited for"
    steps.of[2] = []
    demand = steps.under_way().at(2, ())
    assert demand is not None and demand.bytes.tolist() == [3.0] * 3 and (demand.value, demand.node) == ("v1", 1)
    assert steps.under_way().at(2, ("v1",)) is None


def test_what_a_product_is_made_over_is_not_there_beside_it() -> None:
    """v3 = v1 * v2: it is made where the product v2 is, over v1, so that v1 goes as v2 is made."""
    steps = Steps(0)
    steps.count, steps.scores, steps.bytes = 4, set(), np.array([1.0, 3.0, 3.0, 3.0])
    steps.of, steps.orders = [[], [], [0], [1, 2]], [[0, 1, 2, 3]]
    under_way = steps.under_way()
    kept = under_way.at(2, ())
    assert kept is not None and kept.value == "v1"
    over = Takings({"v3": ("v2",)}, {"v2": "v3"})
    assert UnderWay(under_way.order, under_way.tensors, (), over).at(2, ()) is None


@pytest.mark.parametrize(("text", "tight"), [(PARALLEL, 0), (ATTENTION, 1), (LATE, 1)])
def test_no_plan_holds_less_and_some_hold_no_more(text: str, tight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(Source("layer.esti", text))
    problem, limits = searched(program, "main", Mesh.parse("2x2"), LINKS, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(UnderWay, "at", lambda *_: None)
        _, without = searched(program, "main", Mesh.parse("2x2"), LINKS, monkeypatch)
        fewer = without.needs.points
    equal = more = 0
    for draw in range(12):
        plan = drawn(problem, draw)
        compare(problem, limits, plan)
        spelled = points(limits.spell(problem.found(plan), True), limits.lanes, limits.fused)
        held, allowed = {point.step: float(point.bytes) for point in spelled}, alone(plan, problem)
        padding = sum(term.least(allowed) for term in limits.needs.beside)
        for need, less in zip(limits.needs.points, fewer, strict=True):
            if (least := need.least(allowed)) > less.least(allowed):
                more, equal = more + 1, equal + (least + padding >= held[need.step] * (1 - 1e-12))
    assert more > 0 and equal >= tight


def test_what_one_branch_of_a_layer_makes_is_there_beside_what_the_other_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention may wait for the feed-forward, or go before it: something of it is held in any case."""
    problem, limits, order = ordered(program_of(Source("layer.esti", PARALLEL)), "main", monkeypatch)
    said, turned = compared(problem, limits, order, 12)
    assert said > 0 and turned > 0
    number = {node.name: n for n, node in enumerate(problem.graph.nodes)}
    joined = order.joined or {}
    assert "layer.n2" in joined and not order.precedes(number["layer.a"], number["layer.u"])
    assert order.precedes(number["layer.n1"], number["layer.u"]), "what it waits for is made of this"
    [point] = [point for point in limits.needs.points if point.step == "layer.u" and not point.moving]
    a = next(tensor for tensor in problem.graph.tensors if tensor.value.name == "layer.a")
    assert sum(float(term.bytes.max()) for term in point.terms if term.value == "layer.a") == a.total_bytes / 4
    every = [np.ones(len(prices), dtype=bool) for prices in problem.prices]
    least = limits.needs.stored_bytes(every) + point.least(every)
    rooms = {load.room for load in limits.needs.loads(every, 2 * least, 2 * least)}
    assert 2 * least - a.total_bytes / 4 in rooms, "it leaves less room to all else"
