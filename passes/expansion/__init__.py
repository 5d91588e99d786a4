"""The steps of the expansion: from the surface language to primitive ops."""
