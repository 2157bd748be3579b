"""Recipe keys that do not matter when runs are compared; every comparison takes its list from here.

Two more rules are about a recipe's fingerprint, and stand beside it: `runs.recipe.ADDED_KEYS`, keys that were added
later and are left out at their default, and `federation.guard_options.deciding`, which leaves out guards that are off.
"""

# Where a run is made and how often it is saved: no number depends on it. A fingerprint takes these values instead.
PLACE = {"device": "auto", "checkpoint_seconds": 0.0}

# Which of the measures comes first: all of them are always computed.
SHOWN = "evaluate.metric"

# Runs that differ in these alone repeat each other: a report pools them in one row.
REPEATED = frozenset({"seed", *PLACE, SHOWN})

# How often a run is evaluated besides: it changes neither what is trained nor what is tested at the end.
EVALUATION = frozenset(f"evaluate.{key}" for key in ("every", "personal", "after", "sets", "elsewhere"))

# All keys that leave alone what a paper would have measured.
OURS = REPEATED | EVALUATION
