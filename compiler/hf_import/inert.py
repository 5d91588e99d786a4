"""Fields that a config may have, and that do not change what one forward pass computes: ever, or at some values."""

from __future__ import annotations

from collections.abc import Mapping

LIBRARY = (
    "_name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "attn_implementation",
    "transformers_version",
    "tokenizer_class",
    "model_max_length",  # of a tokenizer
    "keys_to_ignore_at_inference",
    "use_cache",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "chunk_size_feed_forward",
    "prefix",
    "is_decoder",
    "output_past",
    "experts_implementation",
    "_experts_implementation",
    "is_llama_config",
    "transformers.js_config",
)
OUTPUTS = ("return_dict", "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores")
TOKENS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "begin_suppress_tokens",
    "suppress_tokens",
)
SAMPLING = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "max_length",
    "min_length",
    "early_stopping",
    "length_penalty",
    "repetition_penalty",
    "diversity_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "remove_invalid_values",
)
TRAINING = (
    "initializer_range",
    "gradient_checkpointing",
    "attention_dropout",
    "hidden_dropout",
    "classifier_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "embedding_dropout",
    "residual_dropout",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "router_aux_loss_coef",
    "output_router_logits",
)
OTHER_HEADS = (
    "task_specific_params",
    "finetuning_task",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "_num_labels",
    "n_special",
    "predict_special_tokens",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
)
ROUNDING = ("pretraining_tp", "reorder_and_upcast_attn")  # they move roundings only

INERT = frozenset((*LIBRARY, *OUTPUTS, *TOKENS, *SAMPLING, *TRAINING, *OTHER_HEADS, *ROUNDING))

# Switches of some architectures that configs of others carry, with the values at which they say nothing there.
AT_REST: Mapping[str, tuple[bool | int | float, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "qk_layernorm": (False,),
    "use_qk_norm": (False,),
    "use_mrope": (False,),
    "rope_interleaved": (False,),
    "use_sliding_window": (False,),
    "use_bidirectional_attention": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "partial_rotary_factor": (1.0, 1),
}
