"""The table [clock]: what it fills in, what it is refused with, and a run from the command line to its tables."""

import json
from pathlib import Path

import pytest

from promptfed.analysis.network.timeline import simulate
from promptfed.core.errors import PromptFedError
from promptfed.core.method import averages
from promptfed.core.ranks import Ranks
from promptfed.federation.clock.links import read_profile
from promptfed.federation.loop import Loop
from promptfed.results.folder.reader import read_run
from promptfed.results.report import compare
from promptfed.runs import config, registry, resuming, runner
from promptfed.runs.clocked import loop_by
from promptfed.sites import coordinator
from promptfed.sites.settings import Federation
from support.tiny_runs import plain, tiny, write_images

FEDBUFF = ("clock.mode=fedbuff", "clock.profile=mobile", "clock.hours=24", "clock.image_ms=1000", "clock.buffer=2")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz")


def test_the_table_is_spelled_out_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "rural.toml").write_text("down_mbit = 6\nup_mbit = 0.5\n")
    recipe = config.load_one("fedavg", [f"clock.profile={tmp_path / 'rural.toml'}", "clock.mode=semi", "clock.hours=9"])
    assert (recipe.clock["up_mbit"], recipe.clock["hours"], recipe.clock["latency_ms"]) == (0.5, 9.0, 0.0)
    (tmp_path / "rural.toml").unlink()
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert config.load_one(str(tmp_path / "recipe.toml")) == recipe


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["clock.mode=fedbuf"], 'did you mean "fedbuff"?'),
        (["clock.profile=mobil"], 'did you mean "mobile"?'),
        (["clock.profile=3"], "clock.profile must be a text, not 3."),
        (["clock.up=3"], "clock.up_mbit"),
        (["clock=fedbuff"], "must be a table: write clock.mode=fedbuff."),
        (["clock.damping=-1"], "clock.damping must be at least 0, not -1."),
        (["clock.profile=mobile", "newcomers=2"], "Newcomers join after the last round"),
        ([*FEDBUFF, "clock.buffer=21"], "clock.buffer=21 is more than the 20 clients at work; lower it."),
        ([*FEDBUFF, "per_round=4", "clock.buffer=5"], "clock.buffer=5 is more than the 4 clients at work"),
        ([*FEDBUFF, "guards.secure=true"], "guards.secure needs to know beforehand whose answers a round has"),
        ([*FEDBUFF, "guards.clip=1", "guards.noise=1"], "guards.noise needs to know beforehand"),
        ([*FEDBUFF, "clock.mode=semi", "guards.robust=median"], "guards.robust=median needs to know beforehand"),
        ([*FEDBUFF, "guards.robust=krum"], "needs 7 clients in a round, not 2"),
        ([*FEDBUFF, "sampling=one-per-domain", "per_round=4"], "set sampling=uniform, not one-per-domain"),
    ],
)
def test_what_does_not_go_together_gets_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(PromptFedError) as refused:
        config.load_one("fedavg", words)
    assert said in str(refused.value)


# those whose server makes something else of the answers than their mean
OTHERWISE = {
    "dp-fpl",
    "fedmgp",
    "trip",
    "fedmtl",
    "flora",
    "fedex-lora",
    "pfedmoap",
    "pfedpg",
    "relic",
    "fedproto",
    "sgpt",
}


def test_methods_that_do_not_average_are_refused_by_name() -> None:
    learned_words = {"fedti", "fedcpw", "ti-local", "ti-central"}
    assert {name for name, kind in registry.methods().items() if not averages(kind())} == OTHERWISE | learned_words
    for name in sorted(OTHERWISE):
        with pytest.raises(PromptFedError, match=f"and method {name} makes something else of them"):
            config.load_one(name, ["clock.mode=semi"])
        assert config.load_one(name, ["clock.mode=sync"]).clock["mode"] == "sync"
    for word in ("prompt=generated", "prompt=both"):
        with pytest.raises(PromptFedError, match="method pfedvpt makes something else"):
            config.load_one("pfedvpt", ["clock.mode=fedbuff", f"method.{word}"])
    assert config.load_one("fedavg", ["prompt.kind=frame", "clock.mode=fedbuff"]).method["name"] == "fedavg+pt"
    with pytest.raises(PromptFedError, match=r"method pfedpt\+pt|method fedmtl\+pt"):
        config.load_one("fedmtl", ["prompt.kind=frame", "clock.mode=fedbuff"])


def test_real_sites_have_a_clock_of_their_own(tmp_path: Path) -> None:
    recipe = config.load_one("fedavg", ["clients=3", *FEDBUFF], embedded=False)
    with pytest.raises(PromptFedError, match=r"Over sites the clock is the real one; leave \[clock\] out."):
        coordinator.create(tmp_path / "run", recipe, Federation(("a", "b", "c")))


def test_several_processes_have_no_common_clock() -> None:
    class Two(Ranks):
        size = 2

    with pytest.raises(PromptFedError, match=r"A run by a \[clock\] is one process's; start it without others"):
        loop_by(config.load_one("fedavg", [*FEDBUFF]), Two())
    assert loop_by(config.load_one("fedavg"), Two()) is Loop


def test_a_run_that_does_not_wait_and_its_tables(images: Path, tmp_path: Path) -> None:
    words = tuple(tiny(images, "rounds=6", "clients=6", "evaluate.after=false", *FEDBUFF))
    done = runner.run("fedavg", out=tmp_path / "fedbuff", overrides=words)
    waiting = runner.run("fedavg", out=tmp_path / "sync", overrides=(*words, "clock.mode=sync"))
    runs = [read_run(one.folder) for one in (done, waiting)]
    assert [run.clock for run in runs] == [one.rounds[-1]["clock"] for one in (done, waiting)]
    table = compare(runs).to_csv()
    assert "clock.mode=fedbuff" in table
    assert "hours" in table.splitlines()[0]
    # a clock in the run and one beside it show the same time
    mobile = read_profile("mobile", ["hours=24"])
    for run in runs:
        found = simulate(run, mobile, run.seed)
        assert found.hours == pytest.approx((run.clock or 0) / 3600, rel=1e-9)
        assert len(found.points) == 6


def test_a_longer_run_is_the_same_as_one_in_one_go(images: Path, tmp_path: Path) -> None:
    words = tuple(tiny(images, "clients=6", "evaluate.after=false", *FEDBUFF))
    runner.run("fedavg", out=tmp_path / "short", overrides=(*words, "rounds=3"))
    longer = resuming.resume(tmp_path / "short", config.load_one("fedavg", [*words, "rounds=7"]))
    straight = runner.run("fedavg", out=tmp_path / "long", overrides=(*words, "rounds=7"))
    one, other = ([line | {"deployed": None} for line in plain(run.rounds)] for run in (longer, straight))
    assert one == other  # but for the test that ended the short run
    assert max(line["measures"]["staleness"] for line in straight.rounds) > 0
    state = json.loads((tmp_path / "long" / "checkpoint" / "state.json").read_text())
    assert state["versions"]
