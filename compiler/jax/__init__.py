"""Emitted JAX programs run, compiled, and their modules read."""
