"""The road from a model's text to verified plans: models, the passes in order, slice shapes, paddings."""
