"""Real sites: the same loop and methods, with every client on a machine of its own."""
