"""The run folder: every file name in it, and all reading and writing of them."""
