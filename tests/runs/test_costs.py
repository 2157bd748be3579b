"""What a plan says beforehand is what the run then sends, and its counts are those worked out by hand."""

from pathlib import Path

import pytest

from promptfed.runs import config, costs, execution
from support.tiny_runs import tiny, write_images

SAMPLED = ["clients=5", "per_round=2", "rounds=4"]
CASES = {
    "everyone": ("fedavg", []),
    "sampled": ("fedavg", SAMPLED),
    "a prompt of its own": ("pfedpt", ["method.prompt_epochs=1"]),
    "nothing is sent": ("local", []),
    "newcomers": ("fedavg", ["newcomers=1", "join_rounds=2"]),
    "a secure sum": ("fedavg", ["guards.secure=true"]),
    "sent once": ("fedmtl", SAMPLED),
    "a stack": ("fedavg", ["fleet.name=stacked", "fleet.width=3"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_bytes_are_those_of_the_runs_own_summary(tmp_path: Path, case: str) -> None:
    method, more = CASES[case]
    recipe = config.load_one(method, tiny(write_images(tmp_path / "tiny.npz"), *more))
    planned = costs.estimate(recipe)
    summary = execution.start(recipe, tmp_path / "run").summary
    assert (planned.down_bytes, planned.up_bytes) == (
        summary["traffic"]["down_bytes"],
        summary["traffic"]["up_bytes"],
    )


def test_steps_parameters_and_disk_are_counted(tmp_path: Path) -> None:
    recipe = config.load_one(
        "fedavg",
        tiny(write_images(tmp_path / "tiny.npz"), "method.batch=4", "method.epochs=2", "evaluate.after=false"),
    )
    planned = costs.estimate(recipe)
    # 96 images, a fifth of each class for testing: 76 to train on, 19 for each of 4 clients, so 5 batches of 4
    assert planned.steps == 3 * 4 * 2 * 5
    assert (planned.rounds, planned.clients, planned.trainings) == (3, 4, 12)
    assert planned.frozen == 0
    assert planned.down_bytes == planned.up_bytes == 4 * planned.trained * 12, "float32, twelve times"
    assert planned.round_up_bytes * 3 == planned.up_bytes
    assert planned.checkpoint_bytes == 4 * planned.trained


def test_frozen_weights_are_told_from_trained_ones(tmp_path: Path) -> None:
    images = write_images(tmp_path / "tiny.npz", count=16, side=32)
    words = [f"data.name=npz:{images}", "clients=2", "partition.name=iid", "rounds=1", "method.batch=2"]
    prompts = costs.estimate(config.load_one("fedvpt", [*words, "method.tokens=3"]))
    whole = costs.estimate(config.load_one("vit-full", [*words, "backbone.name=vit"]))
    width, classes = 160, 4
    assert prompts.trained == 3 * width + (width + 1) * classes, "three tokens and a head"
    assert prompts.frozen == 1_874_400
    assert whole.frozen == 0, "its weights are all trained, beside the head"
    assert whole.trained == prompts.frozen + (width + 1) * classes


def test_time_is_what_steps_and_trainings_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr(costs, "clock", lambda: float(next(ticks)))  # every look at the clock is a second later
    planned = costs.estimate(config.load_one("fedavg", tiny(write_images(tmp_path / "tiny.npz"))))
    assert planned.step_seconds == 0.0, "one step and three take a second each, by this clock"
    assert planned.training_seconds == 3 * 4 + 4, "twelve trainings, and one more of each client at the end"
    assert planned.testing_seconds == 3 * (4 + 4) + 4 + 4, "received and trained; the server's; after one more"
    assert (planned.server_seconds, planned.loading_seconds) == (3, 1)
    assert planned.seconds == 16 + 32 + 3 + 1
