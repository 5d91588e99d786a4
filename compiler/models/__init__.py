"""The models that are shipped."""
