"""The dense models of DeepSpeed's table as examples: their sizes, and the table of what is found for them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from escc.compiler.plan.pipeline import load
from escc.compiler.report.hardware import parameter_count
from escc.cost.engine_file import load_engine
from escc.passes.stages.divide import layers_of

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "deepspeed-dense"
# Aminabadi et al., "DeepSpeed Inference", 2022, table I: billions of parameters, layers, hidden features.
ROWS = {
    "1.5b": (1.5, 48, 1600),
    "2.7b": (2.7, 32, 2560),
    "6b": (6, 28, 4096),
    "13b": (13, 40, 5120),
    "20b": (20, 44, 6144),
    "50b": (50, 62, 8192),
    "87b": (87, 48, 12288),
    "175b": (175, 96, 12288),
    "530b": (530, 105, 20480),
}


@pytest.fixture(scope="module")
def dense() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dense", ROOT / "benchmarks" / "dense.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dense"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ROWS)
def test_sizes_are_those_published(name: str) -> None:
    billions, layers, hidden = ROWS[name]
    program = load(FOLDER / f"{name}.esti")
    assert (layers_of(program), dict(program.phases[0].sizes)["E"]) == (layers, hidden)
    assert parameter_count(program) / 1e9 == pytest.approx(billions, rel=0.06)


def test_each_model_has_a_row_of_what_is_found(dense: ModuleType) -> None:
    assert set(dense.MESHES) == {path.stem for path in FOLDER.glob("*.esti")} == set(ROWS)
    written = {line.split(" | ")[0].strip("| "): line for line in dense.DOCUMENT.read_text().splitlines()}
    assert set(ROWS) < set(written)
    for name in ("1.5b", "6b"):
        assert written[name] in dense.document({name: dense.planned(name)})


def test_a_row_says_what_is_quickest(dense: ModuleType) -> None:
    alone = dense.Row("node=2,gpu=8", None, 2.0, 0.0, ())
    staged = dense.Row("node=2,gpu=8", "node", 1.0, 0.01, (8, 2))
    [line] = [line for line in dense.document({"175b": [staged, alone]}).splitlines() if line.startswith("| 175b")]
    assert line.endswith("| 16 | 2.000 s | 2 | 8 | 8, 2 | 1.000 s | 2 stages |")


def test_many_micro_batches_in_the_prompt_are_quicker_than_few_and_than_tensors_over_nodes(dense: ModuleType) -> None:
    micro_batches, found = dense.hybrid_s(8)
    assert found["in stages"] < found["in any layout"] <= found["tensors over all"]
    assert found["as in decode"] / found["in stages"] > dense.PUBLISHED["as in decode"]
    assert dense.hybrid(micro_batches, found) in dense.DOCUMENT.read_text()


def test_micro_batches_are_those_of_fastertransformer(dense: ModuleType) -> None:
    assert dense.micro_batches(12, 20, 3) == 3
    assert [dense.micro_batches(batch, 20, 3) for batch in (1, 64, 128, 256)] == [1, 1, 2, 4]
    assert [dense.micro_batches(256, tokens, 1) for tokens in (1, 20)] == [1, 4]
    assert dense.micro_batches(3, 3000, 1) == 1  # odd


def test_splits_and_stages_of_fastertransformer_are_near_what_was_measured(dense: ModuleType) -> None:
    published = dense.published_s()
    assert sorted(published) == [1 << n for n in range(9)]
    assert all(set(each) == set(dense.WAYS) for each in published.values())
    measured = published[256]
    found = {way: dense.predicted_s(256, way) for way in dense.WAYS}
    errors = [abs(found[way] / seconds - 1) for way, seconds in measured.items()]
    assert sum(errors) / len(errors) < 0.12
    assert sorted(found, key=found.__getitem__) == sorted(measured, key=measured.__getitem__)
    text = dense.compared({256: measured}, {256: found})
    assert text.count("as measured |") == 1
    written = dense.DOCUMENT.read_text()
    assert next(line for line in text.splitlines() if line.startswith("| 256 ")) in written
    said = re.search(r"Mean error (\S+), worst (\S+?)\.\d%; .* (\S+)\.\n", written)
    assert said is not None and float(said[3]) == load_engine("fastertransformer").error
    assert f"Mean error {said[1]}, worst {said[2]}%" in (ROOT / "cost/engines/fastertransformer.toml").read_text()
