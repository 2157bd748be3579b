"""Secure aggregation over sites: the mean is right, the coordinator sees nothing else, and dropouts are made up for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards import secure
from promptfed.sites import coordinator, wire
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from support.faults import Crash, away, ignore
from support.masked_session import SECURE, Curious
from support.three_sites import NAMES, Ask, begin, exchange, furthest, lines, recipe, server_tree, simulate, workers

TWO = Federation(NAMES, min_sites=2)
Changed = Callable[[Message, Message], Message]


def within(tmp_path: Path, name: str) -> Path:
    """Return a new folder for another federation."""
    folder = tmp_path / name
    folder.mkdir()
    return folder


@pytest.mark.parametrize("method", ["fedavg", "pfedpt"])
def test_the_sum_of_masked_answers_gives_the_numbers_of_the_simulation(method: str, tmp_path: Path) -> None:
    simulated = simulate(tmp_path, method, SECURE)
    out, federation = begin(tmp_path, method, SECURE)
    summary = coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    assert furthest(server_tree(out), server_tree(simulated)) <= 1e-6
    there = within(tmp_path, "plain")
    plain, _ = begin(there, method)
    coordinator.conduct(plain, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(plain)) <= 1e-6
    assert summary["traffic"]["up_bytes"] == sum(line["traffic"]["up_bytes"] for line in lines(simulated))  # type: ignore[index]
    assert summary["traffic"]["down_bytes"] == sum(line["traffic"]["down_bytes"] for line in lines(simulated))  # type: ignore[index]


def test_the_coordinator_sees_no_answer(tmp_path: Path) -> None:
    seen: list[tuple[Message, Message]] = []

    def listening(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            data = ask(request)
            seen.append((wire.unpack(request, 2**30), wire.unpack(data, 2**30)))
            return data

        return answer

    trees: dict[str, Tree] = {}
    for name, words in (("secure", [SECURE]), ("plain", [])):
        seen.clear()
        folder = within(tmp_path, name)
        out, federation = begin(folder, "fedavg", "rounds=1", *words)
        coordinator.conduct(out, federation, exchange(folder, listening), ignore)
        for request, answer in seen:
            if request.head["kind"] == "fit" and request.head["keep"]:
                trees[f"{name} {answer.head['site']}"] = answer.tree
    for site in NAMES:
        masked, plain = trees[f"secure {site}"], trees[f"plain {site}"]
        assert not [name for name in masked if name.startswith("up.") or name == "weight"]
        up = {name: value.unsqueeze(0) for name, value in plain.items() if name.startswith("up.")}
        true = secure.weighted(up, plain["weight"].unsqueeze(0))[0]
        shown = secure.decode(masked["masked"].numpy().view("uint64"))
        assert float((shown - true).abs().min()) > 0.5  # by chance less than once in a million runs
        assert float(shown.abs().median()) > 2**29  # as far out as uniform bits are


def failing(site: str, kind: str, number: int = 1) -> Any:
    """Return sites of which one dies when it is asked for a step of a round."""

    def wrap(name: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            if (name, head["kind"], head["round"]) == (site, kind, number):
                raise OSError("it is away")
            return ask(request)

        return answer

    return wrap


@pytest.mark.parametrize("kind", ["keys", "shares", "open", "fit"])
def test_who_is_lost_before_answering_is_left_out_of_the_sum(kind: str, tmp_path: Path) -> None:
    out, _ = begin(tmp_path, "pfedpt", SECURE, federation=TWO)
    summary = coordinator.conduct(out, TWO, exchange(tmp_path, failing("south", kind)), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert summary["sites"]["silent"] == {"south": 1}
    there = within(tmp_path, "reference")
    reference, _ = begin(there, "pfedpt", federation=TWO)
    coordinator.conduct(reference, TWO, exchange(there, failing("south", "fit")), ignore)
    assert furthest(server_tree(out), server_tree(reference)) <= 1e-6


@pytest.mark.parametrize("kind", ["confirm", "reveal"])
def test_who_is_lost_after_answering_counts(kind: str, tmp_path: Path) -> None:
    out, _ = begin(tmp_path, "pfedpt", SECURE, federation=TWO)
    coordinator.conduct(out, TWO, exchange(tmp_path, failing("south", kind)), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2]] * 3
    there = within(tmp_path, "reference")
    reference, federation = begin(there, "pfedpt")
    coordinator.conduct(reference, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(reference)) <= 1e-6


def test_a_site_that_starts_anew_in_a_session_drops_out_of_it(tmp_path: Path) -> None:
    other = workers(tmp_path)["south"]

    def reborn(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            return other.answer(request) if (site, head["kind"], head["round"]) == ("south", "fit", 1) else ask(request)

        return answer

    out, _ = begin(tmp_path, "fedavg", SECURE, federation=TWO)
    coordinator.conduct(out, TWO, exchange(tmp_path, reborn), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    told: Any = lines(out)[1]["sites"]
    assert told["refused"] == {"south": ["it says: it does not have the secrets of this session"]}


def test_too_few_to_hide_among_repeat_the_round_and_at_last_give_up(tmp_path: Path) -> None:
    federation = Federation(NAMES, min_sites=1, patience_seconds=0.1)
    out, _ = begin(tmp_path, "fedavg", SECURE, federation=federation)
    absent = away({"south": {1}, "west": {1}})
    with pytest.raises(PromptFedError, match=r"^Round 2 could not be summed \(1 of 2 sites reached step keys\)"):
        coordinator.conduct(out, federation, exchange(tmp_path, absent), ignore)
    assert len(lines(out)) == 1


@pytest.mark.parametrize("lost", [(), ("west",)], ids=str)
def test_a_repeated_round_after_its_sum_was_opened_is_of_the_same_sites(lost: tuple[str, ...], tmp_path: Path) -> None:
    federation = Federation(NAMES, min_sites=2, patience_seconds=0.1)
    out, _ = begin(tmp_path, "fedavg", SECURE, federation=federation)
    threads = exchange(tmp_path, failing("south", "fit"))
    ask = threads.exchange

    def dying(round: int, requests: Any, timeout: float) -> Any:  # noqa: A002
        answers = ask(round, requests, timeout)
        if round == 1 and wire.unpack(requests["north"], 2**30).head["kind"] == "reveal":
            raise Crash
        return answers

    threads.exchange = dying  # type: ignore[method-assign]
    with pytest.raises(Crash):
        coordinator.conduct(out, federation, threads, ignore)
    again = exchange(tmp_path, away({site: {1} for site in lost}))  # south is back
    if lost:
        with pytest.raises(PromptFedError, match=r"^Round 2 could not be summed \(1 of 2 sites reached step keys\)"):
            coordinator.conduct(out, federation, again, ignore)
        return
    coordinator.conduct(out, federation, again, ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 2], [0, 1, 2]]


# -- bad peers ---------------------------------------------------------------------------------------------------------


def tampered(kind: str, change: Changed, times: int = 1) -> Any:
    """Return sites of which "west" answers something else to a step of its second round, so many times."""
    left = [times]

    def wrap(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            asked, data = wire.unpack(request, 2**30), ask(request)
            if (site, asked.head["kind"], asked.head["round"]) != ("west", kind, 1) or not left[0]:
                return data
            left[0] -= 1
            return wire.pack(change(asked, wire.unpack(data, 2**30)))

        return answer

    return wrap


def with_tree(change: Callable[[Tree], Tree]) -> Changed:
    return lambda asked, answer: Message(answer.head, answer.tree | change(answer.tree))


ATTACKS: dict[str, tuple[str, Changed, str]] = {
    "short keys": ("keys", with_tree(lambda own: {"keys": own["keys"][:9]}), '"keys" has shape [9], not [64]'),
    "no keys": ("keys", with_tree(lambda own: {"keys": own["keys"] * 0}), "its keys are not valid"),
    "share type": ("shares", with_tree(lambda own: {"sealed": own["sealed"].float()}), "has type torch.float32"),
    "odd complaint": ("open", lambda asked, own: Message(own.head | {"unopened": [[0]]}, {}), "which shares it cannot"),
    "false complaint": ("open", lambda asked, own: Message(own.head | {"unopened": [9]}, {}), "which shares it cannot"),
    "masked shape": ("fit", with_tree(lambda own: {"masked": own["masked"][1:]}), '"masked" has shape'),
    "masked type": ("fit", with_tree(lambda own: {"masked": own["masked"].double()}), "has type torch.float64"),
    "plain": ("fit", with_tree(lambda own: {"up.head.bias": torch.zeros(2)}), "not expected ['up.head.bias']"),
    "counts": (
        "fit",
        with_tree(lambda own: {"tested.correct": own["tested.correct"] + 100}),
        "correct predictions of 4",
    ),
    "replayed": ("fit", lambda asked, own: Message(own.head | {"nonce": "0" * 32}, own.tree), "its nonce differs"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bad_answer_is_refused_by_name_and_the_round_survives(attack: str, tmp_path: Path) -> None:
    kind, change, sentence = ATTACKS[attack]
    out, _ = begin(tmp_path, "fedavg", SECURE, federation=TWO)
    summary = coordinator.conduct(out, TWO, exchange(tmp_path, tampered(kind, change)), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    told: Any = lines(out)[1]["sites"]
    assert list(told["refused"]) == ["west"]
    assert sentence in told["refused"]["west"][0]
    assert summary["sites"]["refused"] == {"west": 1}


def test_a_site_whose_shares_nobody_can_open_is_left_out_of_the_round(tmp_path: Path) -> None:
    change = with_tree(lambda own: {"sealed": own["sealed"] * 0})
    out, _ = begin(tmp_path, "fedavg", SECURE, federation=TWO)
    coordinator.conduct(out, TWO, exchange(tmp_path, tampered("shares", change, 99)), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    told: Any = lines(out)[1]["sites"]
    assert told["refused"] == {"west": ["the others cannot open its shares"]}


def test_a_site_that_says_it_can_open_nothing_harms_nobody(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg", SECURE)
    lie = tampered("open", lambda asked, own: Message(own.head | {"unopened": [0, 1]}, {}))
    coordinator.conduct(out, federation, exchange(tmp_path, lie), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2]] * 3
    there = within(tmp_path, "reference")
    reference, _ = begin(there, "fedavg")
    coordinator.conduct(reference, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(reference)) <= 1e-6


def test_a_sum_with_a_false_answer_is_noticed_and_the_round_begun_anew(tmp_path: Path) -> None:
    change = with_tree(lambda own: {"masked": own["masked"].roll(1)})
    out, federation = begin(tmp_path, "fedavg", SECURE)
    coordinator.conduct(out, federation, exchange(tmp_path, tampered("fit", change)), ignore)
    there = within(tmp_path, "reference")
    reference, _ = begin(there, "fedavg")
    coordinator.conduct(reference, federation, exchange(there), ignore)
    assert furthest(server_tree(out), server_tree(reference)) <= 1e-6


# -- what a site does not do -------------------------------------------------------------------------------------------


def test_a_site_hides_among_others_or_not_at_all(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.begin()
    assert curious.error("shares", curious.told(0), members=[0]) == "an answer would not be hidden among these sites"
    curious.begin()
    assert "not be hidden" in curious.error("shares", curious.told(1, 2), members=[1, 2])
    curious.begin()
    assert "out of order" in curious.error("shares", curious.told(0, 1, 1), members=[0, 1, 1])
    curious.begin()
    assert "unknown clients" in curious.error("shares", curious.told(0, 1, 2), members=[0, 1, 7])
    for members in ([0], [1, 2]):
        curious.begin()
        curious.shares()
        error = curious.error("open", curious.sealed(*members), members=members)
        assert error == "an answer is hidden among 2 sites or more"


def test_a_site_sends_nothing_without_a_mask(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.begin()
    down = curious.server()
    words = {"names": list(down), "base": "", "settled": "", "keep": True, "test": False}
    head = {"run": "x", "round": 0, "nonce": "0" * 32, "site": "north", "client": 0, "classes": [], "kind": "fit"}
    request = wire.pack(Message(head | words | {"recipe": curious.recipe}, down))
    answer = wire.unpack(curious.worker.answer(request), 2**30)
    assert answer.head["error"] == "the recipe asks for secure aggregation; nothing leaves without a mask"
    assert answer.tree == {}


def test_a_site_masks_one_answer_and_opens_once(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.begin()
    assert "out of turn" in curious.error("open", curious.sealed(0, 1, 2), members=[0, 1, 2])
    curious.begin()
    curious.shares()
    assert "out of turn" in curious.fit().head["error"]
    assert curious.open().head["unopened"] == [0]
    assert list(curious.fit().tree) == ["masked"]
    assert "out of turn" in curious.fit().head["error"]
    assert "out of turn" in curious.error("reveal", confirmed={})
    assert "error" not in curious.reveal(0, 1).head
    assert "out of turn" in curious.error("confirm", survivors=[0, 1])
    assert "out of turn" in curious.error("reveal", confirmed={})
    assert "out of turn" in curious.error("shares", curious.told(0, 1, 2), members=[0, 1, 2])


@pytest.mark.parametrize("survivors", [[0], [1, 2]], ids=str)
def test_a_site_opens_no_mask_for_one_answer_or_for_a_sum_without_its_own(survivors: list[int], tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    error = curious.error("confirm", survivors=survivors)
    assert error == "masks are opened only for 2 answers or more, this site's among them"


def test_a_site_helps_to_open_one_sum_of_a_round(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    assert "error" not in curious.reveal(0, 1, 2).head
    for survivors, refused in (([0, 1], True), ([0, 2], True), ([0, 1, 2], False)):
        curious.worker = workers(tmp_path)["north"]  # it has not forgotten
        curious.session()
        answer = curious.reveal(*survivors)
        assert (answer.head.get("error") == "it has already helped to open another sum of this round") == refused


@pytest.mark.parametrize("number", [1, -1, float("nan"), 0.0, "0"], ids=str)
def test_a_session_is_for_one_round(number: object, tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    error = curious.error("confirm", survivors=[0, 1], round=number)
    assert error == ("this session is for another round" if number == 1 else "the request does not name a round")
    assert "error" not in curious.reveal(0, 1, 2).head


def test_a_run_keeps_its_recipe(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    curious.recipe = recipe("fedavg").to_toml()
    for _ in range(2):
        assert curious.error("hello") == "this run began with another recipe, which cannot change"
        curious.worker = workers(tmp_path)["north"]  # it has not forgotten


def test_a_number_too_large_for_the_sum_is_refused_at_the_site(tmp_path: Path) -> None:
    curious = Curious(tmp_path, "method.lr=1e9")
    curious.begin()
    curious.shares()
    curious.open()
    assert "set guards.clip, or lower method.lr" in curious.fit().head["error"]


def test_a_method_that_needs_every_answer_is_refused() -> None:
    with pytest.raises(PromptFedError, match=r"guards\.secure leaves only the mean .* method pfedpg needs each"):
        recipe("pfedpg", SECURE)
