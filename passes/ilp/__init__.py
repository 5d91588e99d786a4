"""The integer program: its columns and rows, and the solver."""
