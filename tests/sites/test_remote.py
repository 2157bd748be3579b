"""A run over three sites equals the simulation of the same three clients; what is personal stays at a site."""

import json
from pathlib import Path
from typing import Any

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites import coordinator, wire
from promptfed.sites.settings import Federation
from promptfed.sites.wire import Message
from support.bad_answers import ANSWER_MB, BAD, BIAS, edited
from support.three_sites import NAMES, Ask, begin, exchange, furthest, lines, recipe, server_tree, simulate, workers


def ignore(line: object) -> None:
    """Show nothing."""


@pytest.mark.parametrize("method", ["fedavg", "pfedpt", "pfedpg", "fedapt", "fedrep"])
def test_three_sites_give_the_numbers_of_the_simulation(method: str, tmp_path: Path) -> None:
    simulated = simulate(tmp_path, method)
    out, federation = begin(tmp_path, method)
    summary = coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    assert furthest(server_tree(simulated), server_tree(out)) <= 1e-6
    wanted = json.loads((simulated / "summary.json").read_text())
    for score in ("before", "after"):
        assert summary["accuracy"][score]["per_client"] == wanted["accuracy"][score]["per_client"]
    assert summary["accuracy"]["mean"] == wanted["accuracy"]["mean"]
    assert summary["traffic"] == wanted["traffic"]
    for ours, theirs in zip(lines(out), lines(simulated), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert ours["images"] == theirs["images"]


def test_personal_state_stays_at_its_site_and_only_counts_of_tests_travel(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "pfedpt")
    coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    assert json.loads((out / "checkpoint" / "state.json").read_text())["personal"] == {}
    for site in NAMES:
        home = tmp_path / "home" / site
        (run,) = (home / "runs").iterdir()
        assert len(list((run / "versions").iterdir())) <= 2  # the settled one, and the one in the making
        report = json.loads((run / "report.json").read_text())
        assert report["site"] == site
        assert 0 <= report["correct"] <= report["count"]
        assert (run / "model.safetensors").stat().st_size > 0
        sent = [json.loads(line) for line in (home / "audit.jsonl").read_text().splitlines()]
        assert {line["kind"] for line in sent} == {"hello", "fit", "evaluate"}
        for line in sent:
            assert not any("prompt" in name and name.startswith("up.") for name in line["tensors"])
            if line["kind"] == "evaluate":
                assert {name: entry["shape"] for name, entry in line["tensors"].items()} == {
                    "tested.correct": [],
                    "tested.loss": [],
                    "tested.count": [],
                }


def tampered(change: Any) -> Any:
    """Return a tampering with the answers of "west" in its second round."""

    def wrap(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            data, head = ask(request), wire.unpack(request, 2**30).head
            return change(data) if (site, head["kind"], head["round"]) == ("west", "fit", 1) else data

        return answer

    return wrap


ATTACKS = {name: (tampered(change), sentence) for name, (change, sentence) in BAD.items()}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bad_answer_is_refused_by_name_and_the_round_survives(attack: str, tmp_path: Path) -> None:
    change, sentence = ATTACKS[attack]
    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2, answer_mb=ANSWER_MB))
    summary = coordinator.conduct(out, federation, exchange(tmp_path, change), ignore)
    first, second, third = lines(out)
    assert [first["clients"], second["clients"], third["clients"]] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    refused: Any = second["sites"]
    assert list(refused["refused"]) == ["west"]
    assert sentence in refused["refused"]["west"][0]
    assert summary["sites"] == {"silent": {}, "refused": {"west": 1}, "late": {}}


def test_a_refused_site_leaves_the_numbers_of_a_round_without_it(tmp_path: Path) -> None:
    def silent(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            if (site, head["kind"], head["round"]) == ("west", "fit", 1):
                raise OSError("it is away")
            return ask(request)

        return answer

    trees = []
    for number, change in enumerate((ATTACKS["nan"][0], silent)):
        folder = tmp_path / str(number)
        folder.mkdir()
        out, federation = begin(folder, "pfedpt", federation=Federation(NAMES, min_sites=2))
        coordinator.conduct(out, federation, exchange(folder, change), ignore)
        trees.append(server_tree(out))
    assert furthest(*trees) == 0


def test_an_answer_of_an_earlier_request_is_refused(tmp_path: Path) -> None:
    kept: dict[int, bytes] = {}

    def replaying(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            head = wire.unpack(request, 2**30).head
            if site != "west" or head["kind"] != "fit":
                return ask(request)
            kept.setdefault(0, ask(request))
            return kept[0]

        return answer

    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2))
    summary = coordinator.conduct(out, federation, exchange(tmp_path, replaying), ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2], [0, 1], [0, 1]]
    assert summary["sites"]["refused"] == {"west": 2}


def test_too_few_answers_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    federation = Federation(NAMES, patience_seconds=0.1)
    out, _ = begin(tmp_path, "fedavg", federation=federation)
    with pytest.raises(
        PromptFedError, match=r"^Round 2 has 2 of the 3 answers it needs after 0\.1 seconds: west: \"up"
    ):
        coordinator.conduct(out, federation, exchange(tmp_path, ATTACKS["shape"][0]), ignore)
    assert len(lines(out)) == 1


def test_training_that_diverges_at_a_site_ends_the_run_at_once(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "fedavg")  # whose patience is a day
    with pytest.raises(
        PromptFedError, match=rf'^Training diverged in round 2 at west: west: "{BIAS}" .* Lower method\.lr'
    ):
        coordinator.conduct(out, federation, exchange(tmp_path, ATTACKS["nan"][0]), ignore)
    assert len(lines(out)) == 1


def test_sites_that_disagree_on_classes_are_told_what_to_do(tmp_path: Path) -> None:
    def renamed(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            message = wire.unpack(ask(request), 2**30)
            return wire.pack(Message(message.head | {"classes": [site, "light"]}, message.tree))

        return answer

    out, federation = begin(tmp_path, "fedavg")
    with pytest.raises(
        PromptFedError, match=r"south and north differ in their classes: .*; name all classes in fed\.toml"
    ):
        coordinator.conduct(out, federation, exchange(tmp_path, renamed), ignore)


def test_clipping_happens_at_the_site(tmp_path: Path) -> None:
    guards = ("guards.clip=0.01",)
    simulated = simulate(tmp_path, "fedavg", *guards)
    out, federation = begin(tmp_path, "fedavg", *guards)
    threads = exchange(tmp_path)
    lengths: list[float] = []

    def measured(ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            asked, answered = wire.unpack(request, 2**30), wire.unpack(data := ask(request), 2**30)
            if asked.head["kind"] == "fit" and asked.head["keep"]:
                moved = [answered.tree[f"up.{name}"] - value for name, value in asked.tree.items()]
                lengths.append(float(sum(part.square().sum() for part in moved)) ** 0.5)
            return data

        return answer

    threads.sites = {name: measured(ask) for name, ask in threads.sites.items()}
    coordinator.conduct(out, federation, threads, ignore)
    assert lengths == pytest.approx([0.01] * 9, rel=1e-3)
    assert furthest(server_tree(simulated), server_tree(out)) <= 1e-6


def test_noise_is_drawn_at_the_site_and_its_budget_ends_the_run(tmp_path: Path) -> None:
    words = ("guards.clip=0.0001", "guards.noise=20.0", "guards.entropy=system", "guards.budget=0.8", "rounds=20")
    out, federation = begin(tmp_path, "fedavg", *words)
    summary = coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    assert 0 < len(lines(out)) < 20
    assert max(summary["privacy"]["epsilon"]) <= 0.8
    for site in NAMES:
        assert json.loads(next((tmp_path / "home" / site).glob("runs/*/answers.json")).read_text()) == len(lines(out))


def test_a_robust_rule_sees_those_who_answered(tmp_path: Path) -> None:
    def poisoned(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            message = wire.unpack(ask(request), 2**30)
            if site == "west":
                message = Message(
                    message.head,
                    {name: value + 1000 * name.startswith("up.") for name, value in message.tree.items()},
                )
            return wire.pack(message)

        return answer

    out, federation = begin(tmp_path, "fedavg", "guards.robust=median", "rounds=1")
    coordinator.conduct(out, federation, exchange(tmp_path, poisoned), ignore)
    assert max(float(value.abs().max()) for value in server_tree(out).values()) < 10


def test_what_is_not_there_over_sites_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="set sampling=uniform"):
        coordinator.create(tmp_path / "run", recipe("fedavg", "sampling=one-per-domain"), Federation(NAMES))


def test_a_site_imports_nothing_that_a_recipe_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = recipe("fedavg").to_toml().replace('name = "fedavg"', 'name = "foreign:Method"')
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    answer = next(iter(workers(tmp_path).values())).answer(wire.pack(Message(head | {"recipe": text}, {})))
    error = wire.unpack(answer, 2**30).head["error"]
    assert error == "method foreign:Method is not PromptFed's own; this site runs no other code"


def test_a_request_cannot_make_a_site_forget_what_it_builds_on(tmp_path: Path) -> None:
    out, federation = begin(tmp_path, "pfedpt", "rounds=1")
    coordinator.conduct(out, federation, exchange(tmp_path), ignore)
    (run,) = (tmp_path / "home" / "north" / "runs").iterdir()
    (kept,) = (run / "versions").iterdir()
    worker = workers(tmp_path)["north"]
    head = {"run": run.name, "round": 1, "nonce": "1" * 32, "kind": "evaluate", "site": "north", "client": 0}
    head |= {"classes": ["dark", "light"], "recipe": (run / "asked.toml").read_text(), "base": kept.stem, "names": []}
    answer = worker.answer(wire.pack(Message(head | {"settled": "zzz", "adapt": False, "final": False}, {})))
    assert "version zzz is newer than" in wire.unpack(answer, 2**30).head["error"]
    assert kept.is_file()


def test_what_a_site_says_is_fit_for_a_terminal(tmp_path: Path) -> None:
    change = tampered(edited(lambda message: Message(message.head | {"error": "\x1b[2Jgone" + "!" * 1000}, {})))
    out, federation = begin(tmp_path, "fedavg", federation=Federation(NAMES, min_sites=2))
    coordinator.conduct(out, federation, exchange(tmp_path, change), ignore)
    refused: Any = lines(out)[1]["sites"]
    (said,) = refused["refused"]["west"]
    assert said.startswith("it says: [2Jgone!!!")
    assert said.isprintable()
    assert len(said) < 320


def test_a_robust_rule_must_hold_for_as_few_as_a_round_may_have(tmp_path: Path) -> None:
    few = Federation(NAMES, min_sites=2)
    for words in (("guards.robust=krum", "guards.byzantine=0"), ("guards.robust=trimmed-mean", "guards.trim=0.34")):
        with pytest.raises(PromptFedError, match="2"):
            coordinator.create(tmp_path / "run", recipe("fedavg", *words), few)
        assert not (tmp_path / "run").exists()


def test_a_budget_that_no_newcomer_can_keep_is_told_before_anyone_is_asked(tmp_path: Path) -> None:
    words = ("newcomers=1", "guards.clip=1.0", "guards.noise=4.0", "guards.budget=3.0", "guards.entropy=system")
    with pytest.raises(PromptFedError, match=r"guards\.budget=3 allows newcomers \d rounds; lower join_rounds"):
        coordinator.create(tmp_path / "run", recipe("fedavg", *words), Federation(NAMES))
    assert not (tmp_path / "run").exists()


def test_noise_the_coordinator_could_work_out_is_refused_on_both_sides(tmp_path: Path) -> None:
    keyed = recipe("fedavg", "guards.clip=1.0", "guards.noise=1.0")
    with pytest.raises(PromptFedError, match=r"set guards\.entropy=system"):
        coordinator.create(tmp_path / "run", keyed, Federation(NAMES))
    worker = next(iter(workers(tmp_path).values()))
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    answer = worker.answer(wire.pack(Message(head | {"recipe": keyed.to_toml()}, {})))
    assert "set guards.entropy=system" in wire.unpack(answer, 2**30).head["error"]


def test_a_methods_own_noise_the_coordinator_could_work_out_is_refused_on_both_sides(tmp_path: Path) -> None:
    hidden = recipe("dp-fpl", "method.noise=4.0")
    with pytest.raises(PromptFedError, match=r"the noise of dp-fpl hides nothing, since it follows from the recipe's"):
        coordinator.create(tmp_path / "run", hidden, Federation(NAMES))
    assert not (tmp_path / "run").exists()
    coordinator.create(tmp_path / "run", recipe("dp-fpl", "method.noise=0.0"), Federation(NAMES))
    worker = next(iter(workers(tmp_path).values()))
    head = {"run": "x", "round": 0, "nonce": "0", "kind": "hello", "site": "north", "client": 0, "classes": []}
    answer = worker.answer(wire.pack(Message(head | {"recipe": hidden.to_toml()}, {})))
    error = wire.unpack(answer, 2**30).head["error"]
    assert error.startswith("the noise of dp-fpl follows from the seed")
