"""Collectives as they are written for TPUs: the same numbers, as many bytes, in shapes that the compiler keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from emitted_files import run_files
from exec_cases import CASES
from helpers_exec import Build, call
from jax_cases import OTHERS
from saved_llama import save

from escc.compiler.emit.jax_order import in_memory_order, orders_of, reordered
from escc.compiler.emit.jax_source import emit_jax
from escc.compiler.hf_import.parameter_parts import parameter_parts
from escc.compiler.hf_import.weight_map import Made, WeightMap, ordered_map
from escc.compiler.jax.planned import planned, sent_bytes
from escc.compiler.plan.pipeline import compile_phase, load
from escc.cost.estimate import estimate
from escc.cost.hardware import Hardware
from escc.cost.platform import Platform
from escc.cost.tpu_collectives import Kept, filled, stages_of
from escc.ir.collective import AllGather, CollectiveKind, ReduceScatter
from escc.ir.mesh import Mesh
from escc.ir.program import Append, Einsum, Kind, Program, Take
from escc.ir.spmd import SpmdProgram
from escc.ir.verify.verify import verify
from escc.passes.options import Options

EXAMPLES = Path(__file__).parents[3] / "examples"
HARDWARE = Hardware.of_paper("tpu-v4")


def case(name: str) -> tuple[Program, SpmdProgram]:
    if name in OTHERS:
        return OTHERS[name]()
    builder, results, _ = CASES[name]()
    return builder.program(*results), builder.spmd(*results)


def emitted(name: str, tpu: bool) -> str:
    program, spmd = case(name)
    return emit_jax(program, spmd, estimate(spmd, HARDWARE), platform=Platform.TPU if tpu else Platform.ANY)


def test_what_is_written_for_tpus_gives_the_same(tmp_path: Path):
    every = {name: emitted(name, True) for name in (*CASES, *OTHERS)}
    texts: dict[str, str] = {}
    for helper in ("gather_in_stages(", "scatter_rows(", "gather_together(", "scatter_together(", "laid_out("):
        called = [name for name, text in every.items() if f" = {helper}" in text]
        texts |= {name: every[name] for name in called[:1]}
        assert called
    assert 'jax.tree.map(lambda a: laid_out(a[i, j]), params["outer"]["inner"])' in every["nested"]
    texts["nested"] = every["nested"]
    assert run_files(texts, tmp_path) == dict.fromkeys(texts, "0")
    wrong = {name: text.replace("in reversed(stages)", "in stages") for name, text in texts.items()}
    wrong = {name: text for name, text in wrong.items() if text != texts[name]}
    assert set(run_files(dict(list(wrong.items())[:1]), tmp_path).values()) == {"1"}


@pytest.mark.parametrize(
    ("axes", "stages"),
    [
        ("xyz", (("x",), ("y", "z"))),
        ("zxy", (("z",), ("x", "y"))),
        ("xy", (("x", "y"),)),
        ("z", (("z",),)),
    ],
)
def test_only_what_goes_over_all_chips_goes_in_stages(axes: str, stages: tuple[tuple[str, ...], ...]):
    assert stages_of(tuple(axes), Mesh.parse("2x3x4")) == stages


def test_an_axis_of_one_chip_is_no_stage():
    assert stages_of(("x", "z"), Mesh.parse("4x1x4")) == (("x",), ("z",))
    assert stages_of(("x", "y"), Mesh.parse("4x1")) == (("x", "y"),)


@pytest.mark.parametrize(
    ("sizes", "dtype", "dim", "rows"),
    [
        ({"B": 512, "E": 4608}, "bf16", "B", False),
        ({"B": 512, "E": 1152}, "bf16", "B", True),
        ({"B": 64, "E": 4608}, "bf16", "B", False),
        ({"B": 32, "E": 4608}, "bf16", "B", True),
        ({"B": 512, "E": 4608}, "bf16", "E", True),
        ({"B": 512, "E": 4096}, "bf16", "E", False),
        ({"B": 16, "E": 4096}, "bf16", "E", False),
        ({"B": 4, "E": 4096}, "bf16", "E", True),  # of which tiles are smaller
        ({"B": 512, "E": 1152}, "f32", "B", False),
        ({"B": 32, "E": 1152}, "f32", "B", True),
        ({"B": 64, "E": 512}, "f32", "E", False),
        ({"B": 64, "E": 1280}, "f32", "E", True),
        ({"B": 4, "E": 512}, "f32", "E", True),
        ({"B": 1, "E": 4096}, "bf16", "E", True),
        ({"B": 4, "L": 256, "E": 4608}, "bf16", "B", False),  # tiles lie in the last two
        ({"B": 4, "L": 24, "E": 4608}, "bf16", "B", True),
        ({"B": 64, "L": 24, "E": 4608}, "bf16", "B", False),
        ({"B": 4, "L": 64, "E": 4608}, "bf16", "L", False),
        ({"B": 4, "L": 32, "E": 4608}, "bf16", "L", True),
    ],
)
def test_narrow_types_are_scattered_as_rows_where_tiles_do_not_fit(
    sizes: dict[str, int], dtype: str, dim: str, rows: bool
):
    b = Build("4", **sizes)
    dims = "".join(sizes)
    b.stored("a", dims, Kind.INPUT, dtype)
    spmd = b.spmd("a")
    kept = Kept(spmd.mesh, spmd.table(), dict(spmd.sizes))
    assert kept.as_rows("a", dims.index(dim), ("x",)) == rows


@pytest.mark.parametrize(
    ("mesh", "kept", "axes", "stages"),
    [
        ("2x2x2", 42, "xy", (("x",), ("y",))),
        ("2x2x2", 40, "xy", (("x", "y"),)),
        ("2x2x2", 42, "xyz", (("x",), ("y",), ("z",))),
        ("2x2x4", 42, "xz", (("x", "z"),)),
        ("4x4x4", 42, "xy", (("x", "y"),)),
    ],
)
def test_what_a_square_of_four_does_not_keep_is_scattered_along_one_axis_after_the_other(
    mesh: str, kept: int, axes: str, stages: tuple[tuple[str, ...], ...]
):
    """`kept`: how many times 1,024 elements each chip keeps."""
    b = Build(mesh, B=1024, E=kept * Mesh.parse(mesh).size(*axes))
    b.stored("a", "BE", Kind.INPUT, "bf16")
    spmd = b.spmd("a")
    assert Kept(spmd.mesh, spmd.table(), dict(spmd.sizes)).scatter_stages(["a"], tuple(axes)) == stages


def test_scatters_as_rows_are_filled_up(tmp_path: Path):
    """What is planned for the module, too: a chip keeps 3 of 6 elements, and sends as many as it then has."""
    b = Build("2x3", B=2, E=3, F=6)
    b.stored("a", "BF_xE", Kind.INPUT)
    b.op(Einsum("s", ("a",), (("B", "F", "E"),), ("B", "E")), "BE partialsum-x")
    b.move("t", "s", ReduceScatter(("x",), 0), "B_xE")
    b.move("u", "t", AllGather(("x",), 0), "BE")
    spmd = b.spmd("u")
    text = emit_jax(b.program("u"), spmd, estimate(spmd, HARDWARE), platform=Platform.TPU)
    assert "scatter_rows(s, " in text
    assert run_files({"filled": text}, tmp_path) == {"filled": "0"}
    sent = {each.kind: float(each.bytes) for each in planned(spmd, estimate(spmd, HARDWARE), tpu=True)}
    assert sent == {CollectiveKind.REDUCE_SCATTER: 16 * 2, CollectiveKind.ALL_GATHER: 3 * 2}


@pytest.mark.parametrize(
    ("elements", "bits", "sent"),
    [
        (1, 16, 16),
        (32, 16, 32),
        (2**19, 16, 2**19),
        (2**19 + 1, 16, 524_640),
        (2**19, 32, 524_640),
        (2**16 * 9, 16, 2**16 * 9),
    ],
)
def test_large_rows_are_filled_up_to_whole_parts(elements: int, bits: int, sent: int):
    assert filled(elements, bits) == sent


def test_chips_stand_where_their_coordinates_say_where_jax_does_not_place_them():
    def made(mesh: str) -> str:
        b = Build(mesh, B=16)
        b.stored("a", "B_x", Kind.INPUT)
        b.map("b", call("exp", "a"), "B_x")
        text = emit_jax(b.program("b"), b.spmd("b"), estimate(b.spmd("b"), HARDWARE), platform=Platform.TPU)
        return text[text.index("def make_mesh") : text.index("def build")]

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError

    assert "except" not in made("4x4x4") + made("2x2") + made("4x8") and "except" in made("2x4x8")
    chips = [SimpleNamespace(coords=[x, y, z]) for z in range(4) for y in range(2) for x in range(2)]
    jax = SimpleNamespace(__version_info__=(0, 10), devices=lambda: chips, make_mesh=refuse)
    known = {"jax": jax, "np": np, "AxisType": SimpleNamespace(Auto=None), "Mesh": lambda devices, *_, **__: devices}
    exec(made("2x2x4"), known)
    placed = known["make_mesh"]()
    assert [list(placed[x, y, z].coords) == [x, y, z] for x, y, z in np.ndindex(2, 2, 4)] == [True] * 16


@pytest.mark.parametrize(
    ("rows", "row", "several"),
    [
        (1, 2 * 2004, True),
        (1, 2 * 2048, False),  # whole lanes
        (2, 2 * 2004, False),
        (1, 2 * 2001, False),  # which nothing divides
    ],
)
def test_a_gather_of_a_row_that_is_not_of_whole_lanes_goes_as_several(
    rows: int, row: int, several: bool, tmp_path: Path
):
    b = Build("2x2", B=2 * rows, E=row)
    b.stored("a", "B_yE_x", Kind.INPUT)
    b.move("b", "a", AllGather(("x",), 1), "B_yE")
    b.map("c", call("exp", "b"), "B_yE")
    text = emit_jax(b.program("c"), b.spmd("c"), estimate(b.spmd("c"), HARDWARE), platform=Platform.TPU)
    assert ("gather_together([(" in text) == several
    assert run_files({"gathered": text}, tmp_path) == {"gathered": "0"}


def test_a_large_gather_goes_through_a_barrier_and_gives_the_same(tmp_path: Path):
    def gathered(rows: int) -> str:
        b = Build("2x2", B=rows, E=1024)
        b.stored("a", "B_xE", Kind.INPUT)
        b.move("b", "a", AllGather(("x",), 0), "BE")
        b.map("c", call("exp", "b"), "BE")
        return emit_jax(b.program("c"), b.spmd("c"), estimate(b.spmd("c"), HARDWARE), platform=Platform.TPU)

    held = "lax.optimization_barrier(lax.all_gather("
    large = gathered(2**14)
    assert held in large and held not in gathered(2**14 - 2)
    assert run_files({"large": large}, tmp_path) == {"large": "0"}


def test_stages_send_what_one_collective_sends():
    model = load(EXAMPLES / "feed-forward.esti", None, [EXAMPLES / "pins" / "ws1d.pins"])
    one = compile_phase(model, "main", Mesh.parse("4x4x4"), Options(HARDWARE))
    plain, staged = (planned(one.spmd, one.estimate, tpu=tpu) for tpu in (False, True))
    assert sent_bytes(plain) == sent_bytes(staged) == 33_030_144
    assert (len(plain), len(staged)) == (2, 4)
    assert {sent.axes for sent in staged} == {("x",), ("y", "z")}


def served(places: int = 8) -> tuple[Program, SpmdProgram]:
    """Attention over a cache whose context stands before its heads, which is gathered where it is read."""
    b = Build("2x2", B=4, L=1, M=places, K=2, G=2, Q=4)
    b.stored("cache", "B_xMK_yQ", Kind.CACHE)
    b.stored("new", "B_xLK_yQ", Kind.INPUT)
    b.stored("q", "BLKGQ", Kind.INPUT)
    b.op(Append("held", "cache", "new", "L", "M"), "B_xMK_yQ")
    b.move("all", "held", AllGather(("y",), 2), "B_xMKQ")
    b.move("whole", "all", AllGather(("x",), 0), "BMKQ")
    b.einsum("s", "BLKGQ,BMKQ->BLKGM", "q", "whole", layout="BLKGM")
    return b.program("s"), b.spmd("s")


def test_the_context_of_caches_stands_next_to_their_last_dim(tmp_path: Path):
    program, spmd = served()
    whole, sharded = in_memory_order(program, spmd, platform=Platform.TPU)
    table = sharded.table()
    assert [table[name].dims for name in ("cache", "held", "all", "whole")] == [tuple("BKMQ")] * 4
    assert table["cache"].layout.dims == (("x",), ("y",), (), ())
    assert [v.dims for v in whole.values if v.name == "cache"] == [tuple("BKMQ")]
    verify(sharded, whole)  # raises where it is not the same
    assert in_memory_order(whole, sharded, platform=Platform.TPU) == (whole, sharded), "what stands so already stays"
    text = emit_jax(program, spmd, estimate(spmd, HARDWARE), platform=Platform.TPU)
    assert '"cache": P("x", "y"),' in text and "BKMQ->BKGM" in text and "cache = laid_out(" in text
    assert run_files({"served": text}, tmp_path) == {"served": "0"}


def test_a_context_that_fills_lanes_stands_last_where_heads_do_not(tmp_path: Path):
    program, spmd = served(256)
    whole, sharded = in_memory_order(program, spmd, platform=Platform.TPU)
    assert [sharded.table()[name].dims for name in ("cache", "held", "all", "whole")] == [tuple("BKQM")] * 4
    verify(sharded, whole)
    assert in_memory_order(whole, sharded, platform=Platform.TPU) == (whole, sharded)
    text = emit_jax(program, spmd, estimate(spmd, HARDWARE), platform=Platform.TPU)
    assert "BKQM->BKGM" in text
    assert run_files({"served": text}, tmp_path) == {"served": "0"}
    small = reordered(served(8)[1], orders_of(program, spmd, platform=Platform.TPU)).table()  # as it is compared
    assert small["cache"].dims == tuple("BKQM")


def test_gpus_have_no_lanes_that_heads_could_fill():
    program, spmd = served(256)
    _, sharded = in_memory_order(program, spmd, platform=Platform.GPU)
    assert [sharded.table()[name].dims for name in ("cache", "held", "all", "whole")] == [tuple("BKMQ")] * 4


def test_a_cache_that_is_a_result_stands_as_it_is_declared():
    program, spmd = served()
    given = replace(spmd, results=("held",))
    assert in_memory_order(program, given, platform=Platform.TPU) == (program, given)


def projected(places: str = "EHQ") -> tuple[Program, SpmdProgram]:
    """A projection to heads, whose parameter is gathered, and one of a value with the heads to as many."""
    b = Build("2x2", B=4, E=8, H=2, Q=4)
    b.stored("x", "B_xE", Kind.INPUT)
    b.stored("W", places.replace("H", "H_y"), Kind.PARAM)
    b.stored("V", "HQE", Kind.PARAM)
    b.move("whole", "W", AllGather(("y",), places.index("H")), places)
    b.einsum("q", f"BE,{places}->BHQ", "x", "whole", layout="B_xHQ")
    b.einsum("o", "BHQ,HQE->BE", "q", "V", layout="B_xE")
    return b.program("o"), b.spmd("o")


def test_the_dim_that_a_projection_sums_stands_last(tmp_path: Path):
    program, spmd = projected()
    whole, sharded = in_memory_order(program, spmd, platform=Platform.TPU)
    table = sharded.table()
    assert [table[name].dims for name in ("W", "whole", "V")] == [tuple("HQE")] * 3
    assert table["W"].layout.dims == (("y",), (), ())
    verify(sharded, whole)
    assert in_memory_order(whole, sharded, platform=Platform.TPU) == (whole, sharded), "what stands so already stays"
    text = emit_jax(program, spmd, estimate(spmd, HARDWARE), platform=Platform.TPU)
    assert '"W": P("y"),' in text and "BE,HQE->BHQ" in text
    assert run_files({"projected": text}, tmp_path) == {"projected": "0"}


def test_parameters_are_loaded_in_the_order_in_which_they_stand():
    """Whole and in parts, padded and as codes."""
    tensor = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)  # [heads and what each has, E]
    tensors = {"q": ("F32", (8, 6), lambda: tensor)}
    [declared] = parameter_parts(tensors, "q | transpose | heads 2", (6, 2, 4), np.float32, [(slice(None),) * 3])
    places = [(slice(0, 1), slice(None), slice(2, 6)), (slice(None), slice(1, 3), slice(None))]
    line = str(ordered_map({"W": Made("q", ("transpose", "heads 2"))}, {"W": (1, 2, 0)})["W"])
    assert line == "q | transpose | heads 2 | order 1 2 0"
    for part, place in zip(parameter_parts(tensors, line, (2, 4, 6), np.float32, places), places, strict=True):
        assert np.array_equal(part, declared.transpose(1, 2, 0)[place])
    padded = "q | transpose | heads 2 | padded from 6x2x4 | order 1 2 0"
    [part] = parameter_parts(tensors, padded, (3, 4, 6), np.float32, [(slice(None),) * 3])
    assert np.array_equal(part[:2], declared.transpose(1, 2, 0)) and not part[2].any()
    codes = "q | transpose | heads 2 | codes int8 to 127 over -3:6"
    [plain], [ordered] = (
        parameter_parts(tensors, each, shape, np.int8, [(slice(None),) * 3])
        for each, shape in ((codes, (6, 2, 4)), (f"{codes} | order 1 2 0", (2, 4, 6)))
    )
    assert np.array_equal(ordered, plain.transpose(1, 2, 0)) and plain.any()


def looked_up(row: int, weights: WeightMap | None = None) -> str:
    """The file of a lookup in a table of such rows, of which a chip has half."""
    b = Build("2", B=8, V=4096, E=row)
    b.stored("ids", "B", Kind.INPUT, "i32")
    b.stored("table", "VE_x")
    b.op(Take("found", "table", "ids", ("V",)), "BE_x")
    program, spmd = b.program("found"), b.spmd("found")
    return emit_jax(program, spmd, estimate(spmd, HARDWARE), weights, platform=Platform.TPU)


HANDED = """
places = by_rows(jax.tree.map(partial(NamedSharding, make_mesh()), PARAMS))
held = jax.device_put({"table": np.zeros((4096, 2000), np.float32)}, places)
assert held["table"].format.layout.major_to_minor == (0, 1) and held["table"].sharding.spec == PARAMS["table"]


def main("""


def test_a_table_that_is_handed_over_by_rows_says_so(tmp_path: Path):
    """Which of them are is said by cost.memory: those whose rows nearly fill lanes."""
    assert [row for row in (200, 2000, 2048) if "def by_rows(places):" in looked_up(row)] == [2000]
    assert run_files({"2000": looked_up(2000).replace("\ndef main(", HANDED)}, tmp_path) == {"2000": "0"}


LOADED = """
held = load("FOLDER", make_mesh())["table"]
assert held.format.layout.major_to_minor == (0, 1) and held.sharding.spec == PARAMS["table"]
assert (np.asarray(held, np.float32) == np.arange(4096)[:, None] % 128 + np.arange(2000) % 2).all()


def main("""


def test_a_table_that_is_loaded_lies_by_rows(tmp_path: Path):
    numbers = np.arange(4096, dtype=np.float32)[:, None] % 128 + np.arange(2000, dtype=np.float32) % 2
    save(tmp_path / "checkpoint", {"embeddings": numbers})
    text = looked_up(2000, {"table": Made("embeddings")})
    load = text[text.index("def load(") :].partition("\n\n\n")[0]
    assert "return jax.device_put(made, by_rows(" in load
    loaded = text.replace("\ndef main(", LOADED.replace("FOLDER", str(tmp_path / "checkpoint")))
    assert run_files({"loaded": loaded}, tmp_path) == {"loaded": "0"}
