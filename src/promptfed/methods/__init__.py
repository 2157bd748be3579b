"""One paper, one file, client half and server half together."""
