"""Clipping, noise and the accountant over sites: what is local happens before anything leaves; a site keeps count."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards.accountant import composed_epsilon, epsilon
from promptfed.federation.loop import rng_for
from promptfed.sites import coordinator, wire
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from support.faults import Crash, ignore
from support.three_sites import NAMES, Ask, begin, exchange, furthest, lines, recipe, server_tree, workers

CLIP, NOISE = 0.5, 4.0
CLIPPED = (f"guards.clip={CLIP}", "rounds=1")
LOCAL = (*CLIPPED, f"guards.noise={NOISE}", "guards.entropy=system")
CENTRAL = (*LOCAL, "guards.place=central")


def sent(folder: Path, words: Sequence[str]) -> tuple[dict[str, Tree], Tree, Any]:
    """Run a round; return what left each site as its `up`, the server's tree after it, and the round's line."""
    folder.mkdir()
    answers: dict[str, Tree] = {}

    def listening(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head, data = wire.unpack(request, 2**30).head, ask(request)
            if head["kind"] == "fit" and head["keep"]:
                found = wire.unpack(data, 2**30).tree
                answers[site] = {name: value for name, value in found.items() if name.startswith("up.")}
                answers[f"{site} weight"] = {"weight": found["weight"]}
            return data

        return answer

    out, federation = begin(folder, "fedavg", *words)
    coordinator.conduct(out, federation, exchange(folder, listening), ignore)
    return answers, server_tree(out), lines(out)[0]


def flat(tree: Tree) -> torch.Tensor:
    return torch.cat([value.reshape(-1).double() for value in tree.values()])


def test_local_noise_is_on_what_leaves_a_site_and_central_noise_is_not(tmp_path: Path) -> None:
    clipped, mean, _ = sent(tmp_path / "clipped", CLIPPED)
    local, _, line = sent(tmp_path / "local", LOCAL)
    central, noised, told = sent(tmp_path / "central", CENTRAL)
    count = len(flat(mean))
    assert count > 1000
    # with noise, all count alike
    even = {name: torch.stack([clipped[site][f"up.{name}"] for site in NAMES]).mean(0) for name in mean}
    for site in NAMES:
        noise = flat(local[site]) - flat(clipped[site])
        assert float(noise.std()) == pytest.approx(NOISE * CLIP, rel=0.1)
        assert furthest(central[site], clipped[site]) == 0  # clipped, and nothing else
        assert float(local[f"{site} weight"]["weight"]) == float(central[f"{site} weight"]["weight"]) == 1.0
    noise = flat(noised) - flat(even)
    assert float(noise.std()) == pytest.approx(NOISE * CLIP / 3, rel=0.1)
    assert line["privacy"]["epsilon"] == told["privacy"]["epsilon"] == [epsilon(NOISE, 1e-5, 1)] * 3


def test_local_noise_under_masks(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    out, federation = begin(folder, "fedavg", *LOCAL, "guards.secure=true")
    coordinator.conduct(out, federation, exchange(folder), ignore)
    _, mean, _ = sent(tmp_path / "clipped", CLIPPED)
    noise = flat(server_tree(out)) - flat(mean)
    assert float(noise.std()) == pytest.approx(NOISE * CLIP / 3**0.5, rel=0.15)  # of three, on their mean


class Site:
    """One site, asked step by step for its answers to a recipe with noise and a budget of two of them."""

    def __init__(self, folder: Path) -> None:
        words = ("guards.clip=0.0001", "guards.noise=20.0", "guards.entropy=system", "rounds=2")
        self.folder = folder
        self.recipe = recipe("fedavg", *words, f"guards.budget={epsilon(20.0, 1e-5, 2) + 1e-9}").to_toml()
        self.restart()

    def restart(self) -> None:
        self.worker = workers(self.folder)["north"]

    def head(self, number: int, run: str) -> dict[str, object]:
        head = {"run": run, "round": number, "nonce": f"{number:032d}", "site": "north", "client": 0, "classes": []}
        return head | {"recipe": self.recipe, "base": "", "settled": "", "keep": True, "test": False}

    def fit(self, number: int, scale: float = 1.0, run: str = "x") -> Message:
        common = self.head(number, run)
        self.ask(common | {"kind": "hello"}, {})
        place = self.worker._run
        assert place is not None
        down = place.method.init_server(place.task, rng_for(0, "server"))
        down = {name: value * scale for name, value in down.items()}
        return self.ask(common | {"kind": "fit", "names": list(down)}, down)

    def ask(self, head: dict[str, object], content: Tree) -> Message:
        return wire.unpack(self.worker.answer(wire.pack(Message(head, content))), 2**30)


def test_a_site_stops_at_its_budget_whatever_the_coordinator_says(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert "error" not in site.fit(0).head
    site.restart()  # the count is on disk
    assert "error" not in site.fit(1).head
    refused = site.fit(2)
    assert refused.head["error"] == "its privacy budget allows no more than 2 answers"
    assert refused.tree == {}
    site.restart()
    assert "allows no more than 2 answers" in site.fit(2).head["error"]


def test_an_answer_asked_for_once_more_is_the_same_one_and_costs_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.fit(0)
    first = site.fit(1)
    site.restart()
    assert furthest(site.fit(1).tree, first.tree) == 0
    assert "allows no more" in site.fit(1, scale=2.0).head["error"]  # from another tree it is another answer
    assert furthest(site.fit(1).tree, first.tree) == 0


@pytest.mark.parametrize("method", ["fedavg", "pfedpt"])
def test_a_repeated_round_after_a_crash_costs_a_site_nothing(method: str, tmp_path: Path) -> None:
    budget = f"guards.budget={epsilon(20.0, 1e-5, 3) + 1e-9}"
    words = ("guards.clip=0.0001", "guards.noise=20.0", "guards.entropy=system", budget, "rounds=9")
    federation = Federation(NAMES, patience_seconds=0.1)
    out, _ = begin(tmp_path, method, *words, federation=federation)
    post = exchange(tmp_path)
    ask = post.exchange
    crashes = [1, 2]

    def dying(round: int, requests: Any, timeout: float) -> Any:  # noqa: A002
        answers = ask(round, requests, timeout)
        if round in crashes and wire.unpack(requests["west"], 2**30).head["kind"] == "fit":
            crashes.remove(round)
            raise Crash
        return answers

    post.exchange = dying  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(Crash):
            coordinator.conduct(out, federation, post, ignore)
    coordinator.conduct(out, federation, post, ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2]] * 3
    for site in NAMES:
        assert json.loads(next((tmp_path / "home" / site).glob("runs/*/answers.json")).read_text()) == 3


def life(site: Site, answers: int) -> None:
    """Let the owner's terms allow so many answers of the site's recipe in all its life."""
    most = composed_epsilon(((20.0, answers),), 1e-5) + 1e-9
    site.worker.home.mkdir(parents=True, exist_ok=True)
    (site.worker.home / "terms.toml").write_text(f"[guards]\nepsilon_for_life = {most}\n")


def test_epsilon_for_life_counts_across_the_names_of_runs_and_restarts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    life(site, 3)
    assert "error" not in site.fit(0).head
    assert "error" not in site.fit(1).head
    site.restart()
    assert "error" not in site.fit(0, run="y").head  # another run's budget, the same life
    refused = site.fit(1, run="z")
    assert refused.head["error"].startswith("its owner's terms allow ε=")
    assert refused.head["error"].endswith("at δ=1e-05")
    assert refused.tree == {}
    ledger = site.worker.home / "ledger.jsonl"
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [(entry["run"], entry["round"], entry["noise"]) for entry in entries] == [
        ("x", 0, 20.0),
        ("x", 1, 20.0),
        ("y", 0, 20.0),
    ]
    assert ledger.stat().st_mode & 0o777 == 0o600


def test_an_answer_asked_for_again_is_in_the_ledger_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    life(site, 1)
    first = site.fit(0)
    site.restart()
    assert furthest(site.fit(0).tree, first.tree) == 0
    assert len((site.worker.home / "ledger.jsonl").read_text().splitlines()) == 1


def test_a_torn_ledger_line_never_left_and_a_damaged_one_stops_the_site(tmp_path: Path) -> None:
    site = Site(tmp_path)
    life(site, 2)
    site.fit(0)
    ledger = site.worker.home / "ledger.jsonl"
    with ledger.open("a") as file:
        file.write('{"noise": 2')
    assert "error" not in site.fit(1).head
    assert len(ledger.read_text().splitlines()) == 2
    ledger.write_text('{"noise": 0}\n')
    assert "ledger.jsonl is damaged" in site.fit(0, run="y").head["error"]


def test_epsilon_for_life_refuses_answers_without_noise_at_the_site(tmp_path: Path) -> None:
    site = Site(tmp_path)
    life(site, 2)
    site.recipe = recipe("fedavg").to_toml()
    assert (
        "limit ε for life, so they ask for guards.noise"
        in site.ask(site.head(0, "x") | {"kind": "hello"}, {}).head["error"]
    )


def test_over_sites_a_draw_that_all_can_compute_does_not_lower_epsilon(tmp_path: Path) -> None:
    words = ("guards.clip=0.01", "guards.noise=4.0", "guards.entropy=system", "guards.place=central", "per_round=1")
    out, federation = begin(tmp_path, "fedavg", *words, "rounds=2")
    summary = coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    drawn: Any = [line["clients"] for line in lines(out)]
    for client, spent in enumerate(summary["privacy"]["epsilon"]):
        assert spent == epsilon(4.0, 1e-5, sum(client in one for one in drawn))
    assert max(summary["privacy"]["epsilon"]) > epsilon(4.0, 1e-5, 1, (3, 1))


def test_a_site_with_no_budget_left_says_so_in_the_coordinators_sentence(tmp_path: Path) -> None:
    budget = f"guards.budget={epsilon(20.0, 1e-5, 2) + 1e-9}"
    words = ("guards.clip=0.0001", "guards.noise=20.0", "guards.entropy=system", budget, "rounds=2")
    federation = Federation(NAMES, patience_seconds=0.1)
    out, _ = begin(tmp_path, "fedavg", *words, federation=federation)

    def spend(line: Any) -> None:
        for path in (tmp_path / "home" / "south").rglob("answers.json"):
            path.write_text("2")

    with pytest.raises(PromptFedError, match=r"south: it says: its privacy budget allows no more than 2 answers"):
        coordinator.conduct(out, federation, exchange(tmp_path), spend)
