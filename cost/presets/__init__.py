"""The chips that are shipped, one file each, with a source for every figure."""
