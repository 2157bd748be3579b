"""Measures for imbalanced classes and for confidence, with intervals, from a run's predictions: numpy only.

    tallies.py     what is counted of a set of images, and the measures computed from the counts
    ranking.py     the area under the ROC curve
    resampling.py  the bootstrap
    measuring.py   all of it, as summary.json has it
"""

METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "ece")
LESS_IS_BETTER = ("ece",)
TITLES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "ece": "ECE",
}
