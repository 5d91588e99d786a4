"""Pipelines: the layers of a program divided over stages, and the choice of them."""
