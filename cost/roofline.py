"""Estimates on the back of an envelope: a whole model's parameters, caches and decode steps.

For questions that come before any layout. What a plan costs is read off the plan, in `estimate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .hardware import Hardware, larger


@dataclass(frozen=True)
class Decoder:
    """A decoder-only Transformer: a gated feed-forward of three matrices and grouped-query attention
    in each layer, embeddings in and out, shared where they are `tied`. Norms are left out."""

    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False

    @property
    def feed_forward_parameters(self) -> int:
        """Parameters of the three matrices of all layers."""
        return 3 * self.layers * self.d_model * self.d_ff

    @property
    def attention_parameters(self) -> int:
        """Parameters of the query, key, value and output projections of all layers."""
        return 2 * self.layers * self.d_model * self.head_dim * (self.heads + self.kv_heads)

    @property
    def vocabulary_parameters(self) -> int:
        """Parameters of the embeddings."""
        return self.d_model * self.vocabulary * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.feed_forward_parameters + self.attention_parameters + self.vocabulary_parameters

    def cache_bytes(self, tokens: Any, element_bytes: Any) -> Any:
        """Bytes of the keys and values of `tokens` tokens, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * element_bytes


def decode_step_s(
    hardware: Hardware, chips: Any, parameters: Any, parameter_bytes: Any, sequence_cache_bytes: Any, batch: Any
) -> Any:
    """Seconds of a decode step on `chips` chips that share all work evenly and talk for free.

    `parameters`: how many; `parameter_bytes`: of all of them; `sequence_cache_bytes`: of the cache of
    one sequence. The caches are read; the matmuls take the longer of arithmetic and reading.
    """
    attention = hardware.memory_s(batch * sequence_cache_bytes) / chips
    arithmetic = hardware.compute_s(2 * batch * parameters) / chips
    return attention + larger(arithmetic, hardware.memory_s(parameter_bytes) / chips)


def compute_bound_tokens(hardware: Hardware, weight_element_bytes: Any) -> Any:
    """The tokens in a batch from which on a matmul takes longer to do than its weights to read."""
    return hardware.memory_s(weight_element_bytes) / hardware.compute_s(2)
