"""Models by name: the shipped `.esti` files, and which text a FILE on the command line stands for."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from ...ir.diagnostics import Source, did_you_mean, fail
from ...ir.text.read import read_source
from .. import models

FOLDER = resources.files(models)


def model_names() -> tuple[str, ...]:
    """The names of the shipped models, sorted."""
    return tuple(sorted(e.name.removesuffix(".esti") for e in FOLDER.iterdir() if e.name.endswith(".esti")))


def model_source(name: str) -> Source:
    """The text of the shipped model `name`. Raises InputError when there is none."""
    if name not in model_names():
        raise fail(f"There is no model `{name[:60]}`.", hint=_near(name))
    return Source(f"{name}.esti", FOLDER.joinpath(f"{name}.esti").read_text(encoding="utf-8"))


def read_model(file: Path) -> Source:
    """The text of a file, or of the shipped model of that name where there is no such file.

    Raises InputError when it is neither, or when the file cannot be read.
    """
    name = str(file)
    if name in model_names() and not os.path.isfile(file):
        return model_source(name)
    if file.name == name and not file.suffix.startswith(".esti") and not os.path.exists(file):
        raise fail(f"`{name[:60]}` does not exist, and is no model that is shipped.", hint=_near(name))
    return read_source(file)


def _near(name: str) -> str:
    return did_you_mean(name, model_names()) or "`escc models` lists them"
