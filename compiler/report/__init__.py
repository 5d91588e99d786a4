"""What is known of plans, for people and as data."""
