"""Texts: the language, sharded programs, pins and expressions, read and written."""
