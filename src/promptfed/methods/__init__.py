"""One file per paper, client half and server half together."""
