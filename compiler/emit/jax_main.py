"""The end of an emitted JAX module as text: run as a program it compares itself with the unsharded program, at small
sizes, or runs a step with the weights of a checkpoint."""

from __future__ import annotations

import textwrap

from ...ir.dataflow import ops
from ...ir.dtype import Dtype
from ...ir.program import Choose, Kind, Map, TopK
from ...ir.spmd import SpmdProgram
from .jax_streams import Streams
from .jax_text import NARROW
from .jax_tree import Names

# Of the largest element, in floats of 32 bits: how far results may be from those of the unsharded program; and where
# rounding takes these farther than that from what they were exactly, as over many layers of many norms, twice as far as
# that, which is not more than the second.
TOLERANCE, MOST_ROUNDED = 1e-5, 3e-5
# How often numbers are drawn at most, where a choice or a code hangs on rounding: it does where numbers on either side,
# so many times as far as the next ones, have other results.
MOST_DRAWN, BESIDE = 5, (-16, 16)
# What draws an array in a module's `main`, by its `rng`, of which sums have so many terms.
DRAW = """    def draw(shape, dtype, terms=1):
        if jnp.issubdtype(dtype, jnp.integer):
            return rng.integers(0, min(terms, 7) if dtype != jnp.int32 else terms, shape).astype(dtype)
        return (rng.standard_normal(shape) / terms**0.5).astype(dtype)"""


def main_text(spmd: SpmdProgram, names: Names, loads: bool, limited: bool, streams: Streams) -> str:
    """The function that compares a module's two programs, that which runs a checkpoint where it `loads` one, and their
    call. `limited`: a last result counts what was dropped."""
    results = f"actual, {'caches, ' if names.of(Kind.CACHE) else ''}_" if limited else "actual"
    both = "\nactual = actual, caches" if limited and names.of(Kind.CACHE) else ""
    filled = "".join(f", jnp.int32(SMALL.{names.fields[d]})" for d in names.contexts)
    arrays = f"(*tensors(SMALL, draw){filled})" if filled else "tensors(SMALL, draw)"
    given = "arrays"
    places = "jax.tree.map(partial(NamedSharding, mesh), SPECS)"
    if streams.tensors:
        given, places, both = "divided(SMALL, *arrays)", "places(mesh, SPECS)", f"{both}\nactual = whole(actual)"
    again = _decides(spmd)
    return f'''def main() -> int:
    """Compare a step with the unsharded program, at small sizes in float32, on CPU devices made for that."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", {spmd.mesh.chips})
    rng = np.random.default_rng(0)

{DRAW}

    def difference(a, b):
        a, b = np.asarray(a, float), np.asarray(b, float)
        apart = np.abs(np.subtract(a, b, where=(a != b) & ~(np.isnan(a) & np.isnan(b)), out=np.zeros_like(a)))
        return apart{"" if again else ".max()"} / (np.abs(b[np.isfinite(b)]).max(initial=0) or 1)

{_comparison(arrays, f"{results} = BUILT(*jax.device_put({given}, {places})){both}", again)}

{_run_loaded(spmd, names, streams) if loads else ""}
if __name__ == "__main__":
    raise SystemExit({'run(sys.argv[2]) if sys.argv[1:2] == ["--checkpoint"] else ' if loads else ""}main())'''


def _comparison(arrays: str, run: str, again: bool) -> str:
    """The lines that draw numbers, run both programs and compare. `again`: where what is decided by these numbers is
    decided otherwise by others nearly the same, unsharded too, others are drawn. A mistake stays where it is, what
    hangs on rounding does not, so that every entry has to be right of some numbers, and not by being 0."""
    near = f"""arrays = {arrays}
near = jax.tree.map(lambda a: np.nextafter(a, draw(a.shape, a.dtype)) if a.dtype == np.float32 else a, arrays)"""
    says = 'print(f"largest relative difference on {mesh.size} devices: {worst:.2e}")'
    close = f"worst <= max({TOLERANCE}, 2 * min(rounding, {MOST_ROUNDED}))"
    if not again:
        lines = f"""{near}
expected, other = (unsharded := jax.jit({NARROW}(partial(dense, SMALL))))(*arrays), unsharded(*near)
mesh = make_mesh()
{run.replace("BUILT", "build(mesh, SMALL)")}
worst, rounding = (np.max(jax.tree.leaves(jax.tree.map(difference, a, expected))) for a in (actual, other))
{says}
return 0 if {close} else 1"""
        return textwrap.indent(lines, " " * 4)
    drawn = f"""{near}
expected, other = unsharded(*arrays), unsharded(*near)
{run.replace("BUILT", "sharded")}
apart = jax.tree.map(difference, actual, expected)
least = apart if least is None else jax.tree.map(least_of, least, apart, expected)
worst, rounding = largest(least), largest(jax.tree.map(difference, other, expected))
{says}
if {close}:
    return 0
others = (unsharded(*jax.tree.map(partial(moved, by=by), arrays, near)) for by in {BESIDE})
if max(largest(jax.tree.map(difference, a, expected)) for a in others) <= {MOST_ROUNDED}:
    return 1"""
    return f"""    def largest(apart):
        return max(map(np.max, jax.tree.leaves(apart)))

    def least_of(before, apart, expected):  # what is 0 says nothing for what was wrong
        return np.where(np.asarray(expected) == 0, np.maximum(before, apart), np.minimum(before, apart))

    def moved(a, b, by):
        return a + by * (b - a) if a.dtype == np.float32 else a

    mesh, least = make_mesh(), None
    sharded, unsharded = build(mesh, SMALL), jax.jit({NARROW}(partial(dense, SMALL)))
    for _ in range({MOST_DRAWN}):  # till each entry was right, where some hang on rounding, unsharded too
{textwrap.indent(drawn, " " * 8)}
    return 1"""


def _decides(spmd: SpmdProgram) -> bool:
    """Whether something is one or another as numbers are larger: what is chosen, picked, or rounded to codes."""
    values = spmd.table()
    return any(
        isinstance(op, Choose | TopK) or (isinstance(op, Map) and values[op.result].dtype in (Dtype.INT8, Dtype.INT4))
        for op in ops(spmd)
    )


def _run_loaded(spmd: SpmdProgram, names: Names, streams: Streams) -> str:
    """The function that runs a step with the weights of a checkpoint."""
    trees = [name for name in names.arguments if name not in names.contexts.values()]
    made = ", ".join("params" if name == "params" else f"empty[{at}]" for at, name in enumerate(trees))
    filled = "".join(f", jnp.int32(FULL.{names.fields[d]})" for d in names.contexts)
    forms = "tensors(FULL, lambda shape, dtype, terms=1: jax.ShapeDtypeStruct(shape, dtype))"
    where, place, there = "spec", "NamedSharding(mesh, spec)", "SPECS"
    if streams.tensors:
        forms = f"jax.eval_shape(partial(divided, FULL), *{forms})"
        where, place, there = "place", "place", "places(mesh, SPECS)"
    return f'''
def run(checkpoint: str) -> int:
    """Load a checkpoint onto the devices at hand, and run a step with it, on zeros."""
    mesh = make_mesh()
    try:
        params = load(checkpoint, mesh, tell=lambda name: print(f"loaded {{name}}", file=sys.stderr))
    except KeyError as error:
        raise SystemExit(f"error: `{{checkpoint}}` has no tensor `{{error.args[0]}}`.") from None
    except (OSError, ValueError) as error:
        where, what = getattr(error, "filename", None) or checkpoint, getattr(error, "strerror", None) or error
        raise SystemExit(f"error: `{{where}}` cannot be read: {{what}}.") from None
    every = {forms}

    def zeros(form, {where}):
        return jax.device_put(np.zeros(form.shape, form.dtype), {place})

    empty = [None if at == 0 else jax.tree.map(zeros, forms, {there}[at]) for at, forms in enumerate(every)]
    out = build(mesh)({made}{filled})
    print(jax.tree.map(lambda a: (a.shape, str(a.dtype)), out))
    return 0

'''
