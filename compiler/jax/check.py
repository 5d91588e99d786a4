"""The check of an emitted JAX program: it agrees when it runs, and at full size its module sends what was planned.

Runs in a process of its own, with as many CPU devices as the mesh has chips.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from ...ir.choices import chooses, with_room
from ...ir.collective import CollectiveKind
from ...ir.dataflow import appends
from ...ir.diagnostics import InternalError, fail, plural
from ...ir.dtype import Dtype
from ...ir.program import Kind, Program, walk
from ...ir.record import record
from ...ir.spmd import Compute, SpmdProgram
from ..emit.jax_build import OLDEST
from ..emit.jax_function import contexts_of
from ..emit.jax_main import MOST_ROUNDED, TOLERANCE
from ..emit.jax_order import in_memory_order
from ..emit.jax_packed import packed
from ..emit.jax_source import emit_jax
from ..emit.jax_tree import Names, names_of
from ..plan.compiled import CompiledPhase
from ..simulate.check import incomparable, largest_difference, refuse_large
from ..simulate.finite import LARGEST_F16, LARGEST_F32, Watch, representable
from ..simulate.pointwise import Array
from ..simulate.reference import Rounded, random_stored, run_reference
from ..simulate.shrink import shrink, true_part, zero_padded
from ..simulate.spmd_interpreter import ExecutionError, run_spmd
from ..text.terminal import table
from .codes import appended, rounded_caches, slack_of
from .hlo import ModuleTransfer, collectives_of
from .hlo_text import ModuleError
from .module_text import collective_rows
from .planned import kinds_of, masks_of, planned, room_of, sent_bytes
from .processes import run_processes

NARROW_TOLERANCE = 5e-2  # the same as they are declared; integers are not judged, for rounding moves them
INTEGERS = (Dtype.I32, Dtype.INT8, Dtype.INT4)
CHILD = f"{__package__}.check_child"


@record
class Differences:
    """The largest differences of a JAX run, relative to the largest element of the result they occur in.

    `whole`: the share of elements that differ in results of integers, None where there are no such results.
    """

    reference: float
    numpy: float
    whole: float | None

    @property
    def largest(self) -> float:
        """The largest of them."""
        return max(self.reference, self.numpy, self.whole or 0.0)


@record
class JaxReport:
    """What running and compiling an emitted program showed.

    `planned` and `module`: how often each collective runs in the plan, and in the module at full size
    after SPMD partitioning. `final`: executions of each kind in the optimised module, whose compiler may
    have made several all-reduces into one. `narrow`: None where the program has no narrow floats. `dense`:
    of the unsharded program in the same file. `routing`: how often it sends which rows it sends, of chosen values;
    `mask_bytes`: what the plan counts for that, where it moves masks. `chooses`: entries are chosen, and others where
    narrow floats are rounded, which then are not judged. `lost`: how many chosen entries, and of how many tokens, found
    no room at small sizes, and how many there were; None where all have room.
    """

    devices: int
    wide: Differences
    narrow: Differences | None
    dense: Differences
    planned: Counter[ModuleTransfer]
    module: Counter[ModuleTransfer]
    final: Counter[str]
    routing: Counter[ModuleTransfer] = field(default_factory=Counter)
    mask_bytes: Fraction = Fraction(0)
    chooses: bool = False
    lost: tuple[tuple[int, int], tuple[int, int]] | None = None

    @property
    def equal(self) -> bool:
        """Whether the module's collectives are those of the plan, one by one, and none of a kind was added or lost."""
        kinds = kinds_of(self.planned)
        kept = all(
            self.final[k] == n or (k == CollectiveKind.ALL_REDUCE and 0 < self.final[k] < n) for k, n in kinds.items()
        )
        return self.planned == self.module and kept and set(self.final) == set(kinds)

    @property
    def agrees(self) -> bool:
        """Whether the results are those of the reference and of the NumPy backend, up to rounding: up to twice that of
        the unsharded program, where that is more than is common."""
        wide, dense = self.wide.largest, self.dense.largest
        within = dense <= MOST_ROUNDED and wide <= max(TOLERANCE, 2 * dense)
        return within and (
            self.narrow is None or self.chooses or max(self.narrow.reference, self.narrow.numpy) <= NARROW_TOLERANCE
        )

    @property
    def sound(self) -> bool:
        """Whether everything is as planned."""
        return self.equal and self.agrees


def require_jax() -> None:
    """Raise InputError where JAX is missing, or too old for what is emitted."""
    hint = "install it with `pip install 'escc[jax]'`"
    try:
        found = version("jax")
    except PackageNotFoundError:
        raise fail("JAX is not installed.", hint=hint) from None
    if tuple(int(n) for n in found.split(".")[:2]) < OLDEST:
        raise fail(f"JAX {found} is too old; {'.'.join(map(str, OLDEST))} or newer is needed.", hint=hint)


def check_jax(compiled: CompiledPhase) -> JaxReport:
    """Emit one phase as JAX, run it on shrunken dims with random data, and compile it at full size.

    Raises InputError where JAX is missing or too old, or where even the shrunken dims are too large;
    or where results differ that are not finite in floats of 32 bits; InternalError where the emitted program
    does not run or compile.
    """
    require_jax()
    program, spmd = in_memory_order(compiled.program, compiled.spmd, compiled.platform)
    shrunken = shrink(program, [spmd])
    small, [local] = shrunken.program, shrunken.spmds
    refuse_large(local)
    sizes, true = dict(local.sizes), small.true_sizes(dict(local.sizes))
    ends = _ends(small, local)
    drawn = representable(small, random_stored(small, true, seed=0))
    stored = zero_padded(small, sizes, drawn)
    values = small.table()
    finite = Watch(largest=dict.fromkeys(values, LARGEST_F32))
    expected = run_reference(small, true, drawn, ends, finite=finite)
    try:
        on_chips = run_spmd(local, stored, ends).results
    except ExecutionError as error:
        if finite.first is not None:
            raise incomparable(spmd.phase, finite.first) from None
        raise InternalError(f"the plan of phase `{spmd.phase}` does not run: {error}") from error
    names = names_of(spmd, contexts_of(spmd), ())
    order = [leaf.value for kind in (Kind.PARAM, Kind.CACHE, Kind.INPUT) for leaf in names.of(kind)]
    with tempfile.TemporaryDirectory(prefix="escc-") as folder:
        path = Path(folder)
        text = emit_jax(program, spmd, compiled.estimate, platform=compiled.platform)
        (path / "step.py").write_text(text, encoding="utf-8")
        arrays = [stored[name] for name in order] + [np.asarray(ends[dim]) for dim in names.contexts]
        np.savez(path / "stored.npz", *arrays)
        run_processes([(CHILD, folder)], spmd.mesh.chips)
        again = partial(run_reference, small, true, drawn, ends)
        read = _Read(small, local, program.results, names, sizes, ends, expected, on_chips, again)
        narrow = {value.dtype for value in spmd.values} & {Dtype.BF16, Dtype.F16, Dtype.FP8, Dtype.FP4, Dtype.E8M0}
        texts = [(path / name).read_text() for name in ("partitioned.txt", "final.txt")]
        lost = _lost(path / "lost.npz", local)
        wide, dense = (read.either(path / f"{name}.npz") for name in ("wide", "dense"))
        other = read.differences(path / "narrow.npz")
    try:
        module, final = (collectives_of(text, spmd.mesh) for text in texts)
    except ModuleError as error:
        raise InternalError(f"the compiled module of phase `{spmd.phase}` cannot be read: {error}") from error
    rows = packed(spmd)
    masks = masks_of(rows)
    roomy = with_room(spmd, room_of(rows))
    wanted = planned(roomy, compiled.estimate, masks, compiled.for_tpu)
    beside = sent_bytes(planned(roomy, compiled.estimate)) - sent_bytes(wanted)
    routing = Counter({sent: times for sent, times in module.items() if sent.routing})
    module, final = (Counter({s: n for s, n in each.items() if not s.routing}) for each in (module, final))
    results = (wide, other if narrow else None, dense)
    report = JaxReport(spmd.mesh.chips, *results, wanted, module, kinds_of(final), routing, beside, chooses(spmd), lost)
    if not report.agrees and report.narrow is not None and finite.first is None:
        finite.largest = {name: LARGEST_F16 if v.dtype is Dtype.F16 else LARGEST_F32 for name, v in values.items()}
        run_reference(small, true, drawn, ends, finite=finite)
    if not report.agrees and finite.first is not None:
        raise incomparable(spmd.phase, finite.first)
    return report


def _lost(file: Path, spmd: SpmdProgram) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """How many chosen entries, and of how many tokens, found no room in a run; and how many there were of each. A token
    counts once in every layer, for each mask."""
    if not file.exists():
        return None
    rows, sizes, entries, tokens = packed(spmd), dict(spmd.sizes), 0, 0
    for placed in walk(spmd.body):
        if isinstance(placed.item, Compute) and (packing := rows.packings.get(placed.item.result)):
            each = placed.times * math.prod(sizes[d] for d in packing.per)
            entries, tokens = entries + each * packing.chosen.keep, tokens + each
    with np.load(file) as found:
        lost, of_tokens = found["arr_0"].sum(0)
    return (int(lost), int(of_tokens)), (entries, tokens)


def _ends(program: Program, spmd: SpmdProgram) -> dict[str, int]:
    """How much of each context is filled: one place less than all, where that leaves room for what is appended."""
    sizes = dict(spmd.sizes)
    ends = {}
    for dim in contexts_of(spmd):
        entries = max((sizes[op.source] for op in appends(program).values() if op.counted == dim), default=1)
        ends[dim] = max(sizes[dim] - 1, min(entries, sizes[dim]))
    return ends


@record
class _Read:
    """What the results of a run are compared with. `again`: the reference, which takes how another run `rounded`."""

    program: Program
    spmd: SpmdProgram
    results: Sequence[str]
    names: Names
    sizes: Mapping[str, int]
    ends: Mapping[str, int]
    expected: Mapping[str, Array]
    on_chips: Mapping[str, Array]
    again: Callable[..., Mapping[str, Array]]

    def either(self, file: Path) -> Differences:
        """Compare a run in floats of 32 bits. Where it is not as near as it should be, and codes are rounded in it, the
        reference then has its codes of what lies halfway, and the NumPy backend what it has more than the reference."""
        first = self.differences(file)
        if first.largest <= TOLERANCE or not (rounded := self._rounded(file)):
            return first
        apart = [_difference(same, self.expected[its]) for its, _, same in self._found(file) if not self._whole(its)]
        second = self.differences(file, self.again(rounded=rounded))
        return replace(second, numpy=second.reference + max(apart, default=0.0))

    def differences(self, file: Path, expected: Mapping[str, Array] | None = None) -> Differences:
        """Compare what a run left with the reference, or with what is `expected` for it, and with the NumPy backend."""
        expected = self.expected if expected is None else expected
        errors, others, whole = [0.0], [0.0], []
        for its, actual, same in self._found(file):
            if self._whole(its):
                whole.append(float(np.mean(actual != expected[its])))
                continue
            errors.append(_difference(actual, expected[its]))
            others.append(_difference(actual, same))
        return Differences(max(errors), max(others), max(whole, default=None))

    def _whole(self, name: str) -> bool:
        return self.program.table()[name].dtype in INTEGERS

    def _found(self, file: Path) -> list[tuple[str, Array, Array]]:
        """The results of a run at their true places, and the caches that it wrote, by the reference's names; beside
        each what the NumPy backend has."""
        versions = {cache: op.result for cache, op in appends(self.program).items()}
        caches = sorted(self.names.of(Kind.CACHE), key=lambda leaf: leaf.path)
        pairs = [(ours, its) for ours, its in zip(self.spmd.results, self.results, strict=True)]
        pairs += [(version, version) for leaf in caches for version in [versions.get(leaf.value)] if version]
        kept = [True] * len(self.results) + [leaf.value in versions for leaf in caches]
        with np.load(file) as found:
            arrays = [found[f"arr_{i}"] for i in range(len(found.files))]
        true = partial(true_part, self.program, self.sizes)
        left = [array for array, keep in zip(arrays, kept, strict=True) if keep]
        return [
            (its, true(its, actual), true(its, self.on_chips[ours]))
            for (ours, its), actual in zip(pairs, left, strict=True)
        ]

    def _rounded(self, file: Path) -> dict[str, Rounded]:
        """The codes that a run appended to caches, by what was appended."""
        values, true = self.program.table(), self.program.true_sizes(self.sizes)
        left = {its: actual for its, actual, _ in self._found(file)}
        made = rounded_caches(self.program)
        codes = {new: appended(self.program, op, left[op.result], true, self.ends) for new, op in made.items()}
        return {new: Rounded(each, slack_of(values[new].dtype)) for new, each in codes.items() if each is not None}


def _difference(actual: Array, expected: Array) -> float:
    """As `largest_difference`; what floats of 32 bits do not hold is infinite there."""
    with np.errstate(over="ignore"):
        return largest_difference(actual, expected.astype(np.float32).astype(float))


def jax_check_text(compiled: CompiledPhase, report: JaxReport) -> str:
    """The sentences and the table of one phase."""
    return "\n".join(_lines(compiled, report)) + "\n"


def _lines(compiled: CompiledPhase, report: JaxReport) -> Iterator[str]:
    devices = plural(report.devices, "CPU device")
    yield f'JAX program of "{compiled.spmd.name}", phase {compiled.phase}, on {devices}'
    yield ""
    yield "Largest relative differences, at small sizes"
    rows: list[tuple[str, ...]] = [("", "dense reference", "NumPy backend", "integers that differ")]
    rows.append(("float32", *_differences(report.wide)))
    if report.narrow is not None:
        rows.append(("declared types", *_differences(report.narrow)))
    rows.append(("unsharded, float32", *_differences(report.dense)))
    yield from table(rows, left=1)
    if report.chooses and report.narrow is not None:
        yield "  Rounding to declared types may change what is chosen, so that these differences are not judged."
    yield ""
    yield "Collectives of the module compiled at full size, after partitioning, with the bytes that a device sends"
    yield from table(list(collective_rows(report.planned, report.module)), left=2)
    counted, wanted = (float(sent_bytes(which)) for which in (report.module, report.planned))
    verdict = "as planned" if report.equal else f"NOT the {wanted:,.15g} planned"
    yield f"  {counted:,.15g} bytes in all, {verdict}"
    yield from _on_rows(compiled, report)
    yield f"  in the final module: {', '.join(f'{n} {kind}' for kind, n in sorted(report.final.items())) or 'none'}"


def _on_rows(compiled: CompiledPhase, report: JaxReport) -> Iterator[str]:
    """What is said of chosen values."""
    rows = packed(compiled.spmd)
    room = room_of(rows)
    for name, times in room.items():
        one = rows.packings[name].chosen
        asked = "all" if rows.capacity is None else f"{float(rows.capacity):g} times what is expected"
        whole = "" if times == rows.capacity else f": in whole rows {float(times):.4g} times what is expected"
        what = "the blocks in which" if one.merged else "what"
        yield f"  There is room for {asked} of {what} `{one.mask}` chooses{whole}."
    if any(times != rows.capacity for times in room.values()):
        plain = float(sent_bytes(planned(compiled.spmd, compiled.estimate, masks_of(rows))))
        what = "expected" if rows.capacity is None else "asked for"
        yield f"  The plan counts {plain:,.15g} bytes, of the rows that are {what}."
    if report.routing:
        beside = float(sent_bytes(report.routing))
        plan = f"; the plan counts {float(report.mask_bytes):,.15g} for masks" if report.mask_bytes else ""
        runs = report.routing.total()
        yield f"  Which rows are sent is said in {beside:,.15g} bytes more, in {runs} collectives{plan}."
    if report.lost is not None:
        (lost, tokens), (entries, every) = report.lost
        yield f"  At small sizes {tokens} of {every} tokens lose {lost} of {entries} chosen entries, for want of room."
    yield from (f"  {reason}" for reason in rows.reasons)


def _differences(found: Differences) -> tuple[str, ...]:
    whole = "-" if found.whole is None else f"{found.whole:.1%}"
    return f"{found.reference:.1e}", f"{found.numpy:.1e}", whole
