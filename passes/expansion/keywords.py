"""The dims and numbers in the call of a composite: `over=E`, `at=L into M`, `mask=causal(L, M)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.diagnostics import listed
from ...ir.record import record
from ...ir.text.surface import Argument, Call, DimList, Ident, Into, Keyword, Name, Number, Numbers
from .arguments import BASE, EPSILON, Arguments, Causal, Composite, Scaling
from .dims import MAX_SIZE, DimTable
from .report import Refused
from .scalings import ARGUMENTS, First, Linear, Llama3, Longer, LongRope, Yarn, yarn_attention


@record
class Word:
    """A keyword of composites: an example, and what it says."""

    example: str
    meaning: str


KEYWORDS = {
    "over": Word("over=E", "the dim that the function goes over, or several: `over=[E, F]`"),
    "mask": Word("mask=causal(L, M)", "which scores count; those of a row that sees nothing become zeros"),
    "among": Word("among=m", "a mask, as `choose` makes them: what it leaves out does not count"),
    "sink": Word("sink=z", "a score more for every sum, and for its maximum, whose share is given to nothing"),
    "window": Word("window=128", "a query sees its own place and those before it, so many together"),
    "chunk": Word(
        "chunk=8192", "a query sees its own chunk alone, of those into which the context is cut, so many places each"
    ),
    "of": Word("of=M", "the dim along which places are counted, of a cache that keeps the last ones alone and wraps"),
    "eps": Word("eps=1e-5", f"what a norm adds to the variance; {EPSILON:g} without it"),
    "at": Word("at=L into M", "where the entries along L stand: at the end of what is filled of M"),
    "base": Word("base=500000", f"the base of the frequencies; {BASE:g} without it"),
    "scaling": Word("scaling=linear(4)", "slows the frequencies down, for contexts longer than trained on"),
    "keep": Word("keep=K", "the dim that counts what is kept, `top_k`'s last; of `choose` a number, `keep=2`"),
}

VALUES = ("sink", "among")  # keywords that take a value, or a number
NARROWING = ("window", "chunk", "of")  # what `causal` takes
KEEP_COUNT = "keep=2"  # where it is a number, and not a dim

Pair = tuple[str, str]


def dim_arguments(call: Call, count: int) -> list[Ident]:
    """The dims that a call such as `size(E)` names. Raises Refused when they are not `count` dims."""
    names = [Ident(a.name, a.span) for a in call.arguments if isinstance(a, Name)]
    if len(names) != len(call.arguments) or len(names) != count or call.keywords:
        dims = "one dim" if count == 1 else f"{count} dims"
        raise Refused(f"`{call.function.name}` takes {dims}.", call.span)
    return names


def positional_arguments(dims: DimTable, call: Call, composite: Composite) -> tuple[tuple[Argument, ...], Pair | None]:
    """The values of a call, and the dims of the `L into M` that some composites take last."""
    if not composite.into:
        return call.arguments, None
    *values, last = call.arguments or (None,)
    if not isinstance(last, Into):
        raise Refused(f"The last argument of `{call.function.name}` is `L into M`.", call.span)
    return tuple(v for v in values if v is not None), _into(dims, last, call.function.name)


def with_keywords(given: Arguments, dims: DimTable, call: Call, composite: Composite, into: Pair | None) -> Arguments:
    """The arguments with what the keywords of the call say. Raises Refused where they do not fit."""
    found = _keywords(call, composite)
    name = call.function.name
    return replace(
        given,
        over=_over(dims, found["over"]) if "over" in found else (),
        into=_at(dims, found["at"], name) if "at" in found else into,
        of=_counted(dims, found["of"]) if "of" in found else None,
        keep=_counted(dims, found["keep"]) if "keep" in found and not composite.counts else None,
        count=_count(found["keep"]) if "keep" in found and composite.counts else None,
        causal=_mask(dims, found["mask"]) if "mask" in found else None,
        base=_positive(found["base"]) if "base" in found else given.base,
        epsilon=_positive(found["eps"]) if "eps" in found else given.epsilon,
        scaling=_scaling(found["scaling"]) if "scaling" in found else None,
    )


def check_words(call: Call, composite: Composite) -> None:
    """Raise Refused where a call has a keyword that the composite does not have."""
    name, allowed = call.function.name, composite.required + composite.allowed
    for keyword in call.keywords:
        word = keyword.name.name
        if composite.has(word):
            continue
        hint = f"it takes {', '.join(f'`{a}=`' for a in allowed)}" if allowed else "it takes none"
        if word in composite.values:
            hint = f"`{word}` is given by its place: `{name}({', '.join(composite.values)}, ...)`"
        raise Refused(f"`{name}` has no keyword `{word}`.", keyword.name.span, hint)


def _keywords(call: Call, composite: Composite) -> dict[str, Keyword]:
    name, found = call.function.name, dict[str, Keyword]()
    for keyword in call.keywords:
        word = keyword.name.name
        if word in found:
            raise Refused(f"The keyword `{word}` is given twice.", keyword.name.span)
        found[word] = keyword
    for word in composite.required:
        if word not in found:
            example = KEEP_COUNT if word == "keep" and composite.counts else KEYWORDS[word].example
            raise Refused(f"`{name}` needs `{word}=`.", call.span, f"write `{name}(..., {example})`")
    return found


def _over(dims: DimTable, keyword: Keyword) -> tuple[str, ...]:
    match keyword.value:
        case Name(name, span):
            return dims.distinct([Ident(name, span)])
        case DimList(names) if names:
            return dims.distinct(names)
        case _:
            raise Refused("`over=` takes a dim, or several in brackets.", keyword.name.span, "write `over=[A, B]`")


def _counted(dims: DimTable, keyword: Keyword) -> str:
    if not isinstance(keyword.value, Name):
        raise Refused(f"`{keyword.name.name}=` takes a dim.", keyword.name.span)
    return dims.single(Ident(keyword.value.name, keyword.value.span), f"`{keyword.name.name}=`")


def _count(keyword: Keyword) -> int:
    value, name = keyword.value, keyword.name.name
    if not isinstance(value, Number) or not value.value.is_integer() or not 1 <= value.value <= MAX_SIZE:
        example = KEEP_COUNT if name == "keep" else KEYWORDS[name].example
        raise Refused(f"`{name}=` takes a whole number from 1 on.", keyword.name.span, f"write `{example}`")
    return int(value.value)


def _at(dims: DimTable, keyword: Keyword, name: str) -> Pair:
    if not isinstance(keyword.value, Into):
        raise Refused("`at=` takes `L into M`.", keyword.name.span)
    return _into(dims, keyword.value, name)


def _into(dims: DimTable, into: Into, name: str) -> Pair:
    return dims.single(into.source, f"`{name}`"), dims.single(into.target, f"`{name}`")


def _mask(dims: DimTable, keyword: Keyword) -> Causal:
    call = keyword.value
    if not isinstance(call, Call) or call.function.name != "causal":
        raise Refused("`mask=` takes `causal(L, M)`.", keyword.name.span)
    narrowed: dict[str, int] = {}
    of: str | None = None
    for word in call.keywords:
        name = word.name.name
        if name not in NARROWING:
            hint = f"it takes {', '.join(f'`{known}=`' for known in NARROWING)}"
            raise Refused(f"`causal` has no keyword `{name}`.", word.name.span, hint)
        if name in narrowed or (name == "of" and of):
            raise Refused(f"The keyword `{name}` is given twice.", word.name.span)
        if name == "of":
            of = _counted(dims, word)
        else:
            narrowed[name] = _count(word)
    query, key = dim_arguments(replace(call, keywords=()), 2)
    if query.name == key.name:
        hint = f"declare an alias for the keys, `dim {key.name}2 = {key.name}`"
        raise Refused("`causal` takes two different dims.", key.span, hint)
    return Causal(dims.single(query, "`causal`"), dims.single(key, "`causal`"), of=of, **narrowed)


def _positive(keyword: Keyword) -> float:
    if not isinstance(keyword.value, Number) or keyword.value.value <= 0:
        raise Refused(f"`{keyword.name.name}=` takes a number above 0.", keyword.name.span)
    return keyword.value.value


def _scaling(keyword: Keyword) -> Scaling:
    call = keyword.value
    if not isinstance(call, Call) or call.function.name not in ARGUMENTS or call.keywords:
        hint = "write `scaling=linear(4)` or `scaling=llama3(8, 1, 4, 8192)`"
        raise Refused("`scaling=` takes `linear`, `first`, `llama3`, `yarn` or `longrope`.", keyword.name.span, hint)
    match call.function.name:
        case "linear" as name:
            return Linear(*_above_zero(call, call.arguments, ARGUMENTS[name]))
        case "first" as name:
            (pairs,) = _above_zero(call, call.arguments, ARGUMENTS[name])
            if not pairs.is_integer():
                raise Refused("`first` takes a whole number of pairs.", call.span)
            return First(pairs)
        case "llama3" as name:
            factor, low, high, original = _above_zero(call, call.arguments, ARGUMENTS[name])
            if low >= high:
                raise Refused("The low frequency factor of `llama3` is below the high one.", call.span)
            return Llama3(factor, low, high, original)
        case "yarn":
            return _yarn(call)
        case _:
            return _longrope(call)


def _yarn(call: Call) -> Yarn:
    arguments = list(call.arguments)
    exact = bool(arguments) and isinstance(arguments[-1], Name) and arguments[-1].name == "exact"
    if exact:
        arguments.pop()
    names = ARGUMENTS["yarn"][: 5 if len(arguments) > 4 else 4]
    factor, fast, slow, original, *given = _above_zero(call, arguments, names)
    if fast < slow:
        raise Refused("The fast beta of `yarn` is not below the slow one.", call.span)
    return Yarn(factor, fast, slow, original, given[0] if given else yarn_attention(factor), exact)


def _above_zero(call: Call, arguments: Sequence[Argument], names: Sequence[str]) -> list[float]:
    """The numbers of a call, one for each of the names."""
    numbers = [a.value for a in arguments if isinstance(a, Number) and a.value > 0]
    if len(numbers) != len(arguments) or len(numbers) != len(names):
        every = listed(names)
        more = "; the word `exact` may stand behind them" if call.function.name == "yarn" else ""
        raise Refused(f"`{call.function.name}` takes numbers above 0: {every}{more}.", call.span)
    return numbers


def _longrope(call: Call) -> LongRope:
    match call.arguments:
        case (Number(attention), Numbers(factors)) if attention > 0 and min(factors) > 0:
            return LongRope(attention, factors)
        case (Number(attention), Numbers(factors), Number(original), Number(more), Numbers(others)) if (
            min(attention, original, more, *factors, *others) > 0
        ):
            return LongRope(attention, factors, Longer(original, more, others))
    hint = (
        "write `scaling=longrope(1.19, [1, 1.02, 1.05])`, or behind that `4096`, and the same two for longer contexts"
    )
    raise Refused(
        "`longrope` takes the attention factor, and a number above 0 for each pair in a list.", call.span, hint
    )
