"""What a stream of requests gets of a plan, as text, as data and as the facts of a page."""

from __future__ import annotations

from dataclasses import asdict

from ...ir.diagnostics import size_text
from ...ir.record import record
from ..plan.serving import Served, Stream
from ..text.terminal import count_text, time_text


@record
class ServedStream:
    """A stream, and what it gets."""

    stream: Stream
    found: Served

    def text(self) -> str:
        """In three lines; each ends in a newline."""
        stream, found = self.stream, self.found
        return (
            f"A stream of {self._lengths()}\n"
            f"  {time_text(found.token_s)} between the tokens of a request: {self._between()}; "
            f"{time_text(found.pause_s)} at most\n"
            f"  {count_text(found.tokens_per_s)} tokens/s in all, {count_text(found.tokens_per_s_per_user)} for each; "
            f"the first after {time_text(found.first_token_s)} at most; a chip holds {size_text(found.hbm_bytes)}, "
            f"with {stream.places:,} places for each sequence\n"
        )

    def data(self) -> dict[str, object]:
        """For JSON: what was asked for, and the figures of `Served`. `chunk`: the tokens of a prompt that are taken in
        at once, null for all; `places`: those that the caches of a sequence have. Times are seconds, sizes bytes of a
        chip."""
        stream = self.stream
        asked = {
            "input_tokens": stream.input_tokens,
            "output_tokens": stream.output_tokens,
            "batch": stream.batch,
            "chunk": stream.chunk,
            "places": stream.places,
        }
        rate = {"tokens_per_s_per_user": self.found.tokens_per_s_per_user}
        return asked | asdict(self.found) | rate

    def facts(self) -> list[tuple[str, str]]:
        """Their names and what they are, for a page."""
        found = self.found
        rates = f"{count_text(found.tokens_per_s)} in all, {count_text(found.tokens_per_s_per_user)} for each"
        return [
            ("stream", self._lengths()),
            ("between tokens", f"{time_text(found.token_s)}: {self._between()}"),
            ("longest pause", time_text(found.pause_s)),
            ("first token", f"{time_text(found.first_token_s)} at most"),
            ("tokens a second", rates),
            ("a chip holds", size_text(found.hbm_bytes)),
        ]

    def _lengths(self) -> str:
        stream = self.stream
        chunks = f", prompts taken in {stream.new:,} tokens at a time" if stream.chunks > 1 else ""
        return f"{stream.input_tokens:,} tokens in and {stream.output_tokens:,} out, {stream.batch:,} at once{chunks}"

    def _between(self) -> str:
        prompts, found = self.stream.batch / self.stream.output_tokens, self.found
        return (
            f"a step of {time_text(found.step_s)}, and {prompts:.3g} prompts of {time_text(found.prefill_s)} beside it"
        )
