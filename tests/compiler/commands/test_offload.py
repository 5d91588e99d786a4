"""`escc compile --offload`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import TINY_DECODER
from typer.testing import CliRunner, Result

import escc
from escc.compiler.commands.main import app
from escc.compiler.plan.offload import WORTH, most_sequences
from escc.compiler.plan.pipeline import parse
from escc.ir.diagnostics import Diagnostic
from escc.passes.plan import Cutoff, NoPlan, Outcome

HOST = """name = "small"
[datasheet]
peak_flops_per_s = 1e12
hbm_bytes = 400e3
hbm_bytes_per_s = 1e11
[network]
network_bytes_per_s = 1e10
[switch]
node_chips = 2
link_bytes_per_s = 1e10
[host]
dram_bytes = 1e9
dram_bytes_per_s = 1e10
link_bytes_per_s = 1e9
host_chips = 2
"""


LAYERS = """
model "layers"
dim B = 8, E = 64, F = 128
block layer(x: bf16[B,E]) -> bf16[B,E] {
  param Wi: bf16[E,F]
  param Wd: bf16[F,E]
  h[B,F] = x[B,E] * Wi[E,F]
  d[B,E] = h[B,F] * Wd[F,E]
  return x + d
}
main(x: bf16[B,E]) { return repeat 3 layer(x) }
"""


CACHES = """
model "caches"
dim B = 8, L = 1, M = 512, E = 16
block layer(x: bf16[B,L,E]) -> bf16[B,L,E] {
  param gain: bf16[E]
  cache seen: bf16[B,M,E]
  n = append(seen, x * gain, L into M)
  s[B,L,E] = x[B,L,E] * n[B,M,E]
  return x + s
}
main(x: bf16[B,L,E]) { return repeat 3 layer(x) }
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Compiles a phase of the tiny decoder, a file of a folder of its own, with some arguments."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.esti").write_text(TINY_DECODER)
    Path("small.toml").write_text(HOST)
    Path("two-hosts.toml").write_text(HOST.replace("node_chips = 2", "node_chips = 4"))

    def invoke(*arguments: str) -> Result:
        chosen = ["--chips", "1", "--hardware", "small.toml", "--phase", "decode", *arguments]
        return CliRunner().invoke(app, ["compile", "tiny.esti", *chosen])

    return invoke


def test_it_says_what_is_streamed_and_what_that_takes(compiled):
    found = compiled("--offload", "auto", "--check")
    assert found.exit_code == 0, found.output
    assert "of 5 layers, 1 ahead of need" in found.stdout
    assert "links to the host" in found.stdout
    assert "for the host, which the objective leaves out" in found.stdout
    assert "Streams: layer.Wq and layer.Wk and layer.Wv and layer.keys of 5 of 5 layers" in found.stdout
    assert found.stdout.count(" 2 of 5 ") == 4  # the one that runs, and the one that comes
    assert "the reference, largest relative error" in found.stdout
    assert re.search(
        r"host       [1-9][0-9,]* bytes came to a chip, [1-9][0-9,]* went back, as predicted", found.stdout
    )


def test_kinds_that_a_model_has_not_are_not_streamed(compiled):
    Path("tiny.esti").write_text(LAYERS)
    Path("small.toml").write_text(HOST.replace("400e3", "75e3"))
    found = compiled("--phase", "main", "--offload", "auto")
    assert found.exit_code == 0, found.output
    assert "Streams: weights of " in found.stdout


def test_a_tensor_is_placed_by_a_pin(compiled):
    Path("places.pins").write_text("place layer.Wi host\nplace layer.keys host  # and written back\n")
    Path("small.toml").write_text(HOST.replace("400e3", "4e6"))
    for arguments in ([], ["--offload", "weights"]):
        found = compiled("--pin", "places.pins", "--check", *arguments)
        assert found.exit_code == 0, found.output
        assert "Streams: layer.Wi and layer.keys of 5 of 5 layers" in found.stdout
        kept = [line.split()[1] for line in found.stdout.splitlines() if " 2 of 5 " in line]
        assert kept == ["layer.Wi", "layer.keys"]
        assert re.search(
            r"host       [1-9][0-9,]* bytes came to a chip, [1-9][0-9,]* went back, as predicted", found.stdout
        )
    found = compiled("--pin", "places.pins", "--best-batch", "--hbm-fraction", "0.1")
    assert found.exit_code == 0 and found.stdout.startswith("Batches, most sequences a second first"), found.output
    for option in (["--separate"], ["--parts"], ["--pad", "auto"]):
        refused = compiled("--pin", "places.pins", *option)
        said = f"`{' '.join(option)}` does not go with pins that place something with the host"
        assert refused.exit_code == 1 and said in refused.output
    Path("places.pins").write_text("place layer.Wi chip\n")
    found = compiled("--pin", "places.pins", "--offload", "weights", "--ahead", "0", "--hbm-fraction", "0.09")
    assert found.exit_code == 0, found.output
    kept = [line.split()[1] for line in found.stdout.splitlines() if re.search(r" [0-5] of 5 ", line)]
    assert "layer.Wd" in kept and "layer.Wi" not in kept
    assert compiled("--pin", "places.pins").exit_code == 0, "nothing is streamed"


def test_places_that_are_none_are_said_all_at_once(compiled):
    wrong = "place layer.Wi hots\nplace layer.Wx host\nplace table host\nplace layer.Wd host\nplace layer.Wd chip\n"
    Path("places.pins").write_text(wrong)
    found = compiled("--pin", "places.pins")
    assert found.exit_code == 1
    assert [line.split(": error: ")[1] for line in found.output.splitlines() if ": error: " in line] == [
        "The line does not say where a tensor is.",
        "The program stores no parameter or cache `layer.Wx`.",
        "`table` is of no layer that is repeated, and what comes from the host comes layer by layer.",
        "`layer.Wd` has its place already.",
    ]
    Path("places.pins").write_text("place layer.Wd host\n")
    staged = compiled("--pin", "places.pins", "--stages", "auto")
    assert staged.exit_code == 1 and "from where stages do not stream" in staged.output
    assert "give `--offload`" in staged.output


def test_explain_has_what_comes_from_the_host_as_formulas(compiled):
    arguments = ["--chips", "2", "--hardware", "small.toml", "--phase", "decode", "--offload", "auto", "--drop-ones"]
    Path("small.toml").write_text(HOST.replace("400e3", "200e3"))
    found = CliRunner().invoke(app, ["explain", "tiny.esti", *arguments, "--format", "json"])
    assert found.exit_code == 0, found.output
    [phase] = json.loads(found.stdout)["phases"]
    lines = {line["what"]: line for line in phase["totals"]}
    comes, every = lines["layer: one comes from the host"], lines["layer: all, with waiting"]
    assert "/link" in comes["formula"] and "Max(" in every["formula"]
    for line in (comes, every):
        assert line["value_s"] == pytest.approx(line["plan_s"])
    assert every["plan_s"] >= 4 * comes["plan_s"]
    assert phase["sizes"]["link"] == 1e9


def test_stages_stream_from_their_shares_of_a_host(tmp_path):
    own = HOST.replace("node_chips = 2", "node_chips = 1").replace("[switch]", "between_bytes_per_s = 1e9\n[switch]")
    (tmp_path / "small.toml").write_text(own.replace("400e3", "60e3"))
    given = {"stages": 2, "micro_batches": {"main": 2}, "offload": "auto", "ahead": 0, "check": True}
    found = escc.compile(parse(LAYERS), "stage=2", str(tmp_path / "small.toml"), **given)
    streamed = found.staged.streamed_layers
    assert found.staged.sound and [one.stage.layers for one in found.staged.plan.stages] == [1, 2]
    assert 0 < streamed[1] <= 2 and "main waiting" in str(found)
    for n, [stage] in enumerate(found.stages):
        fetches = stage.estimate.fetches
        assert sum(fetch.streamed for fetch in fetches) == streamed[n]
        [waiting_s] = found.staged.plan.stages[n].waiting_s
        assert waiting_s == sum(fetch.waiting_s for fetch in fetches)
        assert found.staged.plan.stages[n].seconds("main") >= stage.plan.price + waiting_s
        assert stage.checked.host.counted[0] > 0 or not fetches
        assert stage.hardware.host.dram_bytes == 0.5e9
    [module] = [path for path in found.write("jax", tmp_path) if "pipeline_main" in path.name]
    assert f"STREAMED = {[bool(layers) for layers in streamed]}" in module.read_text()


def test_stages_that_stream_are_explained_one_by_one(tmp_path):
    own = HOST.replace("node_chips = 2", "node_chips = 1").replace("[switch]", "between_bytes_per_s = 1e9\n[switch]")
    (tmp_path / "small.toml").write_text(own.replace("400e3", "60e3"))
    (tmp_path / "layers.esti").write_text(LAYERS)
    arguments = [str(tmp_path / "layers.esti"), "--chips", "stage=2", "--hardware", str(tmp_path / "small.toml")]
    ways = ["--stages", "2", "--micro-batches", "main=2", "--offload", "auto", "--ahead", "0", "--format", "json"]
    found = CliRunner().invoke(app, ["explain", *arguments, *ways])
    assert found.exit_code == 0, found.output
    data = json.loads(found.stdout)
    [pipeline], stages = data["pipeline"], data["phases"]
    assert pipeline["value_s"] == pytest.approx(pipeline["plan_s"])
    [every] = [one for one in stages[1]["totals"] if one["what"] == "layer: all, with waiting"]
    assert every["formula"] == "2*fetch_layer + 2*t_layer" and every["value_s"] == pytest.approx(every["plan_s"])
    assert not any("waiting" in one["what"] for one in stages[0]["totals"])
    passing_s = 2 * 4 * 64 / 1e9  # of a micro-batch, to the second stage
    assert pipeline["sizes"]["t"] == pytest.approx(every["plan_s"], rel=1e-3)
    assert pipeline["sizes"]["T"] >= every["plan_s"] + passing_s


def test_stages_stream_caches_of_each_micro_batch(tmp_path):
    pytest.importorskip("jax")
    small = HOST.replace("400e3", "230e3").replace("node_chips = 2", "node_chips = 1")
    (tmp_path / "small.toml").write_text(small.replace("[switch]", "between_bytes_per_s = 1e9\n[switch]"))
    given = {"stages": 2, "micro_batches": {"main": 2}, "offload": "caches", "check": True}
    found = escc.compile(parse(CACHES), "s=2", str(tmp_path / "small.toml"), **given)
    assert found.staged.sound and found.staged.streamed_layers == (0, 1)
    assert [one.stage.layers for one in found.staged.plan.stages] == [1, 2]
    [last], one_cache = found.stages[1], 4 * 512 * 16 * 2  # bytes of a micro-batch
    # A layer has caches of both micro-batches on the chip; of the other what runs comes, and the host has both.
    assert dict(last.memory.stored)["layer.seen"] == (2 + 1) * one_cache
    assert last.host_bytes == 2 * one_cache
    found.write("jax", tmp_path)
    module = tmp_path / "caches_pipeline_main_jax.py"
    ran = subprocess.run([sys.executable, module], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_data_has_the_fetches(compiled):
    found = compiled("--offload", "auto", "--emit", "json")
    assert found.exit_code == 0, found.output
    assert '"fetches"' in found.stdout
    said = json.loads(found.stdout)["offload"]
    assert (said["kinds"], said["placed"], said["streamed_layers"], said["layers"]) == ([], [], 5, 5)
    assert said["tensors"] == ["layer.Wq", "layer.Wk", "layer.Wv", "layer.keys"]
    assert said["status"] == "feasible" and 0 < said["gap"] < 0.01 and said["bound_s"] < said["objective_s"]
    assert "the optimum on tensors of the same layers may be up to" in found.stderr


def test_the_best_batch_is_a_table(compiled):
    found = compiled("--offload", "auto", "--best-batch")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("Batches, most sequences a second first")
    rates = [line.split()[-3:-1] for line in found.stdout.split("\n\n")[0].splitlines()[2:]]
    assert ["or", "less"] in rates  # which is no reason to plan it


def batches_with(
    rates: dict[int, float | None], step: int = 4
) -> tuple[list[tuple[int, float]], list[tuple[int, bool, bool]]]:
    """The batches that are asked for on 4 chips, each with the price below which that is, where a batch has such a
    rate, or does not fit with None, or for want of one; and what is said of them: whether it was found, or is beaten.
    All of them are multiples of `step`."""
    asked = []

    def planned(sized, below):
        batch = dict(sized.phases[-1].sizes)["B"]
        asked.append((batch, below))
        rate = rates.get(batch)
        if rate is None:
            raise NoPlan([Diagnostic("")], Outcome.INFEASIBLE)
        if batch / rate >= below:
            raise Cutoff(batch / rate)
        return batch, batch / rate

    tried = most_sequences(parse(TINY_DECODER), 4, planned, step)
    return asked, [(one.batch, one.found is not None, one.beaten) for one in tried]


def test_batches_are_asked_for_below_what_the_best_would_take():
    asked, found = batches_with({4: 1.0, 8: 2.0, 12: 1.8, 16: 1.5, 32: 1.2, 64: 9.0})
    below = [math.inf, *(seconds * (1 - WORTH) for seconds in (8.0, 8.0, 16.0, 6.0))]
    assert asked == [*zip((4, 8, 16, 32, 12), below, strict=True)]
    assert found == [(8, True, False), (4, True, False), (12, False, True), (16, False, True), (32, False, True)]


@pytest.mark.parametrize("best", [20, 24, 36, 44, 60])
@pytest.mark.parametrize("larger", [0.5, None])
def test_the_best_batch_is_looked_for_on_both_sides_of_the_best_that_was_doubled(best: int, larger: float | None):
    """More sequences a second up to it, and of larger ones few, or they do not fit."""
    rates = {n: n if n <= best else larger and larger * best * (1 - n / 1000) for n in range(4, 300, 4)}
    _, found = batches_with(rates)
    assert found[0] == (best, True, False)


@pytest.mark.parametrize("best", [1, 2, 3, 5, 6, 7, 9, 15])
def test_a_batch_need_not_be_a_multiple_of_the_chips(best: int):
    """As many as fit have the most sequences a second, of fewer than chips too."""
    _, found = batches_with({n: float(n) for n in range(1, best + 1)}, step=1)
    assert found[0] == (best, True, False)
    if best >= 4:  # whole sequences for each chip are tried first
        rates = {n: float(n if n % 4 == 0 else 1) for n in range(1, best + 1)}
        assert batches_with(rates, step=1)[1][0] == (best // 4 * 4, True, False)


def test_no_batch_is_tried_below_the_smallest_that_does_not_fit():
    with pytest.raises(NoPlan):
        batches_with({}, step=1)
    with pytest.raises(NoPlan):
        batches_with({1: 1.0, 2: 1.0}, step=4)


def test_ever_larger_batches_that_have_ever_so_little_more_are_not_looked_for():
    """As in two stages: the more micro-batches, the less of the time a stage waits for the other."""
    asked, found = batches_with({n: n / (n + 4) for n in range(4, 1 << 21, 4)})
    assert max(batch for batch, _ in asked) < 1 << 16
    assert found[0][0] / (found[0][0] + 4) > 1 - 2 * WORTH


def test_a_batch_is_halfway_to_the_next_to_a_sixteenth():
    asked, _ = batches_with({n: max(1.0, min(n, 600 - n)) for n in range(4, 3000, 4)})
    assert [batch for batch, _ in asked[9:]] == [384, 320, 352, 288, 304]


def test_the_largest_batch_is_looked_for_between_one_that_fits_and_one_that_does_not():
    asked, found = batches_with({4: 1.0, 8: 2.0, 12: 3.0})
    assert asked == [
        (4, math.inf),
        *((batch, seconds * (1 - WORTH)) for batch, seconds in ((8, 8.0), (16, 8.0), (12, 6.0))),
    ]
    assert found[0] == (12, True, False) and found[-1] == (16, False, False)


def test_the_best_batch_in_stages_is_the_best_of_those_that_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("layers.esti").write_text(LAYERS.replace("repeat 3", "repeat 6"))
    chip = HOST.replace("400e3", "110e3").replace("flops_per_s = 1e12", "flops_per_s = 1e13")
    chip = chip.replace("dram_bytes_per_s = 1e10", "dram_bytes_per_s = 1e12")
    Path("small.toml").write_text(chip.replace("link_bytes_per_s = 1e9", "link_bytes_per_s = 1e11"))
    arguments = ["layers.esti", "--chips", "2", "--hardware", "small.toml", "--micro-batches", "main=2"]
    found = CliRunner().invoke(app, ["compile", *arguments, "--stages", "2", "--offload", "weights", "--best-batch"])
    assert found.exit_code == 0, found.output
    said, plan = found.stdout.split("\n\n", 1)
    title, _, *lines = said.splitlines()
    rows = [line.split() for line in lines]
    fit = [row for row in rows if row[-1] != "fit"]
    assert title.startswith("Batches") and plan.startswith("Pipeline of")
    assert all(row[1:3] == ["2", "2"] and int(row[0]) % 2 == 0 for row in fit)
    assert {row[3] for row in fit} > {"0"}  # larger ones stream
    rates = [float(row[-1].replace(",", "")) for row in fit]
    assert len(rates) > 1 and rates == sorted(rates, reverse=True)
    assert max(int(row[0]) for row in fit) < min(int(row[0]) for row in rows if row[-1] == "fit")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--offload", "auto", "--hardware", "h100"], "has no host"),
        (
            ["--offload", "auto", "--stages", "3", "--chips", "s=3", "--hardware", "two-hosts.toml"],
            "do not have hosts of 2 chips evenly",
        ),
        (["--offload", "auto", "--pad", "auto"], "`--pad auto` does not go with `--offload`"),
        (["--best-batch"], "add `--offload auto`"),
        (["--best-batch", "--input", "9", "--output", "9"], "`--best-batch` is not of a stream of requests"),
        (["--ahead", "3"], "`--ahead` is of streams from the host."),
        (["--offload", "auto", "--overlap"], "Loops are not made of programs that stream"),
    ],
)
def test_what_does_not_go_together_is_refused(compiled, arguments: list[str], said: str):
    found = compiled(*arguments)
    assert found.exit_code == 1
    assert said in found.output
    assert "hint:" in found.output


@pytest.mark.parametrize("command", [["explain"], ["check", "--backend", "jax"], ["run"]])
def test_no_command_looks_ahead_for_what_is_not_streamed(compiled, command: list[str]):
    found = CliRunner().invoke(app, [*command, "tiny.esti", "--chips", "1", "--hardware", "small.toml", "--ahead", "3"])
    assert found.exit_code == 1 and "`--ahead` is of streams from the host." in found.output


def test_what_a_pin_places_with_the_host_is_fetched_ahead(compiled):
    Path("places.pins").write_text("place layer.keys host\n")
    Path("small.toml").write_text(HOST.replace("400e3", "4e6"))
    found = [compiled("--pin", "places.pins", "--ahead", ahead) for ahead in ("0", "2")]
    assert [one.exit_code for one in found] == [0, 0], found[0].output
    assert found[0].stdout != found[1].stdout


def test_a_host_without_rates_is_refused(compiled):
    Path("small.toml").write_text(HOST.replace("link_bytes_per_s = 1e9\n", ""))
    found = compiled("--offload", "auto")
    assert found.exit_code == 1
    assert "The field `link_bytes_per_s` is missing from `[host]`." in found.output


def test_what_does_not_fit_says_what_may_help(tmp_path):
    model, chip = tmp_path / "layers.esti", tmp_path / "small.toml"
    model.write_text(LAYERS)

    def said(hbm_bytes: int, host: str, *arguments: str) -> str:
        chip.write_text(host.replace("400e3", str(hbm_bytes)).replace("node_chips = 2", "node_chips = 3"))
        done = CliRunner().invoke(app, ["compile", str(model), "--hardware", str(chip), *arguments])
        assert done.exit_code == 1, done.output
        return done.stderr.splitlines()[-1]

    none = HOST[: HOST.index("[host]")]
    in_stages = "; `--stages auto` may fit, which divides the layers over stages"
    streams = "; `--offload auto` may fit, which stores layers in the host's memory"
    with_host = (
        "; with a table `[host]` in the hardware's file `--offload auto` may fit, which stores layers in its memory"
    )
    assert streams not in said(80_000, HOST.replace("dram_bytes = 1e9", "dram_bytes = 98e3"), "--chips", "1")
    assert said(80_000, HOST.replace("dram_bytes = 1e9", "dram_bytes = 99e3"), "--chips", "1").endswith(
        f"`layer.Wd` 49.15 kB{streams}"
    )
    assert said(80_000, none, "--chips", "1").endswith(f"`layer.Wd` 49.15 kB{with_host}")
    assert said(80_000, none, "--chips", "x=3").endswith(f"`layer.Wd` 49.15 kB{in_stages}{with_host}")
    # Two layers, one that runs and one that comes, take 66 kB, and what is live beside them 4 kB.
    assert said(66_000, HOST, "--chips", "1").endswith("`layer.Wd` 49.15 kB")
    assert said(66_000, HOST, "--chips", "x=3").endswith(f"`layer.Wd` 49.15 kB{in_stages}")
    assert said(30_000, HOST, "--chips", "x=3", "--stages", "3").endswith("`layer.Wd` 16.38 kB")
    # A stage of one layer takes 33 kB, beside it a micro-batch of one row 0.5 kB, and all eight rows 4 kB.
    assert said(34_000, HOST, "--chips", "x=3").endswith(f"kB{in_stages}")
    staged = ["compile", str(model), "--hardware", str(chip), "--chips", "x=3", "--stages", "auto"]
    assert CliRunner().invoke(app, staged).exit_code == 0
    assert said(33_000, HOST, "--chips", "x=3").endswith("kB")
