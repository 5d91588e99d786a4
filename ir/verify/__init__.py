"""Is a sharded program right? Layouts recomputed, steps that run as one, and the program that it should be."""
