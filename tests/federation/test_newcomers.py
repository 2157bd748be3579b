"""Clients that come after the last round: who takes part, who is tested, what stays as it was."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from promptfed.backbones.pretrained import ViT
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task
from promptfed.core.tree import Tree
from promptfed.data.shares import Partition
from promptfed.federation.loop import Loop
from promptfed.federation.summarising import summarise
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpg import PFedPG
from promptfed.results.folder.record import Record
from promptfed.results.report import read_run
from promptfed.runs.config import Recipe, load
from promptfed.runs.planning import Plan, make_loop
from promptfed.runs.runner import Result, run
from support.loops import images
from support.tiny_runs import plain, write_images
from support.toys import shares

SIZES, TESTS = (9, 12, 5, 8), (4, 6, 5, 3)
FOUNDERS, NEWCOMERS = torch.tensor([0, 1]), torch.tensor([2, 3])
SMALL = PFedPG(tokens=2, epochs=1, batch=8, lr=0.05)
METHODS: dict[str, Method] = {
    "pfedpg": SMALL,
    "pfedpg by Adam": replace(SMALL, optimiser="adam"),
    "pfedpg mlp": replace(SMALL, generator="mlp"),
    "pfedpg adain": replace(SMALL, generator="adain"),
    "pfedpg without a generator": replace(SMALL, generator="none"),
    "fedavg": FedAvg(lr=0.05, epochs=1, batch=8),
    "local": Local(lr=0.05, epochs=1, batch=8),
}


def make(method: Method, folder: Path, fleet: str = "one-by-one", **changes: Any) -> Loop:
    """Return the loop of two founders and two newcomers: two rounds, then three; `folder` may hold the first."""
    data = images(sum(SIZES) + sum(TESTS))
    dealt = shares([*SIZES, *TESTS])
    partition = Partition("toy", tuple(dealt[:4]), tuple(dealt[4:]))
    made: dict[str, Any] = {"rounds": 2, "clients": 4, "newcomers": 2, "join_rounds": 3} | changes
    recipe = Recipe(**made, fleet={"name": fleet, "precision": "fp32"})
    backbone = ViT.random((3, 8, 8), 3, width=16, depth=1, heads=2, patch=4, precision="fp32")
    task, cpu = Task(backbone, data.classes, 4 - recipe.newcomers), torch.device("cpu")
    record = Record.reopen(folder) if folder.exists() else Record.create(folder, "", {})
    return make_loop(Plan(recipe, method, data, partition, task, cpu), record)


def go(loop: Loop, stop_after: int | None = None) -> list[dict[str, Any]]:
    """Run the loop, or press Ctrl-C once that many rounds are finished."""

    def progress(line: dict[str, Any]) -> None:
        if line["round"] == stop_after:
            raise KeyboardInterrupt

    try:
        loop.run(lambda: loop.save("recipe", "partition"), progress)
    except KeyboardInterrupt:
        assert loop.finished == stop_after
    return loop.record.rounds


def equal(first: Tree, second: Tree) -> bool:
    return first.keys() == second.keys() and all(value.equal(second[name]) for name, value in first.items())


# -- who takes part, and who is tested ------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_founders_first_then_newcomers(name: str, fleet: str, tmp_path: Path) -> None:
    lines = go(make(METHODS[name], tmp_path / "run", fleet))
    assert [line["clients"] for line in lines] == [[0, 1], [0, 1], [2, 3], [2, 3], [2, 3]]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    assert [len(line["received"]["per_client"]) for line in lines] == [2, 2, 4, 4, 4]
    for line in lines[2:]:
        assert [value is None for value in line["trained"]["per_client"]] == [True, True, False, False]


def test_without_newcomers_there_are_no_rounds_of_theirs(tmp_path: Path) -> None:
    lines = go(make(SMALL, tmp_path / "run", newcomers=0))
    assert [line["clients"] for line in lines] == [[0, 1, 2, 3]] * 2


def test_some_of_the_founders_and_all_of_the_newcomers(tmp_path: Path) -> None:
    lines = go(make(SMALL, tmp_path / "run", newcomers=1, per_round=2, rounds=4))
    assert all(len(line["clients"]) == 2 and max(line["clients"]) < 3 for line in lines[:4])
    assert [line["clients"] for line in lines[4:]] == [[3]] * 3


def test_the_last_round_of_the_founders_is_tested_too(tmp_path: Path) -> None:
    loop = make(SMALL, tmp_path / "run", rounds=3, evaluate={"every": 10})
    assert [line["received"] is not None for line in go(loop)] == [False, False, True, False, False, True]


@pytest.mark.parametrize("name", METHODS)
def test_both_fleets_agree(name: str, tmp_path: Path) -> None:
    one, many = make(METHODS[name], tmp_path / "one"), make(METHODS[name], tmp_path / "many", "stacked")
    for first, second in zip(go(one), go(many), strict=True):
        assert first["received"] == second["received"]
        assert first["traffic"] == second["traffic"]
    # prompts, not descriptors: where the prompt hardly depends on a descriptor, Adam makes steps of rounding
    prompts = [loop.method.download(loop.task, loop.server, torch.arange(4)) for loop in (one, many)]
    torch.testing.assert_close(*prompts, rtol=1e-3, atol=1e-4)


# -- what stays as it was -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("pfedpg")])
def test_founders_and_the_generator_stay_bit_for_bit_the_same(name: str, fleet: str, tmp_path: Path) -> None:
    method, folder = METHODS[name], tmp_path / "run"
    founded = make(method, folder, fleet)
    go(founded, stop_after=2)
    before, heads = founded.server, [founded.store.get(client) for client in (0, 1)]
    loop = make(method, folder, fleet)
    loop.restore(loop.record.state("recipe", "partition") or {})
    go(loop)
    grown = {key for key in before if key.endswith("descriptor")}
    assert loop.server.keys() == before.keys()
    assert all(loop.server[key].equal(value) for key, value in before.items() if key not in grown)
    for key in grown:
        assert loop.server[key].shape[0] == 4
        assert loop.server[key][:2].equal(before[key])
    prompts = [method.download(loop.task, server, FOUNDERS) for server in (before, loop.server)]
    assert equal(*prompts)
    assert all(equal(loop.store.get(client), heads[client]) for client in (0, 1))


@pytest.mark.parametrize("name", ["fedavg", "local", "pfedpg without a generator"])
def test_nothing_changes_on_a_server_that_makes_no_room(name: str, tmp_path: Path) -> None:
    founded = make(METHODS[name], tmp_path / "a")
    go(founded, stop_after=2)
    loop = make(METHODS[name], tmp_path / "b")
    lines = go(loop)
    assert equal(loop.server, founded.server)
    if name == "fedavg":  # newcomers receive the model of the founders and are tested on it
        assert lines[-1]["received"] == lines[2]["received"]
        assert None not in lines[-1]["received"]["per_client"]


DISTANCES: list[tuple[Tensor, Tensor]] = []


@dataclass(frozen=True)
class Watched(PFedPG):
    """Notes how far every newcomer's prompt is from what it tuned, before and after it joins."""

    def join(self, task: Task, server: Tree, clients: Tensor, up: Tree, weights: Tensor) -> Tree:
        tuned = self.generate(server, clients) + up["delta"]
        after = super().join(task, server, clients, up, weights)
        DISTANCES.append(
            (up["delta"].flatten(1).norm(dim=1), (self.generate(after, clients) - tuned).flatten(1).norm(dim=1))
        )
        return after


@pytest.mark.parametrize("generator", ["cross-attention", "mlp", "adain"])
def test_newcomers_prompts_move_towards_what_they_tuned(generator: Any, tmp_path: Path) -> None:
    DISTANCES.clear()
    go(make(Watched(tokens=2, epochs=1, batch=8, lr=0.05, generator=generator), tmp_path / "run"))
    assert len(DISTANCES) == 3
    for before, after in DISTANCES:
        assert before.shape == (2,)
        assert (after <= before + 1e-7).all()
        if generator == "cross-attention":
            assert (after < before).all()


def test_newcomers_begin_unlike_each_other_and_unlike_the_founders(tmp_path: Path) -> None:
    loop = make(SMALL, tmp_path / "run", join_rounds=1)
    go(loop)
    prompts = SMALL.download(loop.task, loop.server, torch.arange(4))["prompt"]
    assert len({tuple(one.flatten().tolist()) for one in prompts}) == 4


# -- stopping and resuming ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fleet", ["one-by-one", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_stopped_anywhere_a_run_ends_as_a_straight_one(name: str, fleet: str, tmp_path: Path) -> None:
    straight = make(METHODS[name], tmp_path / "straight", fleet)
    lines = go(straight)
    for stop in range(1, 5):
        folder = tmp_path / f"stopped-{stop}"
        go(make(METHODS[name], folder, fleet), stop_after=stop)
        loop = make(METHODS[name], folder, fleet)
        loop.restore(loop.record.state("recipe", "partition") or {})
        assert loop.finished == stop
        assert plain(go(loop)) == plain(lines)
        assert equal(loop.server, straight.server)
        assert all(equal(loop.store.get(client), straight.store.get(client)) for client in range(4))


# -- the summary, and the recipe ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("newcomers")
    words = [f"data.name=npz:{write_images(folder / 'tiny.npz')}", "partition.name=iid", "method.epochs=1"]
    words += ["clients=4", "rounds=2", "newcomers=2", "join_rounds=3", "method.tokens=2", "evaluate.after=false"]
    return run("pfedpg", out=folder / "run", overrides=tuple(words))


def test_the_summary_has_a_mean_of_the_newcomers(done: Result) -> None:
    accuracy = done.summary["accuracy"]
    assert len(accuracy["per_client"]) == len(accuracy["before"]["per_client"]) == 4
    assert accuracy["newcomers"] == pytest.approx(sum(accuracy["per_client"][2:]) / 2)
    assert accuracy["round"] == len(done.rounds) == 5
    assert accuracy["best_round"] > 2  # before, not all clients were there
    weighted = {line["round"]: line["received"]["weighted"] for line in done.rounds[2:]}
    assert accuracy["best_weighted"] == max(weighted.values()) == weighted[accuracy["best_weighted_round"]]
    assert done.summary["rounds"] == 2
    numbers = 2 * ViT((3, 8, 8), 4).token_width
    assert (done.summary["traffic"]["down_floats"], done.summary["traffic"]["up_floats"]) == (numbers, numbers)


def test_the_report_shows_newcomers_beside_founders(done: Result) -> None:
    page = (done.folder / "report.html").read_text(encoding="utf-8")
    accuracy, each = done.summary["accuracy"], done.summary["accuracy"]["per_client"]
    assert f"joined in round 3; founders {50 * sum(each[:2]):.2f} %" in page
    assert "newcomers join</text>" in page
    assert "Vertical line: newcomers join in round 3 and count from then on." in page
    run = read_run(done.folder)
    assert (run.joined, run.newcomers) == (3, accuracy["newcomers"])
    assert run.adapts == (each != accuracy["before"]["per_client"])


def test_the_report_shows_all_rounds_and_clients(done: Result) -> None:
    assert (done.folder / "report.html").exists()
    assert '"clients": 4' in (done.folder / "figures.json").read_text(encoding="utf-8")


def test_a_finished_run_is_not_run_again(done: Result) -> None:
    again = run(str(done.folder / "recipe.toml"), resume=done.folder)
    assert again.rounds == done.rounds
    assert again.summary == done.summary


def test_more_rounds_are_refused(done: Result) -> None:
    with pytest.raises(PromptFedError, match=r"newcomers join after round 2; it cannot run for more rounds\.$"):
        run(str(done.folder / "recipe.toml"), resume=done.folder, rounds=3)


@pytest.mark.parametrize(
    ("word", "sentence"), [("newcomers=1", "newcomers=2, not 1"), ("join_rounds=4", "join_rounds=3, not 4")]
)
def test_other_newcomers_are_refused(done: Result, word: str, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=f"was run with {sentence}"):
        run(str(done.folder / "recipe.toml"), resume=done.folder, overrides=(word,))


@pytest.mark.parametrize("newcomers", [4, 5])
def test_somebody_must_begin(newcomers: int) -> None:
    with pytest.raises(PromptFedError, match=rf"^newcomers={newcomers} leaves none of clients=4 to start with\.$"):
        load("fedavg", ["clients=4", f"newcomers={newcomers}"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["clients=4", "newcomers=2", "per_round=3"], r"per_round=3 is more than clients=4 less newcomers=2\."),
        (["newcomers=-1"], "newcomers must be at least 0"),
        (["newcomers=1", "join_rounds=0"], "join_rounds must be at least 1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        load("fedavg", words)


def test_newcomers_without_test_images_have_no_mean(tmp_path: Path) -> None:
    record = Record(tmp_path)
    scores = {"mean": 0.5, "weighted": 0.5, "per_client": [0.5, None, None]}
    traffic = dict.fromkeys(("down_floats", "up_floats", "down_bytes", "up_bytes"), 0)
    record.rounds = [
        {
            "round": 1,
            "received": scores,
            "trained": scores,
            "deployed": None,
            "traffic": traffic,
            "images": 1,
            "seconds": 1.0,
        }
    ]
    assert summarise(record, {}, None, None, 2)["accuracy"]["newcomers"] is None
    assert summarise(record, {}, None, None, 3)["accuracy"]["newcomers"] == 0.5
    assert "newcomers" not in summarise(record, {}, None, None)["accuracy"]
