"""The driver, the backends and the command line."""
