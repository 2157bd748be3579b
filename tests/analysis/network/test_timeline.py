"""Runs on a simulated clock: every part by hand, and what must hold for any profile."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptfed.analysis.network.timeline import Timeline, simulate
from promptfed.core.errors import PromptFedError
from promptfed.federation.clock.attempts import Part
from promptfed.federation.clock.links import PROFILES, Profile
from promptfed.results.folder.reader import RunFolder, read_run
from support.command import promptfed, sentence
from support.fake_runs import write_run

PLAIN = Profile(down_mbit=8.0, up_mbit=1.0)


def written(folder: Path, rounds: list[dict[str, Any]], sizes: tuple[int, ...] = (30, 10)) -> RunFolder:
    """Return a run of clients that hold so many images, with these lines in rounds.jsonl."""
    folder.mkdir()
    (folder / "recipe.toml").write_text('seed = 0\nrounds = 2\n[method]\nname = "fedavg"\n')
    held = [{"train": [], "test": [0], "counts": [size], "domains": [size]} for size in sizes]
    head = {"name": "iid", "hash": "sha256:1", "classes": ["a"], "domain_names": ["all"], "clients": held}
    (folder / "partition.json").write_text(json.dumps(head))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rounds))
    return read_run(folder)


def line(number: int, clients: list[int], mean: float | None, size: int = 0, seconds: float = 4.0) -> dict[str, Any]:
    """Return a round in which every client receives and sends `size` bytes."""
    tested = (
        None if mean is None else {"mean": mean, "weighted": mean, "worst": mean, "p10": mean, "per_client": [mean]}
    )
    each = size * len(clients)
    traffic = {"down_floats": 0, "up_floats": 0, "down_bytes": each, "up_bytes": each}
    blank: dict[str, Any] = {"loss": None, "trained": None, "deployed": None, "measures": {}}
    return blank | {"round": number, "clients": clients, "received": tested, "traffic": traffic, "seconds": seconds}


def parts(found: Timeline) -> Part:
    """Return what a run waited for that waits for all."""
    assert found.part is not None
    return found.part


def test_transfer_and_training_by_hand(tmp_path: Path) -> None:
    # a million bytes: 1 s down at 8 Mbit/s, 8 s up at 1 Mbit/s, and twice 0.5 s on the way. Client 0 has 3/4 of the
    # images, so 3 of the 4 recorded seconds, which take twice as long here
    run = written(tmp_path / "run", [line(1, [0, 1], 0.5, 1_000_000), line(2, [1], 0.75, 500_000)])
    found = simulate(run, replace(PLAIN, latency_ms=500, slowness=2))
    part = parts(found)
    # in round 2 client 1 is alone: half the bytes, all of the seconds
    assert part.transfer == pytest.approx((1 + 8 + 1) + (0.5 + 4 + 1))
    assert part.training == pytest.approx(2 * 3 + 2 * 4)
    assert (part.waiting, part.repeated) == (0, 0)
    assert [mean for _, mean in found.points] == [0.5, 0.75]
    assert [hours for hours, _ in found.points] == pytest.approx([16 / 3600, part.total / 3600])


def test_when_an_accuracy_is_reached() -> None:
    found = Timeline(3.0, points=((1.0, 0.5), (2.0, 0.7), (3.0, 0.6)))
    assert [found.reached(goal) for goal in (0.5, 0.6, 0.7, 0.71)] == [1.0, 2.0, 2.0, None]


def test_nobody_starts_outside_the_hours(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [line(number, [0], None, 8, seconds=1800.0) for number in range(1, 7)], sizes=(5,))
    part = parts(simulate(run, replace(PLAIN, hours=1)))
    # two trainings of half an hour fit into an hour; then the client waits for the next day's
    days = part.waiting / 3600
    assert part.training == 6 * 1800
    assert 2 * 23 - 1 <= days <= 3 * 24
    assert parts(simulate(run, replace(PLAIN, hours=24))).waiting == 0


def test_what_breaks_off_is_done_again(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [line(number, [0], None, 8, seconds=60.0) for number in range(1, 401)], sizes=(5,))
    part = parts(simulate(run, replace(PLAIN, dropout=0.5, away_minutes=1)))
    # with a chance of a half an attempt breaks off once on the mean, half way through, and a minute is lost besides
    assert part.repeated / 400 == pytest.approx(0.5 * 60 + 60, rel=0.15)
    assert part.training == 400 * 60


def test_who_sends_nothing_waits_for_nobody(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [line(number, [0, 1], None, seconds=60.0) for number in (1, 2)])
    found = simulate(run, replace(PLAIN, latency_ms=500, dropout=0.9, hours=1))
    assert found.part == Part(training=2 * 45.0)  # client 0 has three quarters of the images


def test_the_same_seed_gives_clients_the_same_links(tmp_path: Path) -> None:
    rounds = [line(number, [0, 1], 0.5, 1000) for number in (1, 2)]
    first, second = (written(tmp_path / name, rounds) for name in "ab")
    mobile = PROFILES["mobile"]
    assert simulate(first, mobile, seed=3) == simulate(second, mobile, seed=3)
    assert simulate(first, mobile, seed=3).hours != simulate(first, mobile, seed=4).hours


def test_training_is_what_the_recipe_says_if_it_does(tmp_path: Path) -> None:
    run = written(tmp_path / "run", [line(1, [0, 1], None, 8)])
    stated = replace(run, recipe={**run.recipe, "clock": {"mode": "sync", "image_ms": 500.0}})
    assert parts(simulate(stated, replace(PLAIN, slowness=2))).training == 2 * 0.5 * 30


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(PROFILES)), seed=st.integers(0, 1000), less=st.floats(0.05, 1.0))
def test_smaller_messages_never_take_longer(
    name: str, seed: int, less: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # at all hours: else a quicker round may only mean a longer wait
    profile = replace(PROFILES[name], hours=24.0)
    sizes = (1_000_000, int(less * 1_000_000))
    folder = tmp_path_factory.mktemp("runs")
    large, small = (
        simulate(written(folder / str(place), [line(1, [0, 1], 0.5, size)]), profile, seed)
        for place, size in enumerate(sizes)
    )
    assert small.hours <= large.hours


def test_a_run_that_did_not_wait_for_all_has_its_own_times(tmp_path: Path) -> None:
    mobile = {**asdict(PROFILES["mobile"]), "profile": "mobile", "mode": "fedbuff"}
    rounds = [line(number, [0], 0.5, 8) | {"clock": 1800.0 * number} for number in (1, 2)]
    run = written(tmp_path / "run", rounds)
    run = replace(run, recipe={**run.recipe, "clock": mobile})
    found = simulate(run, PROFILES["mobile"])
    assert (found.hours, found.points, found.part) == (1.0, ((0.5, 0.5), (1.0, 0.5)), None)
    with pytest.raises(PromptFedError, match="give --profile mobile with down_mbit=20, or run it anew"):
        simulate(run, PROFILES["clinic-dsl"])


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_table_compares_runs_on_the_same_links(tmp_path: Path) -> None:
    prompts = write_run(tmp_path / "prompts", method="pfedpg", floats=100)
    models = write_run(tmp_path / "models", method="fedavg", floats=1_000_000)
    words = ("simulate-network", prompts, models, "--profile", "data-centre", "--set", "up_mbit=1", "--target", "10")
    rows = list(csv.DictReader(promptfed(*words, "--format", "csv").out.splitlines()))
    small, large = (next(row for row in rows if row["run"].startswith(name)) for name in ("pfedpg", "fedavg"))
    assert float(large["bytes"]) == 10_000 * float(small["bytes"])
    assert float(large["transfer_hours"]) > 100 * float(small["transfer_hours"])
    assert float(large["target_hours"]) > float(small["target_hours"]) > 0


def test_the_figure_has_its_numbers_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "hours.png"
    assert promptfed("simulate-network", write_run(tmp_path / "run"), "--out", out).code == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    numbers = json.loads(out.with_suffix(".json").read_text())["numbers"]
    assert numbers["profile"]["down_mbit"] == 50
    assert all(points for points in numbers["runs"].values())


def test_wrong_words_get_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert 'did you mean "mobile"?' in sentence(promptfed("simulate-network", run, "--profile", "mobil"))
    assert "There is no " in sentence(promptfed("simulate-network", tmp_path / "nowhere"))
    assert "picture format" in sentence(promptfed("simulate-network", run, "--out", "hours.bmp"))
