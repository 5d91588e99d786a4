"""Loops in which collectives and einsums hide each other."""
