"""What a stream of requests gets, as text."""

from __future__ import annotations

from ..plan.serving import Served, Stream
from ..text.terminal import count_text, time_text


def served_text(found: Served, stream: Stream) -> str:
    """What a stream gets, in three lines."""
    prompts = stream.batch / stream.output_tokens
    return (
        f"A stream of {stream.input_tokens:,} tokens in and {stream.output_tokens:,} out, {stream.batch:,} at once"
        + (f", prompts taken in {stream.chunk:,} tokens at a time" if stream.chunk else "")
        + "\n"
        f"  {time_text(found.token_s)} between the tokens of a request: a step of {time_text(found.step_s)}, and "
        f"{prompts:.3g} prompts of {time_text(found.prefill_s)} beside it; {time_text(found.pause_s)} at most\n"
        f"  {count_text(found.tokens_per_s)} tokens/s in all, {count_text(found.tokens_per_s_per_user)} for each; "
        f"the first after {time_text(found.first_token_s)}; a chip holds {found.hbm_bytes / 1e9:.1f} GB\n"
    )
