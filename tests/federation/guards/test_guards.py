"""The [guards] table: what each switch builds, what is refused, and what a run records."""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, Traits
from promptfed.core.tree import Tree
from promptfed.data.shares import Partition
from promptfed.federation import guard_options, guards
from promptfed.federation.guard_options import GuardOptions
from promptfed.federation.guards import Guards
from promptfed.federation.guards.accountant import epsilon
from promptfed.federation.guards.clip import Clip
from promptfed.federation.guards.noise import LocalNoise
from promptfed.federation.loop import Loop
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpg import PFedPG
from promptfed.methods.relic import RELIC, FedCPW, FedProto, FedTI, TILocal
from promptfed.results.folder.record import Record
from promptfed.runs import config, execution, resuming
from promptfed.runs.planning import Plan, make_loop
from support.toys import Linear, dataset, shares


def chain(method: Method | None = None, **keys: Any) -> list[str]:
    """Return the guards of a table, in their order."""
    return [type(guard).__name__ for guard in guards.build(keys, method or FedAvg(), 0, 10, 10).guards]


# -- what a table builds --------------------------------------------------------------------------------------------


def test_an_empty_table_builds_nothing() -> None:
    assert guards.build({}, FedAvg(), 0, 10, 10) == Guards()
    assert guard_options.filled({}) == {}


def test_the_order_is_fixed() -> None:
    assert chain(clip=1.0) == ["Clip"]
    assert chain(noise=1.0, clip=1.0, robust="krum") == ["Clip", "LocalNoise", "Krum"]
    assert chain(place="central", secure=True, noise=1.0, clip=1.0) == ["Clip", "SecureSum", "CentralNoise"]
    rules = {"trimmed-mean": "TrimmedMean", "median": "Median", "krum": "Krum", "norm-bound": "NormBound"}
    assert {rule: chain(robust=rule) for rule in rules} == {rule: [name] for rule, name in rules.items()}


def test_every_guard_is_in_the_registry_under_a_name() -> None:
    assert set(guards.GUARDS) == {
        *("clip", "local-noise", "central-noise", "secure", "trimmed-mean", "median", "krum", "norm-bound")
    }


def test_with_noise_every_client_counts_the_same() -> None:
    assert guards.build({"clip": 1.0}, FedAvg(), 0, 3, 3).guards == (Clip(1.0, even=False),)
    assert guards.build({"clip": 1.0, "noise": 0.5}, FedAvg(), 7, 3, 3).guards == (
        Clip(1.0, even=True),
        LocalNoise(1.0, 0.5, 7, "keyed"),
    )


# -- what is refused ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "noise without clip": ({"noise": 1.0}, r"guards\.noise is in units of guards\.clip"),
    "budget without noise": ({"budget": 8.0, "clip": 1.0}, r"set guards\.noise, or leave the budget out"),
    "secure and robust": (
        {"secure": True, "robust": "median"},
        r"guards\.robust=median compares.*guards\.secure hides",
    ),
    "central and robust": (
        {"clip": 1.0, "noise": 1.0, "place": "central", "robust": "krum"},
        r"Central noise is accounted for a mean.*guards\.place=local",
    ),
    "trims nobody": ({"robust": "trimmed-mean", "trim": 0.05}, r"guards\.trim=0\.05 trims none of the 10 clients"),
    "too few for Krum": ({"robust": "krum", "byzantine": 4}, "needs 11 clients in a round, not 10"),
    "keeps more than there are": ({"robust": "krum", "keep": 11}, r"guards\.keep=11 is more than the 10 clients"),
    "keeps the poisoned": ({"robust": "krum", "keep": 9}, r"guards\.keep=9 of 10 clients would keep some of the 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_switches_that_do_not_go_together_are_refused(case: str) -> None:
    table, sentence = REFUSED[case]
    with pytest.raises(PromptFedError, match=sentence):
        guards.check(table, FedAvg(), 10)


def test_one_client_cannot_hide() -> None:
    with pytest.raises(PromptFedError, match="there is only one in a round"):
        guards.check({"secure": True}, FedAvg(), 1)


MEANS: list[tuple[dict[str, Any], str]] = [
    ({"secure": True}, "guards.secure"),
    ({"robust": "median"}, "guards.robust=median"),
    ({"robust": "trimmed-mean"}, "guards.robust=trimmed-mean"),
    ({"clip": 1.0, "noise": 1.0, "place": "central"}, "guards.place=central"),
]


@pytest.mark.parametrize(("table", "switch"), MEANS)
def test_a_method_that_needs_rows_refuses_to_be_left_the_mean(table: dict[str, Any], switch: str) -> None:
    with pytest.raises(PromptFedError, match=f"{switch} leaves only the mean.*method pfedpg needs each client's own"):
        guards.check(table, PFedPG(), 10)
    guards.check(table, FedAvg(), 10)


@pytest.mark.parametrize(
    "table", [{"clip": 1.0}, {"clip": 1.0, "noise": 1.0}, {"robust": "krum"}, {"robust": "norm-bound"}], ids=str
)
def test_what_leaves_the_rows_goes_with_every_method(table: dict[str, Any]) -> None:
    guards.check(table, PFedPG(), 10)
    assert all(guard.leaves == "rows" for guard in guards.build(table, PFedPG(), 0, 10, 10).guards)


@pytest.mark.parametrize("method", [RELIC(), FedProto(), FedTI(align=0.7)], ids=lambda method: method.name)
def test_zeros_that_say_none_must_arrive_as_such(method: RELIC) -> None:
    for table, switch in (({"clip": 1.0}, "guards.clip"), ({"robust": "norm-bound"}, "guards.robust=norm-bound")):
        with pytest.raises(PromptFedError, match=rf'{switch} changes what clients send.*zeros.*"none".*robust=krum'):
            guards.check(table, method, 10)
    with pytest.raises(PromptFedError, match=r"guards.secure leaves only the mean.*answer; use guards\.robust=krum\."):
        guards.check({"secure": True}, method, 10)
    guards.check({"robust": "krum"}, method, 10)


@pytest.mark.parametrize("method", [RELIC(align=0.0), FedTI(), FedCPW(), TILocal()], ids=lambda method: method.name)
def test_without_prototypes_every_guard_is_welcome(method: RELIC) -> None:
    for table in ({"clip": 1.0, "noise": 1.0}, {"secure": True}, {"robust": "median"}, {"robust": "norm-bound"}):
        guards.check(table, method, 10)


def test_a_number_that_is_none_lets_nothing_else_pass_unclipped() -> None:
    down, up = {"w": torch.zeros(2)}, {"w": torch.tensor([float("nan"), 5000.0])}
    _, found, _ = Clip(1.0)(0, torch.tensor(0), down, up, torch.ones(()))
    assert bool(found["w"].isnan().all())


def test_the_recipe_is_refused_before_anything_is_read() -> None:
    with pytest.raises(PromptFedError, match="method pfedpg needs each client's own answer"):
        config.load("pfedpg", ["guards.secure=true", "data.name=folder:/nowhere"])
    with pytest.raises(PromptFedError, match="needs 7 clients in a round, not 4"):
        config.load("fedavg", ["guards.robust=krum", "per_round=4"])
    with pytest.raises(PromptFedError, match="needs 7 clients in a round, not 5"):
        config.load("fedavg", ["guards.robust=krum", "newcomers=5"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("guards.robust=kurm", 'did you mean "krum"'),
        ("guards.clipp=1", 'did you mean "guards.clip"'),
        ("guards.trim=0.7", r"guards\.trim must be at most 0\.5"),
        ("guards.delta=0", r"guards\.delta must be above 0"),
        ("guards=krum", r"must be a table: write guards\.robust=krum"),
    ],
)
def test_mistakes_in_the_table_get_a_sentence(word: str, sentence: str) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        config.load("fedavg", [word])


# -- the recipe and its hash ----------------------------------------------------------------------------------------


def recipe(*words: str) -> config.Recipe:
    return config.load_one("fedavg", words)


def test_without_guards_a_recipe_is_what_it_was() -> None:
    plain = recipe()
    assert plain.guards == {}
    assert "guards" not in plain.to_toml()
    assert recipe("guards.robust=mean").hash == plain.hash


def test_the_guards_decide_the_hash_but_not_the_budget() -> None:
    noisy = recipe("guards.clip=1", "guards.noise=1")
    assert noisy.hash != recipe().hash
    assert noisy.hash != recipe("guards.clip=1", "guards.noise=2").hash
    assert noisy.hash == recipe("guards.clip=1", "guards.noise=1", "guards.budget=8").hash


def test_a_used_table_is_spelled_out_and_read_back() -> None:
    made = recipe("guards.robust=krum")
    assert set(made.guards) == set(GuardOptions.__dataclass_fields__)
    assert config.resolve(tomllib.loads(made.to_toml())) == made


# -- on one site ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=6))
def test_a_site_does_alone_what_the_simulation_does_to_its_row(values: list[float]) -> None:
    made = guards.build({"clip": 1.0, "noise": 0.5, "robust": "norm-bound", "bound": 3.0}, FedAvg(), 5, 4, 4)
    up, down = {"w": torch.tensor(values)}, {"w": torch.zeros(len(values))}
    _, alone, weight = made.protect(2, torch.tensor(3), down, up, torch.tensor(40.0))
    mine = Guards(made.guards[:2])  # the norm bound stands on the server
    _, stacked, _ = mine(2, torch.tensor([1, 3]), tree.repeat(down, 2), tree.repeat(up, 2), torch.tensor([7.0, 40.0]))
    torch.testing.assert_close(alone["w"], stacked["w"][1], rtol=0, atol=0)
    assert alone["w"].shape == (len(values),)
    assert float(weight) == 1.0


# -- whole runs -----------------------------------------------------------------------------------------------------


def loop(
    folder: Path,
    table: dict[str, Any],
    method: Method | None = None,
    *,
    rounds: int = 3,
    per_round: int = 0,
    fleet: str = "stacked",
) -> Loop:
    """Return the round loop of five unequal clients with a linear model."""
    sizes, tests = (4, 6, 5, 8, 7), (2, 2, 2, 2, 2)
    count = sum(sizes) + sum(tests)
    data = dataset([255 * number // (count - 1) for number in range(count)], [number % 2 for number in range(count)])
    dealt = shares([*sizes, *tests])
    made = config.Recipe(
        rounds=rounds,
        clients=len(sizes),
        per_round=per_round,
        fleet={"name": fleet, "precision": "fp32"},
        evaluate={"every": 100, "after": False},
        guards=table,
    )
    plan = Plan(
        made,
        method or FedAvg(lr=0.1, epochs=1, batch=4),
        data,
        Partition("toy", tuple(dealt[:5]), tuple(dealt[5:])),
        Task(Linear(scale=0.1), data.classes, len(sizes)),
        torch.device("cpu"),
    )
    return make_loop(plan, Record.reopen(folder) if folder.exists() else Record.create(folder, "", {}))


def go(one: Loop) -> Tree:
    one.run(lambda: one.save("recipe", "partition"), lambda line: None)
    return one.server


def moved(one: Loop) -> float:
    """Return how far the server is from where it began."""
    start = loop(one.record.folder.parent / f"start of {one.record.folder.name}", {}).server
    return float(torch.cat([(one.server[name] - start[name]).flatten() for name in start]).norm())


def test_a_secure_run_equals_a_plain_one_to_the_resolution(tmp_path: Path) -> None:
    torch.testing.assert_close(
        go(loop(tmp_path / "secure", {"secure": True})), go(loop(tmp_path / "plain", {})), rtol=1e-6, atol=1e-7
    )


def test_a_clipped_round_moves_the_server_by_no_more_than_the_bound(tmp_path: Path) -> None:
    free, tight = loop(tmp_path / "free", {}, rounds=1), loop(tmp_path / "tight", {"clip": 0.01}, rounds=1)
    for one in (free, tight):
        go(one)
    assert moved(free) > 0.02
    assert moved(tight) <= 0.01 * 1.001


TABLES: list[dict[str, Any]] = [
    {"clip": 0.1, "noise": 0.5},
    {"clip": 0.1, "noise": 0.5, "place": "central"},
    {"clip": 0.1, "noise": 0.5, "place": "central", "secure": True},
    {"robust": "trimmed-mean"},
    {"robust": "krum", "byzantine": 1},
]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_both_fleets_agree(table: dict[str, Any], tmp_path: Path) -> None:
    one, many = (go(loop(tmp_path / fleet, table, fleet=fleet)) for fleet in ("one-by-one", "stacked"))
    torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("table", TABLES[:3], ids=str)
def test_a_resumed_run_has_the_same_noise_bit_for_bit(table: dict[str, Any], tmp_path: Path) -> None:
    straight = loop(tmp_path / "straight", table, rounds=4)
    go(straight)
    go(loop(tmp_path / "stopped", table, rounds=2))
    again = loop(tmp_path / "stopped", table, rounds=4)
    again.restore(again.record.state("recipe", "partition") or {})
    torch.testing.assert_close(go(again), straight.server, rtol=0, atol=0)
    spent = [[line["privacy"] for line in one.record.rounds] for one in (straight, again)]
    assert spent[0] == spent[1]


def test_epsilon_is_recorded_per_client_and_round(tmp_path: Path) -> None:
    run = loop(tmp_path / "run", {"clip": 1.0, "noise": 4.0}, per_round=2)
    go(run)
    times = dict.fromkeys(range(5), 0)
    for line in run.record.rounds:
        for client in line["clients"]:
            times[client] += 1
        expected = [epsilon(4.0, 1e-5, times[client]) for client in line["clients"]]
        assert line["privacy"] == {"epsilon": expected, "delta": 1e-5}
        assert line["measures"]["epsilon"] == max(expected)


def test_without_noise_nothing_is_recorded_of_privacy(tmp_path: Path) -> None:
    run = loop(tmp_path / "run", {"clip": 1.0})
    go(run)
    assert all("privacy" not in line and "epsilon" not in line["measures"] for line in run.record.rounds)


def test_secure_messages_are_counted(tmp_path: Path) -> None:
    plain, secure = loop(tmp_path / "plain", {}, rounds=1), loop(tmp_path / "secure", {"secure": True}, rounds=1)
    for one in (plain, secure):
        go(one)
    (before,), (after,) = ([line["traffic"] for line in one.record.rounds] for one in (plain, secure))
    numbers = before["up_floats"]
    assert after["up_bytes"] == 5 * (64 + 160 * 4 + 8 * (numbers + 1) + 66 * 5)
    assert after["down_bytes"] - before["down_bytes"] == 5 * (64 * 4 + 160 * 4 + 4 * 5)


def test_a_method_that_sends_nothing_needs_no_guard(tmp_path: Path) -> None:
    table: dict[str, Any] = {"secure": True, "clip": 1.0, "noise": 1.0, "place": "central"}
    run = loop(tmp_path / "run", table, Local(lr=0.1, epochs=1, batch=4), rounds=1)
    assert go(run) == {}
    assert run.record.rounds[0]["traffic"]["up_bytes"] == 0


@dataclass(frozen=True)
class Counts(FedAvg):
    """FedAvg that needs to know who sent what."""

    name: ClassVar[str] = "counts"
    traits = Traits(needs_rows=True)

    def aggregate(self, task: Task, server: Tree, clients: torch.Tensor, up: Tree, weights: torch.Tensor) -> Tree:
        assert len(clients) == len(weights) == len(next(iter(up.values())))
        return super().aggregate(task, server, clients, up, weights)


@pytest.mark.parametrize("table", [TABLES[0], TABLES[4], {"robust": "norm-bound"}], ids=str)
def test_a_method_that_needs_rows_gets_as_many_as_clients(table: dict[str, Any], tmp_path: Path) -> None:
    run = loop(tmp_path / "run", table, Counts(lr=0.1, epochs=1, batch=4))
    go(run)
    assert run.finished == run.settings.total > 0  # no round broke off in `Counts.aggregate`


# -- the budget -----------------------------------------------------------------------------------------------------

SMALL = (
    *("rounds=3", "clients=4", "data.limit=2", "partition.name=iid", "method.epochs=1", "device=cpu"),
    *("backbone.channels=[2]", "backbone.hidden=[4]", "evaluate.after=false"),
    *("guards.clip=1", "guards.noise=4"),
)


def test_the_run_stops_at_the_budget_with_a_sentence_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = epsilon(4.0, 1e-5, 2) + 1e-6
    words = [*SMALL, f"guards.budget={budget}"]
    result = execution.start(recipe(*words), tmp_path / "run")
    said = capsys.readouterr().err
    assert f"Stopped after round 2 of 3: one more would take a client beyond guards.budget={budget:g}" in said
    assert len(result.rounds) == 2
    assert result.rounds[-1]["received"]["mean"] is not None  # the last round is tested as ever
    assert result.summary["privacy"] == {"epsilon": [epsilon(4.0, 1e-5, 2)] * 4, "delta": 1e-5}
    assert result.summary["stopped"] == said.strip()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == said.strip()
    # a finished run is only read again; more budget lets it go on, exactly as if it had been there from the start
    assert resuming.resume(tmp_path / "run").summary == result.summary
    more = resuming.resume(tmp_path / "run", recipe(*SMALL, "guards.budget=1000"))
    assert (len(more.rounds), "stopped" in more.summary) == (3, False)
    straight = execution.start(recipe(*SMALL), tmp_path / "straight")
    assert [line["privacy"] for line in more.rounds] == [line["privacy"] for line in straight.rounds]
    assert more.summary["accuracy"]["before"] == straight.summary["accuracy"]["before"]
    with pytest.raises(PromptFedError, match=r"guards\.budget=1 is less than the run started with"):
        resuming.resume(tmp_path / "run", recipe(*SMALL, "guards.budget=1"))


def test_a_budget_for_no_round_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"guards\.budget=0\.1 allows no round"):
        execution.start(recipe(*SMALL, "guards.budget=0.1"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_newcomers_have_a_budget_too(tmp_path: Path) -> None:
    budget = epsilon(4.0, 1e-5, 2)
    with pytest.raises(PromptFedError, match=r"allows newcomers 2 rounds; lower join_rounds"):
        execution.start(recipe(*SMALL, f"guards.budget={budget}", "newcomers=1", "join_rounds=3"), tmp_path / "run")
