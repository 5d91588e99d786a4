"""What a decoder-only Transformer computes, as far as the supported architectures differ."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...ir.dtype import Dtype


class Block(Enum):
    """How attention and feed-forward stand to each other."""

    SERIAL = "serial"  # one after the other, each with a norm
    PARALLEL = "parallel"  # side by side, with one norm
    PARALLEL_TWO_NORMS = "parallel, two norms"  # side by side, each with a norm


@dataclass(frozen=True)
class Norm:
    """`function`: rmsnorm or layernorm. `bias`: whether it adds one. `offset`: its scale is stored less 1."""

    function: str
    epsilon: float
    bias: bool = False
    offset: bool = False


@dataclass(frozen=True)
class Rope:
    """`turned`: how many elements of a head, an even number. `scaling`: as the language writes it."""

    base: float
    turned: int
    scaling: str | None = None


@dataclass(frozen=True)
class Biases:
    """Which of the matrices have one."""

    qkv: bool = False
    output: bool = False
    feed_forward: bool = False
    head: bool = False


@dataclass(frozen=True)
class Transformer:
    """A model. `model_dim`, `ff_dim`, `head_dim`: widths. `kv_heads` divides `heads`. `places`: how many
    positions are learned, 0 for none. `context`: the most tokens that it was made for. `gated`: whether
    the feed-forward has a gate. `qk_norm`: whether queries and keys are normed head by head.
    `scaled_scores`: whether scores are divided by the root of `head_dim`. `scaled_embedding`: whether
    embeddings are multiplied by that of `model_dim`. `tied`: one table embeds and scores."""

    architecture: str
    dtype: Dtype
    layers: int
    model_dim: int
    ff_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    norm: Norm
    block: Block
    activation: str
    gated: bool
    tied: bool
    biases: Biases = Biases()
    rope: Rope | None = None
    places: int = 0
    qk_norm: bool = False
    scaled_scores: bool = True
    scaled_embedding: bool = False

    @property
    def grouped(self) -> bool:
        """Whether several heads share keys and values, but not all of them."""
        return 1 < self.kv_heads < self.heads

    @property
    def norms(self) -> int:
        """How many norms a block has."""
        return 1 if self.block is Block.PARALLEL else 2
