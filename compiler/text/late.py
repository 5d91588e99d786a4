"""Modules that most plans do without: importing takes as long as planning a layer does."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def late(module: str) -> Any:
    """A module of this package by its name in it, `compiler.plan.autopad`, imported when it is asked for."""
    return import_module(f"...{module}", __package__)
