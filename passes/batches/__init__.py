"""Requests of many lengths divided into batches, and batches run through the stages of a pipeline."""
