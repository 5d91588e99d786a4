"""Program in, program out: expand, enumerate, choose, insert."""
