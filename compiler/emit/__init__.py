"""Sharded programs as source: NumPy, JAX, PartitionSpecs."""
