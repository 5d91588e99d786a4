"""Shipped serving engines, as TOML files."""
