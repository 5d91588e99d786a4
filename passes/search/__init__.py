"""The search: a graph of choices, bounds, and the proof."""
