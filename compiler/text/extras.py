"""Packages that only some commands need: imported when they are, or one sentence that says how to get them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...ir.diagnostics import fail

EXTRAS = {
    "scipy": "fit",
    "matplotlib": "draw",
    "distributed": "cluster",
    "tokenizers": "checkpoint",
}  # the extra of this package that installs another


def optional(module: str, what: str) -> Any:
    """A module of a package that may be missing; `what` needs it. Raises InputError where it is."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # it is there, and something that it needs is not
        hint = f"install it with `pip install 'escc[{EXTRAS[package]}]'`"
        raise fail(f"{what} takes {package}, which is not installed.", hint=hint) from None
