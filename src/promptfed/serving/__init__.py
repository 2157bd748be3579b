"""Answering over HTTP: many personal models over one backbone in memory, in mixed batches."""
