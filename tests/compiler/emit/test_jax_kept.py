"""The mask of chosen entries that emitted JAX files make: that of NumPy's, and made in work linear in the entries, of
the same keys whatever XLA makes of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from emitted_files import run_files

from escc.compiler import emit
from escc.compiler.simulate.numpy_runtime import choose
from escc.cost.memory import SORTED_KEYS

INF, NAN = np.inf, np.nan
WIDE, OTHERS = ["float32", "bfloat16", "float16"], ["int32", "int8", "float8_e4m3fn", "float8_e8m0fnu"]
SHAPES = [((1,), 1), ((7,), 1), ((7,), 3), ((7,), 7), ((64,), 17), ((3, 5), 4), ((3, 5), 15)]  # chosen over; how many
LISTED = [  # keys, of which 3 are chosen
    [2.0, 1.0, 2.0, 0.0, 2.0, 2.0],  # equal to the last that is chosen are more than are
    [5.0, 1.0, 3.0, 3.0, 3.0, 4.0],
    [1.0] * 6,
    [-INF] * 6,
    [-INF, 1.0, -INF, -INF, 2.0, -INF],  # fewer are shown than are chosen
    [INF, -INF, INF, INF, INF, 1.0],
    [-0.0, 0.0, -0.0, 0.0, 0.0, -0.0],  # all are equal
    [0.0, -1.0, -0.0, -2.0, -0.0, 0.0],
]
# NaN, which NumPy sorts to the end whatever its sign: by `lax.top_k` the largest, and the smallest with a sign.
ORDERED = [
    ([1.0, NAN, 2.0, -NAN, 3.0, NAN], [0, 1, 0, 0, 1, 1]),
    ([NAN, 1.0, NAN, NAN, NAN, 2.0], [1, 0, 1, 1, 0, 0]),
    ([-NAN, -INF, -NAN, -INF, -NAN, -INF], [0, 0, 0, 0, 0, 0]),
    ([-NAN, -INF, -NAN, 1.0, -NAN, -NAN], [1, 0, 0, 1, 0, 0]),
]
SAVED = f"""
from functools import partial
inf = np.inf
random, found = np.random.default_rng(0), dict()
tiny = {{name: float(jnp.finfo(name).smallest_subnormal) for name in {WIDE!r}}}
held = {{name: [-inf, -3, -least, -0.0, 0.0, least, 1, 2, inf] for name, least in tiny.items()}}
held["int32"] = [-5, -1, 0, 1, 2**31 - 1]
held["int8"] = [-127, -1, 0, 1, 126, 127]
held["float8_e4m3fn"] = [-448, -3, -(2**-9), -0.0, 0.0, 2**-9, 416, 448]
held["float8_e8m0fnu"] = [2**-127, 0.25, 1, 2, 2**127]
for dtype, values in held.items():
    listed = np.load("PATH/listed.npy")
    cases = [(random.choice(values[: 2 + n % 9], (50, *shape)), count) for n, (shape, count) in enumerate({SHAPES!r})]
    cases = [*cases, (listed, 3)][: None if dtype in tiny else -1]
    every = [np.asarray(keys, float).astype(jnp.dtype(dtype)) for keys, _ in cases]
    chosen = [partial(kept, rank=k.ndim - 1, count=count, dtype=jnp.bfloat16) for k, (_, count) in zip(every, cases)]
    masks = jax.jit(lambda every: [choose(keys) for choose, keys in zip(chosen, every)])(every)
    assert all(mask.dtype == jnp.bfloat16 for mask in masks)
    # A sort in a loop may take the least numbers for 0.
    plain = [
        np.where(np.abs(k.astype(float)) <= tiny.get(dtype, 0), 0, k.astype(float)).astype(k.dtype) for k in every[1::3]
    ]
    # A row at a time, several at a time, the last fewer, and all at once.
    looped = [[partial(c, most=most) for most in (1, 7 * k[0].size)] for c, k in zip(chosen[1::3], plain)]
    ways = [[*loops, whole] for loops, whole in zip(looped, chosen[1::3])]
    made = jax.jit(lambda plain: [[way(keys) for way in each] for each, keys in zip(ways, plain)])(plain)
    assert all((mask == whole).all() for *loops, whole in made for mask in loops)
    for n, (keys, mask) in enumerate(zip(every, masks)):
        found[f"{{dtype}} {{n}} keys"] = keys.astype(float)
        found[f"{{dtype}} {{n}} mask"] = np.asarray(mask).astype(float)
np.savez("PATH/masks.npz", **found)
raise SystemExit(0)
"""
LINEAR = """
step = jax.jit(lambda keys: kept(keys, 1, 1024, jnp.float32))
taken = step.lower(jax.ShapeDtypeStruct((2, 8192), jnp.float32)).compile().memory_analysis().temp_size_in_bytes
assert taken < 2 * 2 * 8192 * 4, taken  # not twice as much as the keys: nor are all of them sorted
"""
# Keys that a kernel may make again with other roundings: of the two that are chosen each weighs.
AGAIN = """
from functools import partial


def layer(x, stored):
    matrix, shift = stored
    keys = jnp.einsum("BE,EX->BX", x, matrix)
    shares = jnp.exp(keys - jnp.where(keys.max(-1)[:, None] == -jnp.inf, 0, keys.max(-1)[:, None]))
    shares = shares / jnp.where(shares.sum(-1)[:, None] == 0, 1, shares.sum(-1)[:, None])
    weights = kept(shares + shift, 1, 2, jnp.float32) * shares
    weights = weights / weights.sum(-1)[:, None]
    return x + jnp.einsum("BX,EX->BE", weights, matrix), weights


random = np.random.default_rng(0)
draw = lambda *shape: random.standard_normal(shape).astype(np.float32)
_, found = jax.jit(partial(jax.lax.scan, layer))(draw(4096, 2), (draw(4, 2, 16), draw(4, 16)))
fewer = int(((found > 0).sum(-1) != 2).sum())
assert fewer == 0, fewer
raise SystemExit(0)
"""

# By the TPU's compiler, without one: keys that are compared after they are sorted are those that were.
ONCE = """
import os, re
os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="true")
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

chips = topologies.get_topology_desc("v4:2x2x1", "tpu", chip_config_name="megacore").devices
whole = NamedSharding(Mesh(np.array(chips), ("x",)), PartitionSpec())
step = jax.jit(lambda a, b: kept(a * b + jnp.tanh(a), 1, 128, jnp.bfloat16))
keys = jax.ShapeDtypeStruct((512, 4096), jnp.bfloat16, sharding=whole)
text = step.lower(keys, keys).compile().as_text()
assert len(re.findall(r" tanh\\(", text)) == 1
raise SystemExit(0)
"""


def runtime() -> str:
    return (Path(emit.__file__).parent / "jax_runtime.py").read_text()


@pytest.fixture(scope="module", params=["placed", "compared, few", "compared, many"])
def masks(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, np.ndarray]:
    """Keys and masks by type and case, as one platform makes them or another."""
    folder, way = tmp_path_factory.mktemp("kept"), request.param
    np.save(folder / "listed.npy", np.array([*LISTED, *(keys for keys, _ in ORDERED)]))
    text, branches = runtime(), "tpu=compared, default=placed"
    assert branches in text and "count <= 64" in text
    text = text if way == "placed" else text.replace(branches, "default=compared")
    text = text.replace("count <= 64", "count <= 0") if way == "compared, many" else text
    texts = {"masks": text + SAVED.replace("PATH", str(folder))}
    assert run_files(texts, folder) == {"masks": "0"}
    with np.load(folder / "masks.npz") as found:
        return dict(found)


@pytest.mark.parametrize("dtype", [*WIDE, *OTHERS])
def test_the_mask_is_that_of_numpy(masks: dict[str, np.ndarray], dtype: str) -> None:
    for n, (shape, count) in enumerate(SHAPES):
        keys = masks[f"{dtype} {n} keys"]
        np.testing.assert_array_equal(masks[f"{dtype} {n} mask"], choose(keys, len(shape), count), f"{shape} {count}")
    if dtype in WIDE:
        found = masks[f"{dtype} {len(SHAPES)} mask"]
        np.testing.assert_array_equal(found[: len(LISTED)], choose(np.array(LISTED), 1, 3))
        np.testing.assert_array_equal(found[len(LISTED) :], [mask for _, mask in ORDERED])


def test_as_many_keys_are_sorted_at_a_time_as_memory_counts() -> None:
    assert f"dtype: Any, most: int = 2**{SORTED_KEYS.bit_length() - 1})" in runtime() and SORTED_KEYS.bit_count() == 1


def test_a_mask_takes_less_room_than_its_keys(tmp_path: Path) -> None:
    assert run_files({"linear": runtime() + LINEAR + "raise SystemExit(0)"}, tmp_path) == {"linear": "0"}


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU's compiler, libtpu, is not installed")
def test_a_tpu_compares_the_keys_that_it_has_sorted(tmp_path: Path) -> None:
    assert run_files({"once": runtime() + ONCE}, tmp_path) == {"once": "0"}


def test_what_is_chosen_last_is_not_lost_where_keys_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # compiled with little care they are not
    assert run_files({"again": runtime() + AGAIN}, tmp_path) == {"again": "0"}
