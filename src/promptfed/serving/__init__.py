"""Answering over HTTP: many personal models over one backbone in memory, in mixed batches; and a live view of runs."""
