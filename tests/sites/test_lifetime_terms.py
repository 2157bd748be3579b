"""Terms for the life of a site: rounds in all runs, who takes part in which run, and all of them in plain words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptfed.cli.sites import app
from promptfed.core.errors import PromptFedError
from promptfed.sites import coordinator
from promptfed.sites.company import Company
from promptfed.sites.settings import Federation
from promptfed.sites.terms import Limits, Terms
from promptfed.sites.terms_in_words import describe_terms
from promptfed.sites.wire import Refused
from support.curious import Prober
from support.faults import ignore
from support.three_sites import NAMES, OPEN, Ask, begin, exchange, lines, recipe

LIFE = "its owner's terms allow 3 rounds for life, and this would be another one"


def test_rounds_for_life_count_across_the_names_of_runs_and_restarts(tmp_path: Path) -> None:
    prober = Prober(tmp_path, recipe("fedavg"), OPEN + "rounds_for_life = 3\n")
    assert "error" not in prober.fit(0, 0, "one").head
    assert "error" not in prober.fit(1, 1, "one").head
    assert "error" not in prober.fit(1, 1, "one").head  # the same model once more costs nothing
    prober.restart()
    assert "error" not in prober.fit(2, 0, "two").head
    assert prober.fit(3, 1, "two").head["error"] == LIFE
    assert prober.fit(4, 0, "three").head["error"] == LIFE
    assert "error" not in prober.fit(2, 0, "two").head


@pytest.mark.parametrize(
    ("now", "refused"),
    [
        ({"north", "south", "west"}, ""),
        ({"north", "south"}, "only west would differ"),
        ({"north", "south", "west", "east"}, "only east would differ"),
        ({"north", "south", "east"}, ""),
    ],
)
def test_two_runs_have_the_same_sites_or_clearly_others(now: set[str], refused: str, tmp_path: Path) -> None:
    Company(tmp_path, "run-1", 2).check({"north", "south", "west"})
    if refused:
        with pytest.raises(
            Refused, match=f"ask for the sites of run-1 again, or for 2 changes among them, and {refused}"
        ):
            Company(tmp_path, "run-2", 2).check(now)
        Company(tmp_path, "run-3", 0).check(now)  # who does not insist is asked nothing
    else:
        Company(tmp_path, "run-2", 2).check(now)
        with pytest.raises(Refused, match="this run began without east2"):
            Company(tmp_path, "run-2", 2).check(now | {"east2"})
        Company(tmp_path, "run-2", 2).check(now - {"north"})  # a site that is lost is no choice of the coordinator's


def test_a_coordinator_cannot_take_the_difference_of_two_runs(tmp_path: Path) -> None:
    terms = OPEN + "min_change = 2\n"
    out, federation = begin(tmp_path, "fedavg", "rounds=1", "guards.secure=true")
    coordinator.conduct(out, federation, exchange(tmp_path, terms=terms), ignore)
    out.rename(tmp_path / "first")

    def without_west(site: str, ask: Ask) -> Ask:
        def answer(request: bytes) -> bytes:
            if site == "west" and b"session" in request:
                raise OSError("it is left out")
            return ask(request)

        return answer

    fewer = Federation(NAMES, min_sites=2, patience_seconds=1.0)
    out, _ = begin(tmp_path, "fedavg", "rounds=1", "guards.secure=true", federation=fewer)
    with pytest.raises(PromptFedError, match="only west would differ"):
        coordinator.conduct(out, fewer, exchange(tmp_path, without_west), ignore)
    assert not (out / "rounds.jsonl").exists() or lines(out) == []


STRICT = Terms(
    methods=("pfedpg", "fedvpt"),
    backbones=("vit",),
    split="test",
    evaluation="coarse",
    max_rounds=100,
    max_runs=20,
    rounds_for_life=1500,
    min_members=4,
    min_change=2,
    guards=Limits(clip=1.0, noise=4.0, delta=1e-5, budget=8.0, epsilon_for_life=20.0, secure=True),
    members={"west": "0" * 64, "south": "1" * 64},
)


def test_terms_in_plain_words() -> None:
    assert describe_terms(STRICT) == [
        "The method must be pfedpg or fedvpt.",
        "The backbone must be vit.",
        "This site takes part in at most 100 rounds in a run, 20 runs and 1,500 rounds in all runs together.",
        "No answer may move further than 1 (guards.clip).",
        "Noise of at least 4 times the clip is added here before an answer leaves.",
        "The noisy answers may cost ε=8 in a run and 20 in all runs together.",
        "δ is at most 1e-05.",
        "Nothing leaves without masks: the coordinator sees only sums.",
        "Under masks, a sum is of at least 4 sites.",
        "Under masks, the others are only south and west, known by the keys in [members].",
        "Under masks, the sites of a run are those of every earlier run, or at least 2 differ.",
        "Of test results, the count of right answers leaves, to the nearest 5 % or so.",
        "At most 1,000 test results leave in all, and none with fewer than 10 test images.",
        "Tests are on the test images.",
    ]


def test_what_terms_leave_open_is_said_too() -> None:
    said = " ".join(describe_terms(Terms()))
    for part in (
        "Any method of PromptFed may run.",
        "a coordinator can choose ones that give images away",
        "There may be any number of runs and rounds.",
        "Answers may leave without noise",
        "else the coordinator sees this site's own answers",
        "List their keys in [members]",
    ):
        assert part in said


def test_the_command_reads_a_file_or_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('methods = ["pfedpg"]\n')
    done = CliRunner().invoke(app, ["terms", str(path)])
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "The method must be pfedpg.")
    path.write_text("[guards]\nnoize = 1\n")
    done = CliRunner().invoke(app, ["terms", str(path)])
    assert str(done.exception).endswith('did you mean "noise"?')


def test_a_site_shows_its_key_and_what_is_left_of_its_terms(tmp_path: Path) -> None:
    terms = OPEN + "rounds_for_life = 3\n"
    out, federation = begin(tmp_path, "fedavg", "rounds=2", "guards.secure=true")
    coordinator.conduct(out, federation, exchange(tmp_path, terms=terms), ignore)
    home = tmp_path / "home" / "north"
    said = CliRunner().invoke(app, ["key", str(home)]).output
    assert said.startswith('north = "')
    assert len(said.strip()) == len('north = ""') + 64
    met = CliRunner().invoke(app, ["key", str(home), "--members"]).output.splitlines()
    assert [line.split(" = ")[0] for line in met] == ["north", "south", "west"]
    status = CliRunner().invoke(app, ["status", "--home", str(home)]).output
    assert "north: not running" in status
    assert "rounds: 2 of 3" in status
    assert "of 1,000" in status
    assert "The certificate of north ends in" in status  # the tests' certificates are good for a day
    assert "audit log: " in status
    failed = CliRunner().invoke(app, ["key", str(tmp_path)])
    assert "name the --home of a site that has joined once" in str(failed.exception)
