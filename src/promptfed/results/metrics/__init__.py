"""Measures for imbalanced classes and for confidence, with intervals, from a run's predictions: numpy only.

From what is counted of a set of images (tallies.py) and the areas under the ROC curve (ranking.py), with a bootstrap
(resampling.py), to all of it as summary.json has it (measures.py).
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
