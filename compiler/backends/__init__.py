"""Backends that emit and run programs."""
