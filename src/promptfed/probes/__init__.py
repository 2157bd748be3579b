"""What the models of a run see and expect: they are taken from its checkpoint, and nothing in its folder changes."""
