"""From a recipe to a run, and from a run folder back to an opened run."""
