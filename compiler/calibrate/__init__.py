"""Measured times of models on chips: read, predicted, and what hardware files are fitted to."""
