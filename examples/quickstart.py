"""FedAvg and pFedPT on the same four clients of the embedded data set: run it, then open the report it names."""

from typing import Any

import promptfed
from promptfed.results.report import compare, read_run, write_report

setting: dict[str, Any] = {
    "rounds": 4,
    "clients": 4,
    "data": {"name": "fashion-shops", "limit": 16},  # training images per class and shop
    "partition": {"name": "pathological", "classes_per_client": 5},
    "backbone": {"name": "cnn", "channels": (8, 16), "hidden": (64,)},
    "evaluate": {"every": 2},
}

fedavg = promptfed.run("fedavg", method={"lr": 0.1, "epochs": 1, "batch": 8}, **setting)
pfedpt = promptfed.run("pfedpt", method={"lr": 0.1, "epochs": 1, "prompt_epochs": 1, "batch": 8}, **setting)

folders = [fedavg.folder, pfedpt.folder]
print(compare([read_run(folder) for folder in folders]).to_markdown())
print("Report:", write_report(folders, "runs/quickstart.html").resolve())
