"""What is broken: for each kind of input real ones, and the command that is given what was made of one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from escc.compiler.calibrate.measurements import own_measurements
from escc.compiler.plan.pipeline import model_names, model_source

from .harness import Outcome, run
from .mutations import GENTLE, MOST, MUTATIONS, mutated, value

ROOT = Path(__file__).parents[2]
TINY = """\
model "tiny"
dim B, L, M
dim E = 16, F = 32 pad 64, Q = 8
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param Wq, Wk: int8[E,Q] * f32[Q]
  param Wi: bf16[E,F] @ E_xF
  param Wd: bf16[F,E]
  param Wo: bf16[Q,E]
  param scale: bf16[E]
  cache keys: bf16[B,M,Q]
  k[B,L,Q] = x[B,L,E] * Wk[E,Q]
  q[B,L,Q] = x[B,L,E] * Wq[E,Q]
  r = rope(q, over=Q, at=L into M)
  ks = append(keys, k, L into M)
  s[B,L,M] = r[B,L,Q] * ks[B,M,Q]
  p = softmax(s, over=M, mask=causal(L, M))
  o[B,L,Q] = p[B,L,M] * ks[B,M,Q]
  a[B,L,E] = o[B,L,Q] * Wo[Q,E]
  n = rmsnorm(x, scale, over=E)
  u[B,L,F] = n[B,L,E] * Wi[E,F]
  h = gelu(u)
  d[B,L,E] = h[B,L,F] * Wd[F,E]
  return x + a + d * 0.5
}
main(x: bf16[B,L,E]) { return repeat 3 layer(x) }
phase prefill { B = 4, L = 8, M = 8, calls = 1 }
phase decode { B = 4, L = 1, M = 8 }
"""
SMALL = """\
model "small"
dim B = 8, E = 16, F = 32
main(x: bf16[B,E]) {
  param Wi: bf16[E,F]
  param Wo: bf16[F,E]
  u[B,F] = x[B,E] * Wi[E,F]
  h = gelu(u)
  y[B,E] = h[B,F] * Wo[F,E]
  return y
}
"""
PINS = """\
stored Wi    EF_xy
stored Wo    F_xyE
stored x     BE_xy
use    u.x   BE   # gathered
result u     BF_xy
use    h.u   [B, F/x.y]
result y     BE partialsum-xy
stored y     BE_xy
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "eos_token_id": [1, 2], "use_cache": True,
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2,
    "n_head": 4, "n_ctx": 128, "n_positions": 128, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command on a broken input, whose text is `made`."""

    arguments: tuple[str, ...]
    made: str
    output: Path | None = None

    def run(self) -> Outcome:
        """What came of it."""
        return run(self.arguments, self.output)


def _texts(folder: str, pattern: str) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob(pattern))]


@cache
def _models() -> list[str]:
    """Whole programs, small ones more often, and each construct in its wrong forms."""
    whole = [*_texts("examples", "*.esti"), *(model_source(name).text for name in model_names()[:3])]
    return [TINY] * 8 + [SMALL] * 4 + whole + _texts("tests/golden/diagnostics", "*.esti")


def _file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(text.encode(errors="surrogatepass"))
    return str(path)


def _broken(rng: random.Random, texts: Sequence[str]) -> str:
    return mutated(rng, rng.choice(texts), texts, 3, rng.choice([GENTLE, MUTATIONS]))


def model(rng: random.Random, folder: Path) -> Case:
    """A model that is checked."""
    made = _broken(rng, _models())
    return Case(("check", _file(folder, "m.esti", made)), made)


def compiled(rng: random.Random, folder: Path) -> Case:
    """A small model that is compiled, or whatever else a plan is made for."""
    made = mutated(rng, rng.choice([TINY, SMALL]), [TINY, SMALL], 2, GENTLE)
    file = _file(folder, "m.esti", made)
    chips = rng.choice(["2", "2x2", "x=2,y=3", "node=2,gpu=4"])
    more = rng.choice([(), (), ("--overlap",), ("--network", "links"), ("--objective", "memory"), ("--pad", "auto")])
    command = rng.choice(["compile", "compile", "explain"])
    if command == "explain":
        return Case((command, file, "--chips", chips, "--format", rng.choice(["text", "latex", "json"])), made)
    form, out = rng.choice(["text", "numpy", "jax", "specs", "json", "html"]), folder / "out"
    emit = ("--emit", form, "-o", str(out), "--force")
    return Case((command, file, "--chips", chips, *more, *rng.choice([(), emit, ("--check",)])), made, out)


def pins(rng: random.Random, folder: Path) -> Case:
    """A file of pins."""
    made = _broken(rng, [PINS, *_texts("examples/pins", "*.pins")])
    file, beside = _file(folder, "m.esti", SMALL), _file(folder, "m.pins", made)
    return Case(("compile", file, "--chips", "2x2", "--pin", beside), made)


def hardware(rng: random.Random, folder: Path) -> Case:
    """A hardware file, shown or compiled for."""
    made = _broken(rng, _texts("cost", "*.toml"))
    file = _file(folder, "h.toml", made)
    small = _file(folder, "m.esti", SMALL)
    compiling = ("compile", small, "--chips", rng.choice(["4", "2x2"]), "--hardware", file)
    return Case(rng.choice([("hardware", file), ("hardware", file), compiling]), made)


def measurements(rng: random.Random, folder: Path) -> Case:
    """A file of measurements, read to its end for a chip of which it has no rows that could be planned."""
    made = _broken(rng, [own_measurements().text[-3000:], own_measurements().text])
    made = made.replace("tpu-v4", rng.choice(["tpu-v3", "tpu-v3", "a100-80"]))
    return Case(("calibrate", _file(folder, "m.csv", made), "--hardware", "h100", "-o", str(folder / "o.toml")), made)


LENGTHS = "id,context,ending\n" + "".join(f"c{n // 4},{12 + n // 4 * 7},{3 + n % 5}\n" for n in range(40))


def lengths(rng: random.Random, folder: Path) -> Case:
    """A file of requests, scheduled."""
    made = _broken(rng, [LENGTHS])
    file, model = _file(folder, "l.csv", made), _file(folder, "m.esti", TINY)
    form = rng.choice(["text", "csv", "json"])
    return Case(("schedule", file, model, "--chips", "2", "--emit", form, *rng.choice([(), ("--theta", "90")])), made)


def config(rng: random.Random, folder: Path) -> Case:
    """A config of Hugging Face's, imported."""
    texts = [json.dumps(CONFIG, indent=2), json.dumps(GPT2, indent=2)]
    made = _broken(rng, texts)
    more = rng.choice([(), ("-o", str(folder / "made.esti"), "--force")])
    return Case(("import", _file(folder, "config.json", made), *more), made, folder / "made.esti")


def mesh(rng: random.Random, folder: Path) -> Case:
    """A mesh, a tensor and its sizes."""
    texts = ["4x4x4", "node=2,gpu=8", "2x2", "[batch, d_model]", "BLE", "B=512,L=1,E=18432", "batch=8,d_model=64"]
    given = {"tensor": "BLE", "--dims": "B=512,L=1,E=18432", "--chips": "4x4"}
    name = rng.choice(list(given))
    given[name] = made = (_broken(rng, texts) if rng.random() < 0.7 else value(rng)).replace("\0", "")
    return Case(("layouts", "--dims", given["--dims"], "--chips", given["--chips"], "--", given["tensor"]), made)


SWEEP = ("--chips", "4", "--batch", "4,8", "--jobs", "1")


@cache
def _swept(folder: Path) -> tuple[str, str]:
    """A model, and the results file of a sweep of it, of two points."""
    file, results = _file(folder, "swept.esti", SMALL), folder / "swept.jsonl"
    assert run(("sweep", file, *SWEEP, "-o", str(results)), results).code == 0
    return file, results.read_text()


def results(rng: random.Random, folder: Path) -> Case:
    """A results file, which a sweep goes on with."""
    file, text = _swept(folder)
    made = _broken(rng, [text])
    path = _file(folder, "made.jsonl", made)
    return Case(("sweep", file, *SWEEP, "-o", path), made, Path(path))


PLANNING = "--chips --phase --hardware --set --pin"
OPTIONS: tuple[tuple[str, str, str], ...] = (
    ("check", "", "--set --phase --pin --pad --chips"),
    ("compile", "--chips 2", f"{PLANNING} --network --hbm-fraction --objective --solver --emit --pad"),
    ("explain", "--chips 2", f"{PLANNING} --form --format --against --over"),
    ("sweep", "--chips 2 --batch 8 --jobs 1", "--chips --batch --context --weights --phase --hardware --hbm-fraction"),
    ("sweep", "--chips 2 --batch 8 --jobs 1", "--set --pad --max-latency --max-cost --emit"),
    ("run", "--chips 2 --tokens 2", "--chips --hardware --seed --tokens --set"),
)
KNOWN = ["8", "2x2", "4..8", "B=8", "auto", "main", "h100", "links", "0.5", "time", "json", "int8", "30ms", "a=b"]


def option(rng: random.Random, folder: Path) -> Case:
    """An option's value."""
    command, standing, options = rng.choice(OPTIONS)
    given = standing.split()
    made = (_broken(rng, KNOWN) if rng.random() < 0.6 else value(rng)).replace("\0", "")[:MOST]
    name = rng.choice(options.split())
    own = dict(zip(given[::2], given[1::2], strict=True)) | {name: made}
    file = _file(folder, "m.esti", SMALL)
    return Case((command, file, *(f"{key}={text}" for key, text in own.items())), made)


def name(rng: random.Random, folder: Path) -> Case:
    """The name of a file, a model or a chip."""
    made = (_broken(rng, [*model_names(), "tpu-v4", "m.esti"]) if rng.random() < 0.6 else value(rng)).replace("\0", "")
    commands: list[tuple[str, ...]] = [("check",), ("hardware",), ("models", "show"), ("import",)]
    return Case((*rng.choice(commands), "--", made[:5000]), made)


KINDS: dict[str, Callable[[random.Random, Path], Case]] = {
    "model": model,
    "compiled": compiled,
    "pins": pins,
    "hardware": hardware,
    "measurements": measurements,
    "lengths": lengths,
    "config": config,
    "results": results,
    "mesh": mesh,
    "option": option,
    "name": name,
}


def cases(kind: str, folder: Path, numbers: Sequence[int]) -> Iterator[tuple[int, Case]]:
    """The cases of a kind with these numbers; each depends on its number alone."""
    for number in numbers:
        yield number, KINDS[kind](random.Random(f"{kind} {number}"), folder)
