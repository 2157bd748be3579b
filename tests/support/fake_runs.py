"""Small fake run folders: the files a run writes, with numbers made up by a formula."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from promptfed.results import figures
from support.reports import MakeRun

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DOMAINS = ("studio", "street")


def scores(level: float, clients: int, newcomers: int = 0) -> dict[str, Any]:
    """Accuracies around `level`; client c is c % 5 percent points away from it, newcomers are ten points lower."""
    per_client = [round(level + 0.02 * (client * 7 % 5 - 2), 4) for client in range(clients)]
    per_client = [round(value - 0.1, 4) if c >= clients - newcomers else value for c, value in enumerate(per_client)]
    ordered = sorted(per_client)
    middle = sum(per_client) / clients
    p10 = ordered[max(0, clients // 10)]
    return {"mean": middle, "weighted": middle + 0.001, "worst": ordered[0], "p10": p10, "per_client": per_client}


def one_round(number: int, level: float, clients: int, floats: int, newcomers: int = 0) -> dict[str, Any]:
    """One line of rounds.jsonl, evaluated in every second round and in the first; newcomers take part alone."""
    chosen = [client for client in range(clients) if (client + number) % 2 == 0]
    chosen = list(range(clients - newcomers, clients)) if newcomers else chosen
    shown = number == 1 or number % 2 == 0
    trained = scores(level + 0.03, clients)
    trained["per_client"] = [value if c in chosen else None for c, value in enumerate(trained["per_client"])]
    return {
        "round": number,
        "clients": chosen,
        "loss": 2.0 / number,
        "received": scores(level, clients, newcomers) if shown else None,
        "trained": trained if shown else None,
        "deployed": {"all": level - 0.1, "studio": level, "street": level - 0.2} if shown else None,
        "measures": {"prompt_drift": 0.1 / number},
        "traffic": {
            "down_floats": floats,
            "up_floats": floats,
            "down_bytes": 4 * floats * len(chosen),
            "up_bytes": 4 * floats * len(chosen),
        },
        "seconds": 1.5,
    }


def summary(options: dict[str, Any], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary.json that fits the rounds."""
    last = next(one for one in reversed(rounds) if one["received"])
    total = sum(one["traffic"]["down_bytes"] for one in rounds)
    floats, level, late = options["floats"], options["level"], options["newcomers"]
    final = last["received"] if options["adapted"] is None else scores(options["adapted"], options["clients"], late)
    joined = {"newcomers": sum(final["per_client"][-late:]) / late} if late else {}
    return {
        "method": options["method"],
        "dataset": options["dataset"],
        "partition": "dirichlet",
        "backbone": "cnn",
        "seed": options["seed"],
        "clients": options["clients"],
        "rounds": options["rounds"],
        "device": "cpu",
        "accuracy": {
            **final,
            "round": last["round"],
            "best_round": last["round"],
            "best_mean": last["received"]["mean"],
            "before": last["received"],
            "after": scores(level + 0.03, options["clients"]),
            "deployed": last["deployed"],
            **joined,
        },
        "traffic": {"down_floats": floats, "up_floats": floats, "down_bytes": total, "up_bytes": total},
        "seconds": 1.5 * options["rounds"],
        "images_per_second": 1234.5,
        "recipe_hash": "sha256:0",
        "partition_hash": "sha256:1",
    }


def partition(clients: int) -> dict[str, Any]:
    """Client c holds three neighbouring classes, most of class c."""
    rows = []
    for client in range(clients):
        counts = [0] * len(CLASSES)
        for step, images in enumerate((60, 30, 10)):
            counts[(client + step) % len(CLASSES)] = images
        rows.append({"train": [], "test": [0] * 20, "counts": counts, "domains": [70, 30] if client % 2 else [0, 100]})
    head = {"name": "dirichlet", "hash": "sha256:1", "classes": list(CLASSES), "domain_names": list(DOMAINS)}
    return head | {"clients": rows}


def shown(clients: int, domains: int) -> dict[str, Any] | None:
    """The figures.json of clients whose prompts follow their domain and, less, their most frequent class."""
    rng = np.random.default_rng(0)
    domain = np.arange(clients) % domains
    counts = np.array([client["counts"] for client in partition(clients)["clients"]])
    centres, pulls = rng.normal(size=(domains, 32)), rng.normal(size=(len(CLASSES), 32))
    descriptors = centres[domain] + 0.5 * pulls[counts.argmax(1)] + 0.4 * rng.normal(size=(clients, 32))
    logits = descriptors @ rng.normal(size=(32, 10)) / 8
    weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    prompts = rng.normal(size=(10, 32)) + 0.1 * (weights @ rng.normal(size=(10, 32)))[:, None]
    exhibits = {"prompts": prompts, "descriptors": descriptors, "attention": weights}
    return figures.make(exhibits, counts, domain, DOMAINS[:domains])


def recipe(options: dict[str, Any]) -> str:
    """A resolved recipe."""
    return (
        f"seed = {options['seed']}\nrounds = {options['rounds']}\n"
        f"newcomers = {options['newcomers']}\njoin_rounds = {options['join_rounds']}\n\n"
        f'[method]\nname = "{options["method"]}"\nlr = {options["lr"]}\n\n[data]\nname = "{options["dataset"]}"\n\n'
        f'[partition]\nname = "dirichlet"\nalpha = {options["alpha"]}\nclients = {options["clients"]}\n\n'
        '[backbone]\nname = "cnn"\n\n[fleet]\nname = "stacked"\n'
    )


def write_run(folder: Path, **changes: Any) -> Path:
    """Write one run folder; `done` is how many rounds are in it, all of them unless told.

    With `adapted` the models are that accurate once the method has adapted them. The last `newcomers` clients come for
    `join_rounds` rounds after the others'.
    With `domains` the clients are dealt to as many domains, and there is a figures.json.
    """
    options: dict[str, Any] = {
        "method": "pfedpt", "dataset": "fashion-shops", "seed": 0, "clients": 4, "rounds": 6, "level": 0.8, "lr": 0.1,
        "alpha": 0.3, "floats": 7680, "pictures": 0,
        "domains": 0, "adapted": None, "newcomers": 0, "join_rounds": 0,
    } | changes  # fmt: skip
    total, clients, late = options["rounds"] + options["join_rounds"], options["clients"], options["newcomers"]
    done = options.get("done", total)
    rounds = []
    for number in range(1, done + 1):
        level = options["level"] - 0.4 * (1 - min(1, number / options["rounds"])) ** 2
        there = (
            (clients, options["floats"], late) if number > options["rounds"] else (clients - late, options["floats"])
        )
        rounds.append(one_round(number, level, *there))
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(recipe(options), encoding="utf-8")
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rounds), encoding="utf-8")
    (folder / "partition.json").write_text(json.dumps(partition(clients)), encoding="utf-8")
    env = {"promptfed": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "device": "cpu", "threads": 2}
    (folder / "env.json").write_text(json.dumps(env), encoding="utf-8")
    if done == total:
        (folder / "summary.json").write_text(json.dumps(summary(options, rounds)), encoding="utf-8")
    if options["domains"]:
        found = shown(clients, options["domains"])
        (folder / "figures.json").write_text(json.dumps(found), encoding="utf-8")
    for client in range(options["pictures"]):
        picture = Image.new("RGB", (32, 32), (40 * client % 256, 120, 200))
        picture.paste((128, 128, 128), (4, 4, 28, 28))
        (folder / "pictures").mkdir(exist_ok=True)
        picture.save(folder / "pictures" / f"frame-client-{client:03d}.png")
    return folder


def run_maker(parent: Path) -> MakeRun:
    """Return `make(name, **changes) -> Path`, which writes a run folder under `parent`."""

    def make(name: str, **changes: Any) -> Path:
        return write_run(parent / name, **changes)

    return make
