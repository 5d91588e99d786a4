"""What was chosen, spelled out as a sharded program."""
