"""Absurd answers without a robust rule: refused by the site's name; the server's model stays finite."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.methods.fedavg import FedAvg
from promptfed.sites import coordinator, wire
from promptfed.sites.masks import Masks
from promptfed.sites.plausibility import Plausibility
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from support.faults import ignore
from support.three_sites import NAMES, Ask, Change, begin, exchange, lines, server_tree


def enlarged(factor: float, sites: Sequence[str] = ("west",), since: int = 0) -> Change:
    """Return sites of which some send far too large numbers, from some round on."""

    def wrap(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            found = wire.unpack(ask(request), 2**30)
            if site not in sites or found.head["kind"] != "fit" or found.head["round"] < since:
                return wire.pack(found)
            large = {name: value + factor for name, value in found.tree.items() if name.startswith("up.")}
            return wire.pack(Message(found.head, found.tree | large))

        return answer

    return wrap


@pytest.mark.parametrize("factor", [1e4, 1e30, 3e38])
def test_an_implausible_answer_is_refused_by_name_and_the_round_survives(factor: float, tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2))
    coordinator.conduct(out, federation, exchange(tmp_path, enlarged(factor, since=1)), ignore)
    found: list[Any] = lines(out)
    assert [line["clients"] for line in found] == [[0, 1, 2], [0, 1], [0, 1]]
    assert "more than 1000 times the other sites' median" in found[1]["sites"]["refused"]["west"][0]
    assert max(float(value.abs().max()) for value in server_tree(out).values()) < 10


def test_a_round_that_needs_all_sites_stops_with_the_name_of_the_one_at_fault(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg")
    with pytest.raises(PromptFedError, match=r"^Round 2 has 2 of the 3 answers it needs: west: its change has length"):
        coordinator.conduct(out, federation, exchange(tmp_path, enlarged(1e30, since=1)), ignore)
    assert len(lines(out)) == 1


def test_a_server_tree_that_is_not_finite_is_never_saved_and_the_site_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflowing(self: FedAvg, task: Any, server: Tree, clients: Any, up: Tree, weights: Any) -> Tree:
        return {name: server[name] + (value.abs().max(0).values * 1e38) ** 2 for name, value in up.items()}

    out, federation = begin(tmp_path, "fedavg")
    monkeypatch.setattr(FedAvg, "aggregate", overflowing)
    with pytest.raises(PromptFedError, match=r"^Training diverged in round 1: .* at fault is an answer of west\."):
        coordinator.conduct(out, federation, exchange(tmp_path, enlarged(0.5)), ignore)
    assert not (out / "checkpoint" / "state.json").exists()
    assert not (out / "rounds.jsonl").read_text()


def tree_of(length: float) -> Tree:
    return {"w": torch.tensor([length, 0.0])}


def test_few_sites_are_held_to_their_own_lengths_and_cannot_outvote_an_honest_one() -> None:
    rule, down = Plausibility(1000.0), {0: tree_of(0.0), 1: tree_of(0.0)}
    assert list(rule.refused(down, {0: tree_of(1e6), 1: tree_of(1.0)})) == [0]  # beyond the model it received
    assert rule.refused(down, {0: tree_of(2.0), 1: tree_of(1e-9)}) == {}  # a tiny answer blames nobody
    assert "times its own before, 2" in rule.refused(down, {0: tree_of(1e5), 1: tree_of(1.0)})[0]
    assert rule.refused(down, {0: tree_of(1900.0), 1: tree_of(1.0)}) == {}


def test_lengths_do_not_overflow() -> None:
    rule, down = Plausibility(1000.0), {client: tree_of(0.0) for client in range(3)}
    refused = rule.refused(down, {0: tree_of(1.0), 1: tree_of(1.0), 2: tree_of(3e38)})
    assert "its change has length 3e+38" in refused[2]


def test_under_masks_no_single_length_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on threats says so: nobody sees a single answer, so nobody can hold it to a length."""
    honest = Masks.masked

    def enlarged(self: Masks, up: Tree, weight: torch.Tensor) -> Tree:
        large = {name: value + 1e4 for name, value in up.items()} if self.client == 2 else up
        return honest(self, large, weight)

    monkeypatch.setattr(Masks, "masked", enlarged)
    out, federation = begin(tmp_path, "fedavg", "rounds=1", "guards.secure=true")
    coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    found: list[Any] = lines(out)
    assert (found[0]["clients"], found[0]["sites"]["refused"]) == ([0, 1, 2], {})
    assert max(float(value.abs().max()) for value in server_tree(out).values()) > 1000
