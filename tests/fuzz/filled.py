"""Inputs of just under 100 kB, each one construct as often as fits: what takes a stage too long if anything does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count, islice

from escc.compiler.calibrate.measurements import COLUMNS

BYTES = 99_000
TOKENS = 49_000  # of a model; the parser refuses 50,000 at once
NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"


def shuffled(number: int) -> str:
    """A name of 63 characters, the same as all others but for their order: alike in all that is quickly compared."""
    step = [s for s in range(2, 63) if 63 % s and s % 3 and s % 7][number % 30]
    turned = "".join(NAME[(k * step + number // 30) % len(NAME)] for k in range(len(NAME)))
    return turned if turned[0].isalpha() else "a" + turned[1:]


def filled(before: str, unit: str, after: str = "", words: int = 1, most: int = 1 << 30) -> str:
    """`unit` as often as fits, each time with {k} its number, {last} that before and {name} a name of its own; `words`:
    the tokens of one, no more than which the parser takes."""
    size, parts = len(before) + len(after), list[str]()
    for k in islice(count(1), min(most, TOKENS // words)):
        part = unit.replace("{k}", f"{k}").replace("{last}", f"{k - 1}")
        part = part.replace("{name}", shuffled(k)) if "{name}" in part else part
        size += len(part)
        if size > BYTES:
            break
        parts.append(part)
    return before + "".join(parts) + after


HEAD = "dim A = 4, B = 4, C = 4, D = 8\n"
OPEN = HEAD + "main(x: f32[A,B]) {\nparam w: f32[B,C]\na0 = x\n"
CLOSE = "return a0\n}\n"
NEST = "block f0(x: f32[A,B]) {{ {first}\nreturn y }}\n{blocks}main(x: f32[A,B]) {{ return {last}(x) }}\n"


def nested(line: str, times: int = 2) -> str:
    """Blocks that each call the one before several times, 15 deep."""
    blocks = "".join(
        f"block f{d}(x: f32[A,B]) {{ y0 = x\n"
        + "".join(f"y{k + 1} = {line.format(f=f'f{d - 1}', k=k)}\n" for k in range(times))
        + f"return y{times} }}\n"
        for d in range(1, 15)
    )
    return HEAD + NEST.format(first="y = softmax(x, over=B)", blocks=blocks, last="f14")


def tree(leaf: str, depth: int) -> str:
    """Calls in calls, two in each."""
    return leaf if depth == 0 else f"maximum({tree(leaf, depth - 1)},{tree(leaf, depth - 1)})"


MODELS: Mapping[str, Callable[[], str]] = {
    "dims": lambda: filled("", "dim A{k} = 2\n", "main(x: f32[A1]) { return x }\n", 5),
    "aliases": lambda: filled("dim A0\n", "dim A{k} = A{last}\n", "main(x: f32[A0]) { return x }\n", 5, 990)
    + "".join(f"phase p{k} {{ A0 = 4 }}\n" for k in range(100)),
    "products": lambda: filled("dim B = 2\ndim A0 = 2\n", "dim A{k} = A0 * B\n", "main(x: f32[B]) { return x }\n", 7),
    "quantised": lambda: filled(
        HEAD + "".join(f"dim P{k} = A*B\n" for k in range(980)) + "main(x: f32[C]) {\nparam p0", ",p{k}",
        ": int8[C,A,B]*f32[A]\nreturn x }\n", 2, 9_900,
    ),
    "groups": lambda: filled("dim A0 = 8\n", "dim A{k} = A0 / 4\n", "main(x: f32[A0]) { return x }\n", 7, 990),
    "zero points": lambda: filled(
        HEAD.replace("D = 8", "D = 8, D2 = D / 2") + "main(x: f32[D]) {\n",
        "param p{k}: (int4[D,A] - int4[D2,A]) * f32[D2,A]\n",
        "return 2 * x\n}\n",
        32,
    ),
    "parameters": lambda: filled(HEAD + "main(x: f32[A]", ",p{k}:f32[A]", ") { return x }\n", 7),
    "params": lambda: filled(OPEN, "param p{k}: f32[A] @ A_x\n", CLOSE, 8),
    "pinned statements": lambda: filled(OPEN, "a{k} @ AB_xyz = x\n", CLOSE, 5),
    "statements": lambda: filled(OPEN, "a{k} = a{last}\n", CLOSE, 4),
    "names alike": lambda: filled(OPEN, "{name} = x\n", CLOSE, 4, 1_300)[:-12] + "b = zz\n" * 200 + "}\n",
    "names that are not there": lambda: filled(OPEN, "b{k} = {name}\n", CLOSE, 4),
    "einsums": lambda: filled(OPEN, "b{k}[A,C]=x[A,B]*w[B,C]\n", CLOSE, 21),
    "one einsum": lambda: filled(OPEN + "b[A,C]=x[A,B]", "*w[B,C]", "\n" + CLOSE, 7),
    "one sum": lambda: filled(OPEN + "b=x", "+x", "\n" + CLOSE, 2, 100),
    "one expression": lambda: OPEN + f"b={tree('x', 12)}\n" + CLOSE,
    "one expression of sums": lambda: OPEN + f"b={tree('sum(x, over=B)', 10)}\n" + CLOSE,
    "one expression, padded": lambda: OPEN.replace("A = 4", "A = 3 pad 4")
    + f"b={tree('x', 12)}\nc=softmax(b,over=A)\n"
    + CLOSE,
    "a table": lambda: filled(
        OPEN + "b=rope(x,over=B,at=A into C,scaling=longrope(1,[1", ",{k}", "]))\n" + CLOSE, 2
    ),
    "a table of longer contexts": lambda: filled(
        OPEN + "b=rope(x,over=B,at=A into C,scaling=longrope(1,[1,2],8,1,[1", ",{k}", "]))\n" + CLOSE, 2
    ),
    "softmaxes": lambda: filled(OPEN, "b{k}=softmax(x,over=B)\n", CLOSE, 10),
    "softmaxes, padded": lambda: filled(
        OPEN.replace("B = 4", "B = 3 pad 4"), "b{k}=softmax(x,over=B)\n", CLOSE, 10, 1_500
    ),
    "norms": lambda: filled(OPEN + "param s: f32[B]\n", "b{k}=layernorm(x,s,over=B)\n", CLOSE, 12),
    "calls": lambda: filled(HEAD + "block f(x: f32[A,B]) { return x }\n" + OPEN[len(HEAD) :], "b{k}=f(x)\n", CLOSE, 7),
    "repeats": lambda: filled(
        HEAD + "block f(x: f32[A,B]) { y = relu(x)\nreturn y }\n" + OPEN[len(HEAD) :], "b{k}=repeat 9 f(x)\n", CLOSE, 9
    ),
    "blocks": lambda: filled(HEAD, "block f{k}(x: f32[A]) { return x }\n", "main(x: f32[A]) { return x }\n", 15),
    "blocks in blocks": lambda: nested("{f}(y{k})"),
    "repeats in repeats": lambda: nested("repeat 1048576 {f}(y{k})", 1),
    "repeats in repeats, padded": lambda: nested("repeat 2 {f}(y{k})", 1).replace("B = 4", "B = 3 pad 4"),
    "results": lambda: filled(OPEN + "return a0", ",x", "\n}\n", 2),
    "indices": lambda: filled(OPEN + "b[A", ",A", "] = x[A,B]\n" + CLOSE, 2),
    "phases": lambda: filled("dim A\nmain(x: f32[A]) { return x }\n", "phase p{k} { A = 4 }\n", "", 7),
    "bindings": lambda: filled("dim A\nmain(x: f32[A]) { return x }\nphase p {\nA = 4", ", A = 4", "\n}\n", 4),
    "huge sizes": lambda: filled("dim D0 = 4\n", "dim D{k} = 1099511627776\n", "", 5, 31)
    + "main(x: f32[" + ",".join(f"D{k}" for k in range(1, 32)) + "]) { return x }\n",
    "huge numbers": lambda: filled(OPEN, "b{k} = power(x, 1e308) * 1e308\n", CLOSE, 13),
    "errors": lambda: filled(OPEN, "b{k} = = x\n", CLOSE, 5),
    "open brackets": lambda: filled(OPEN + "b = ", "(", ""),
    "open braces": lambda: filled(OPEN, "{", ""),
    "newlines": lambda: filled(OPEN, " \n", CLOSE),
    "comments": lambda: filled(OPEN, "# {k} \" @ [\n", CLOSE),
    "one long line": lambda: OPEN + " " * 90_000 + CLOSE,
    "one long name": lambda: OPEN + "b" * 90_000 + " = x\n" + CLOSE,
    "one long number": lambda: OPEN + "b = x * " + "1" * 90_000 + "\n" + CLOSE,
    "one long pin": lambda: OPEN + "b @ [A/" + ".".join(f"a{k}" for k in range(15_000)) + ",B] = x\n" + CLOSE,
    "pins' spaces": lambda: OPEN + ("b @" + " " * 300 + "partial = x\n") * 290 + CLOSE,
}  # fmt: skip

LONG = OPEN + "".join(f"a{k + 1} = a{k}\n" for k in range(2_500)) + "return a2500\n}\n"
PINS: Mapping[str, Callable[[], str]] = {
    "unknown": lambda: filled("", "stored zz{k} A\n"),
    "names alike": lambda: filled("", "result {name} A\n"),
    "long": lambda: filled("use ", "a.", " A\n", 1, 45_000),
    "axes": lambda: "stored x [A/" + ".".join(f"a{k}" for k in range(15_000)) + ",B]\n",
    "axis": lambda: "stored x [A/" + "a" * 90_000 + ",B]\n",
    "twice": lambda: "stored x AB\n" * 8_000,
    "spaces": lambda: "stored x" + " " * 90_000 + "A_x\n",
}
HARDWARE: Mapping[str, Callable[[], str]] = {
    "fields": lambda: filled("", "a{k} = 1\n"),
    "tables": lambda: filled("", "[a{k}]\n"),
    "a dotted key": lambda: filled("a", ".a", " = 1\n"),
    "dotted keys": lambda: filled("", ".".join("a" * 900) + ".a{k} = 1\n"),
    "a string of brackets": lambda: "a = '''\n" + ("[" + " " * 900 + "\n") * 100 + "'''\n",
    "brackets": lambda: "a = " + "[\n" * 45_000,
    "digits": lambda: "[datasheet]\nhbm_bytes = " + "\\\n9" * 30_000,
}
ROW = ",".join(COLUMNS) + "\n"
MEASUREMENTS: Mapping[str, Callable[[], str]] = {
    "columns": lambda: filled("id", ",id"),
    "other columns": lambda: filled("id", ",id{k}"),
    "empty rows": lambda: filled(ROW, ",,,,,,,,,,,,\n"),
    "rows": lambda: filled(ROW, "{k},a,palm-8b,other,prefill,1,1,1,1,bf16,ws-1d,head,1\n"),
    "models": lambda: filled(ROW, "{k},a,m{k},h100,prefill,1,1,1,1,bf16,ws-1d,head,1\n"),
    "quotes": lambda: '"' * BYTES,
    "meshes": lambda: filled(ROW.replace("\n", ",mesh\n"), "{k},a,a,h100,a,1,1,1,1,a,a,a,1," + "9x" * 300 + "\n"),
}
CONFIGS: Mapping[str, Callable[[], str]] = {
    "fields": lambda: filled('{"a": 1', ',\n"a{k}": 1', "}"),
    "twice": lambda: filled('{"a": 1', ', "a": 1', "}"),
    "brackets": lambda: "[" * BYTES,
    "braces": lambda: '{"a":' * 15_000,
    "digits": lambda: '{"vocab_size": ' + "9" * 90_000 + "}",
    "text": lambda: '{"model_type": "' + "\\u0041" * 15_000 + '"}',
    "escapes": lambda: '{"model_type": "' + "\\" * 90_000,
}
OPTIONS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "axes": ("--chips", lambda: filled("a0=1", ",a{k}=1")),
    "sizes of axes": ("--chips", lambda: filled("1", "x1")),
    "a long count": ("--chips", lambda: "9" * BYTES),
    "settings": ("--set", lambda: filled("A=1", ",A{k}=1")),
    "commas": ("--set", lambda: "," * BYTES),
    "a long setting": ("--set", lambda: "A=" + "9" * BYTES),
    "pads": ("--pad", lambda: filled("A=1", ",A{k}=1")),
    "a phase": ("--phase", lambda: "p" * BYTES),
    "a chip": ("--hardware", lambda: "p" * BYTES),
}
