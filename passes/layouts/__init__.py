"""All layouts of a value, all strategies of an op, and all collectives between layouts."""
