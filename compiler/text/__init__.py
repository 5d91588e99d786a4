"""Text and files: tables, units, the terminal, files written whole or not at all."""
