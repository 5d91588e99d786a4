"""Costs as formulas in symbols, and what follows from them."""
