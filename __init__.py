"""escc, the layout compiler for sharded Transformers."""
