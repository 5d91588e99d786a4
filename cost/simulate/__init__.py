"""Collectives moved over the links of a mesh, block by block: what formulas are judged against."""
