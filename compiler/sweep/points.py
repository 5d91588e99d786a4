"""What a sweep goes over, by which dims, and what is found at each point, as lines of its results file."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from enum import StrEnum
from fractions import Fraction
from importlib.metadata import version
from itertools import product
from typing import Any

from ...cost.hardware import Hardware
from ...cost.predict import Resource
from ...ir.choices import with_skew
from ...ir.diagnostics import Source
from ...ir.dtype import Dtype
from ...ir.program import Program
from ...ir.record import record
from ..plan.pipeline import program_of
from ..plan.serving import Serving
from ..plan.way import Offload

FORM = 5  # of the results file; another number, another form
Data = dict[str, Any]


@record
class Point:
    """A configuration. `context`: after the step, None where the phase keeps its own. `caches`: the type of the caches,
    None where it is the model's. `hardware`: the chip by its name, None in a sweep of one kind."""

    phase: str
    weights: Dtype
    chips: int
    batch: int
    context: int | None
    caches: Dtype | None = None
    hardware: str | None = None

    def __str__(self) -> str:
        chips = "chips" if self.hardware is None else self.hardware
        context = "" if self.context is None else f", context {self.context}"
        types = f"{self.weights} weights" + ("" if self.caches is None else f", {self.caches} caches")
        return f"{self.phase} on {self.chips} {chips}, batch {self.batch}{context}, {types}"


@record(kw_only=True)
class Asked:
    """A model, and what holds wherever it is planned. `settings`, `pads`: sizes that some of its dims have, or are
    padded to; `hbm_fraction` of a chip's memory is used. `any_shape`: whether slices that are not offered count, too.
    `skew`: how many times the mean load of chosen entries the busiest chip has."""

    source: Source
    settings: tuple[tuple[str, int], ...] = ()
    pads: tuple[tuple[str, int], ...] = ()
    hbm_fraction: float = 1.0
    any_shape: bool = False
    skew: Fraction = Fraction(1)

    def program(
        self,
        phase: str | None = None,
        weights: Dtype | None = None,
        caches: Dtype | None = None,
        sizes: tuple[tuple[str, int], ...] = (),
    ) -> Program:
        """The model, or a phase of it, with weights and caches as they are, or in other types; `sizes` that some of its
        dims have as well. Raises InputError where it is wrong."""
        settings = dict(self.settings) | dict(sizes)
        return with_skew(program_of(self.source, settings, dict(self.pads), phase, weights, caches), self.skew)


@record
class Sweep(Asked):
    """A model at all points at which it is planned: on each kind of chips each phase with each format of weights and
    of caches, count of chips, batch and context. `offload`, `ahead`: what may be streamed from the host, and how long
    before. `stages`: how many there are, 0 for as many as are quickest, None for none."""

    dims: Serving
    hardware: tuple[Hardware, ...]
    phases: tuple[str, ...]
    weights: tuple[Dtype, ...]
    chips: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...] | tuple[None]
    caches: tuple[Dtype | None, ...] = (None,)
    offload: Offload = Offload.NONE
    ahead: int = 1
    stages: int | None = None

    def chip(self, point: Point) -> Hardware:
        """The chip that a point is planned for."""
        return self.hardware[0 if point.hardware is None else [one.name for one in self.hardware].index(point.hardware)]

    @property
    def points(self) -> tuple[Point, ...]:
        """All of them, in the order of the results file."""
        names = [one.name for one in self.hardware] if len(self.hardware) > 1 else [None]
        axes = product(names, self.phases, self.weights, self.caches, self.chips, self.batches, self.contexts)
        return tuple(
            Point(phase, weights, chips, batch, context, caches, name)
            for name, phase, weights, caches, chips, batch, context in axes
        )

    def header(self) -> Data:
        """What tells this sweep from others: the first line of its results file."""
        return {
            "escc_sweep": FORM,
            "escc": version("escc"),
            "model": self.source.name,
            "text": hashlib.sha256(self.source.text.encode()).hexdigest(),
            "set": dict(self.settings),
            "pad": dict(self.pads),
            "hardware": [asdict(one) for one in self.hardware],
            "hbm_fraction": self.hbm_fraction,
            "phases": list(self.phases),
            "weights": list(self.weights),
            "caches": list(self.caches),
            "chips": list(self.chips),
            "batches": list(self.batches),
            "contexts": list(self.contexts),
            "any_shape": self.any_shape,
            "offload": self.offload,
            "ahead": self.ahead,
            "stages": self.stages,
            "skew": float(self.skew),
        }


class Status(StrEnum):
    """What is known of a point: its best plan is proven; there is one, and better ones may be; there is none;
    none was found."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


BEATEN = "beaten"
IN_MESH_ORDER = "in mesh order"


@record
class Tried:
    """A slice shape, such as `4x4x4`. `status`: a Status, or BEATEN where every plan is proven to take
    `bound_s` at least, no less than the best shape before it, or IN_MESH_ORDER where it has so many axes that only
    layouts in mesh order were looked at, and no bound is known of others. `seconds`: of its best plan. `reason`: why
    there is none."""

    slice: str
    status: str
    seconds: float | None = None
    bound_s: float | None = None
    reason: str | None = None


@record
class Record:
    """A point and what was found there (`status`: beside all shapes of which not only layouts in mesh order were looked
    at; `bound_s` is 0 where the plan is of such a shape itself): figures of one step on the best slice shape, as in
    cost.predict.Prediction, all None where there is no plan, for `reason`. `way`: what is streamed, or into which
    stages layers are divided."""

    point: Point
    status: Status
    tried: tuple[Tried, ...]
    slice: str | None = None
    latency_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    bound_s: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    hbm_bytes: float | None = None
    hbm_share: float | None = None
    chip_s_per_million: float | None = None
    dollars_per_million: float | None = None
    binds: str | None = None
    spent_s: Mapping[str, float] | None = None
    way: str | None = None
    reason: str | None = None

    def data(self) -> Data:
        """The record as one object of JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        tried = [asdict(one) for one in own.pop("tried")]
        return asdict(own.pop("point")) | own | {"tried": tried}


RESOURCES = [resource.value for resource in Resource]
Form = Callable[[Any], bool]  # whether a value of JSON, other than null, may stand in a field


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_figure(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


SLICE = r"[0-9]+(x[0-9]+)*|[a-z][a-z0-9_]*=[0-9]+(,[a-z][a-z0-9_]*=[0-9]+)*"


def _is_slice(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(SLICE, value) is not None


def _is_spent(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    resources = [
        name for name in RESOURCES if name != Resource.HOST or name in value
    ]  # none waits for it in most plans
    return [*value] == resources and all(map(_is_figure, value.values()))


TRIED: Mapping[str, Form] = {
    "slice": _is_slice,
    "status": frozenset([*Status, BEATEN, IN_MESH_ORDER]).__contains__,
    "seconds": _is_figure,
    "bound_s": _is_figure,
    "reason": _is_text,
}
POINT: Mapping[str, Form] = {
    "phase": _is_text,
    "weights": _is_text,
    "chips": _is_count,
    "batch": _is_count,
    "context": _is_count,
    "caches": _is_text,
    "hardware": _is_text,
}
RECORD: Mapping[str, Form] = dict.fromkeys((field.name for field in fields(Record)[3:]), _is_figure) | {
    "slice": _is_slice,
    "tokens": _is_count,
    "binds": RESOURCES.__contains__,
    "spent_s": _is_spent,
    "way": _is_text,
    "reason": _is_text,
}
PLANNED = (
    "slice",
    "latency_s",
    "bound_s",
    "tokens",
    "hbm_bytes",
    "hbm_share",
    "chip_s_per_million",
    "binds",
    "spent_s",
)


def record_of(data: Mapping[str, Any]) -> Record:
    """The record that an object of JSON is. Raises KeyError, TypeError or ValueError where it is none."""
    caches = None if data["caches"] is None else Dtype(data["caches"])
    point = Point(**_checked(data, POINT) | {"weights": Dtype(data["weights"]), "caches": caches})
    tried = tuple(Tried(**_checked(one, TRIED)) for one in data["tried"])
    found = _checked(data, RECORD)
    lacking = [name for name in PLANNED if found[name] is None]
    if len(lacking) != (0 if found["reason"] is None else len(PLANNED)):
        raise ValueError("it has the figures of a plan, or a reason why there is none")
    return Record(point, Status(data["status"]), tried, **found)


def _checked(data: Mapping[str, Any], forms: Mapping[str, Form]) -> Data:
    """The fields of an object. Raises KeyError or TypeError where one is missing or of another type."""
    for name, admits in forms.items():
        if data[name] is not None and not admits(data[name]):
            raise TypeError(f"`{name}` cannot be so")
    return {name: data[name] for name in forms}
