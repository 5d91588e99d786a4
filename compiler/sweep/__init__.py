"""Sweeps: one model over slices, batches, contexts and weight formats, to a frontier of latency and cost."""
