"""Real sites: the same round loop and the same method, with every client on a machine of its own."""
