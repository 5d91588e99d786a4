"""What the tensors of a text model are called in a checkpoint that sees or hears as well, and which are not its own.

The names are those that the library `transformers` (https://github.com/huggingface/transformers) saves in versions 4
and 5, and those of published checkpoints that bring code of their own.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from ...ir.record import record

BODIES = ("model.", "transformer.", "gpt_neox.")  # what names begin with but for that of the head
AROUND = ("language_model.", "thinker.", "llm.", "language.", "text_model.")  # what all names may have before that
INSTEAD = ("", "model.language_model.", "model.text_model.", "language_model.", "text_model.")  # or in its place
TOWERS = (  # modules that make embeddings of what is no text, or sound of what is
    *("vision_tower", "vision_model", "vision", "visual", "vision_embedder", "vision_embed_tokens", "vpm"),
    *("audio_tower", "audio_projection_layer", "apm", "embed_vision", "embed_audio", "embed_tokens_extend"),
    *("multi_modal_projector", "mm_projector", "projector", "connector", "mlp1", "mlp_AR", "resampler"),
    *("resampler_model", "image_newline", "view_seperator", "talker", "token2wav", "code2wav", "tts"),
)
OF_TOWER = re.compile(rf"(model\.|thinker\.)?({'|'.join(TOWERS)})(\.|$)")
IMAGE_ROUTER = "gate.weight_1"  # of ERNIE, beside that of text
OF_EXPERT = re.compile(r"(?P<layer>.*\.)experts\.(?P<number>\d{1,6})\.")
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")


@record
class Start:
    """How names of a text model start in a checkpoint: with `before` before all that they are, or in the place of one
    of BODIES."""

    before: str = ""
    around: bool = True

    def name(self, own: str) -> str:
        """What the tensor `own` is called."""
        if self.around:
            return self.before + own
        body = next((one for one in BODIES if own.startswith(one)), None)
        return own if body is None else self.before + own.removeprefix(body)


STARTS = (Start(), *(Start(one) for one in AROUND), *(Start(one, around=False) for one in INSTEAD))


def start_of(table: str, tensors: Container[str]) -> Start:
    """How names start in a checkpoint with these tensors, by that of the table of tokens."""
    return next((one for one in STARTS if one.name(table) in tensors), STARTS[0])


def of_towers(shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """The tensors that belong to what sees, hears or speaks, and not to the part for text: whole modules, and of layers
    in which images have experts of their own these, which are counted on from those of text, and what chooses them."""
    found = {name for name in shapes if OF_TOWER.match(name)}
    routers = {name.removesuffix(IMAGE_ROUTER): name for name in shapes if name.endswith(IMAGE_ROUTER)}
    for name in shapes if routers else ():
        expert = OF_EXPERT.match(name)
        if expert is not None and expert["layer"] in routers:
            of_text = (0, *shapes.get(f"{expert['layer']}gate.weight", ()))[-1]
            found |= {name} if int(expert["number"]) >= of_text else set()
    return found | set(routers.values())


def is_head(name: str) -> bool:
    """Whether a tensor scores tokens, which a checkpoint may have beside the table that it is tied to."""
    return name in HEADS or any(name == around + head for around in AROUND for head in HEADS)
