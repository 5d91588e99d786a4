"""From a model to verified plans, emitted programs and reports; the command line."""
