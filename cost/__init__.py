"""What things cost: hardware, collectives, ops. Each formula is written once."""
