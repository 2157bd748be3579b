"""Every rule of the advice, and every command that it can give: each is one that the command line takes."""

import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import typer

from promptfed.cli import app
from promptfed.core.errors import PromptFedError
from promptfed.data.outline import DataFacts
from promptfed.runs import config
from promptfed.runs.advising import Advice, Wishes, advise
from promptfed.runs.evidence import EVIDENCE

FOUR = DataFacts(
    name="folder:photos",
    sites=("north", "east", "south", "west"),
    classes=10,
    training=(60, 60, 60, 60),
    testing=(30, 30, 30, 30),
    held=(10, 10, 10, 10),
    shared=1.0,
    skew=0.0,
    unequal=1.0,
    side=300,
    broken=0,
    resizes=True,
)
SKEWED = replace(FOUR, held=(3, 3, 4, 4), shared=0.4, skew=0.6)
APART = replace(FOUR, held=(2, 2, 3, 3), shared=0.0, skew=0.75)
ONE = replace(FOUR, sites=("photos",), training=(240,), testing=(60,), held=(10,), shared=0.0)
NOTHING = Wishes()


def keys_of(command: str) -> dict[str, str]:
    words = shlex.split(command)
    assert words[:2] == ["promptfed", "run"]
    return {"method": words[2]} | dict(word.split("=", 1) for word in words[3:])


def proposed(facts: DataFacts, wishes: Wishes = NOTHING) -> dict[str, str]:
    return keys_of(advise(facts, wishes).run)


# -- the method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [FOUR, SKEWED, ONE])
def test_sites_that_share_classes_share_a_head(facts: DataFacts) -> None:
    found = proposed(facts)
    assert (found["method"], found["method.tokens"]) == ("pfedvpt", "0")


@pytest.mark.parametrize(("facts", "wishes", "setting"), [(FOUR, NOTHING, "office"), (SKEWED, NOTHING, "people")])
def test_the_nearer_comparison_gives_the_numbers(facts: DataFacts, wishes: Wishes, setting: str) -> None:
    method = advise(facts, wishes).method
    assert {name.partition("/")[0] for name in method.evidence} == {setting}
    assert str(EVIDENCE[f"{setting}/shares"]) in " ".join(method.why)


def test_sites_divided_among_clients_are_no_longer_alike() -> None:
    assert "people/shares" in advise(FOUR, Wishes(clients=8)).method.evidence


def test_sites_without_a_common_class_stay_alone() -> None:
    found = advise(APART, NOTHING)
    assert keys_of(found.run)["method"] == "head-probe"
    assert found.against == ()
    assert "one seed" in " ".join(found.method.why)


def test_what_noise_costs_is_said_where_it_is_offered() -> None:
    found = advise(FOUR, Wishes(private=True))
    assert str(EVIDENCE["hidden/shares"]) in " ".join(found.recipe.why)
    assert {"hidden/none", "hidden/shares", "hidden/alone"} <= found.evidence.keys()


def test_one_client_has_nobody_to_learn_with() -> None:
    found = proposed(replace(ONE, training=(19,)))
    assert (found["method"], found["clients"], found["partition.name"]) == ("head-probe", "1", "iid")


@pytest.mark.parametrize("facts", [FOUR, APART, ONE])
def test_new_classes_need_their_names(facts: DataFacts) -> None:
    found = proposed(facts, Wishes(new_classes=True))
    assert (found["method"], found["backbone.name"]) == ("fedkgcoop", "clip")


def test_new_classes_are_rehearsed_on_half_of_those_there_are() -> None:
    zero_shot, rehearsal = map(keys_of, advise(FOUR, Wishes(new_classes=True)).against)
    assert zero_shot["method"] == "clip-zs"
    assert (rehearsal["data.half"], rehearsal["evaluate.sets"]) == ("base", "base+novel")
    assert len(advise(SKEWED, Wishes(new_classes=True)).against) == 1  # a site might have no class of the base half


def test_whole_models_are_a_rival_where_there_are_many_images() -> None:
    may = Wishes(whole_models=True)
    assert [keys_of(one)["method"] for one in advise(FOUR, may).against] == ["head-probe"]
    many = replace(FOUR, training=(1500,) * 4)
    assert [keys_of(one)["method"] for one in advise(many, may).against] == ["head-probe", "vit-full"]
    assert [keys_of(one)["method"] for one in advise(many, NOTHING).against] == ["head-probe"]
    assert "shops/whole" in advise(FOUR, may).method.evidence


def test_sites_with_many_images_get_prompts_of_their_own() -> None:
    few, many = (replace(FOUR, training=(count,) * 4) for count in (999, 1000))
    assert proposed(few)["method"] == "pfedvpt"
    found = proposed(many)
    assert (found["method"], found["method.preset"], found["method.tokens"]) == ("pfedpg", "tuned", "4")
    assert (found["rounds"], found["schedule.name"], found["method.lr"]) == ("10", "cosine", "0.003")
    told = [EVIDENCE[name].percent for name in advise(many, NOTHING).method.evidence]
    assert told == sorted(told, reverse=True)
    assert proposed(replace(APART, training=(1000,) * 4))["method"] == "head-probe"


def test_a_prompt_that_nobody_sees_is_learned_alone() -> None:
    many = replace(FOUR, training=(1000,) * 4)
    alone = proposed(many, Wishes(private=True))
    assert (alone["method"], "guards.secure" in alone) == ("singleset-vpt", False)
    assert "Nothing is sent" in " ".join(advise(many, Wishes(private=True)).recipe.why)
    assert "gets a prompt made for it" in " ".join(advise(many, Wishes(newcomers=1)).method.why)


def test_rivals_have_a_schedule_where_it_was_measured() -> None:
    many = advise(replace(FOUR, training=(1000,) * 4), Wishes(whole_models=True))
    head, whole = map(keys_of, many.against)
    assert (head["schedule.name"], head["method.lr"]) == ("cosine", "0.003")
    assert "schedule.name" not in whole
    assert "shops/whole" in many.evidence


# -- clients --------------------------------------------------------------------------------------------------------


def test_every_site_is_a_client() -> None:
    assert (proposed(FOUR)["partition.name"], proposed(FOUR)["clients"]) == ("domain", "4")
    assert proposed(FOUR, Wishes(clients=4)) == proposed(FOUR)


def test_sites_are_divided_equally_or_not_at_all() -> None:
    found = proposed(FOUR, Wishes(clients=8))
    assert (found["partition.name"], found["clients"]) == ("domain-dirichlet", "8")
    with pytest.raises(PromptFedError, match="give --clients a multiple of 4"):
        advise(FOUR, Wishes(clients=6))


@pytest.mark.parametrize(("images", "clients"), [(25, "2"), (240, "20"), (9000, "20")])
def test_without_sites_the_number_of_images_decides(images: int, clients: str) -> None:
    found = proposed(replace(ONE, training=(images,)))
    assert (found["partition.name"], found["clients"]) == ("dirichlet", clients)


def test_newcomers_are_the_last_clients() -> None:
    assert proposed(FOUR, Wishes(newcomers=1))["newcomers"] == "1"
    found = advise(FOUR, Wishes(newcomers=1)).method
    assert str(EVIDENCE["joining/shares"]) in " ".join(found.why)
    assert {"joining/shares", "joining/alone"} <= set(found.evidence)
    with pytest.raises(PromptFedError, match="leaves none of 4 clients"):
        advise(FOUR, Wishes(newcomers=4))


# -- backbone and training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "size"), [(32, "98"), (98, "98"), (100, "112"), (113, "224"), (4000, "224")])
def test_the_backbone_sees_no_more_than_there_is(side: int, size: str) -> None:
    found = proposed(replace(FOUR, side=side))
    assert (found["backbone.weights"], found["backbone.size"], found["data.size"]) == (
        "facebook/dinov2-small",
        size,
        size,
    )


def test_sets_of_one_size_are_asked_for_no_other() -> None:
    assert "data.size" not in proposed(replace(ONE, name="cifar10", resizes=False, side=32))


def test_without_a_download_the_network_is_the_packages() -> None:
    found = advise(FOUR, Wishes(download=False))
    assert "backbone.weights" not in keys_of(found.run)
    assert "expect little of it" in found.backbone.why[0]
    assert "backbone.weights" not in proposed(replace(FOUR, name="fashion-shops", resizes=False))
    with pytest.raises(PromptFedError, match="leave out --no-download"):
        advise(FOUR, Wishes(new_classes=True, download=False))


@pytest.mark.parametrize(("each", "batch", "epochs"), [(49, "10", "1"), (50, "64", "5")])
def test_few_images_come_in_small_batches(each: int, batch: str, epochs: str) -> None:
    found = proposed(replace(FOUR, training=(each,) * 4))
    assert (found["method.batch"], found["method.epochs"], found["rounds"]) == (batch, epochs, "20")


@pytest.mark.parametrize(("each", "rate"), [(49, 0.1), (50, 0.01)])
def test_who_stays_alone_has_the_rate_that_was_best_alone(each: int, rate: float) -> None:
    facts = replace(APART, training=(each,) * 4)
    assert proposed(facts)["method.lr"] == str(rate)
    (rival,) = advise(replace(FOUR, training=(each,) * 4), NOTHING).against
    assert keys_of(rival)["method.lr"] == str(rate)


def test_what_is_read_and_protected() -> None:
    plain = proposed(FOUR)
    assert not {"evaluate.metric", "data.skip_corrupt", "guards.secure"} & set(plain)
    found = proposed(replace(FOUR, unequal=5.0, broken=1), Wishes(private=True))
    assert found["evaluate.metric"] == "balanced_accuracy"
    assert (found["data.skip_corrupt"], found["guards.secure"]) == ("true", "true")
    broken = [" ".join(advise(replace(FOUR, broken=count), NOTHING).recipe.why) for count in (1, 2)]
    assert "One file cannot be read; data.skip_corrupt=true leaves it out." in broken[0]
    assert "2 files cannot be read; data.skip_corrupt=true leaves them out." in broken[1]
    alone = advise(APART, Wishes(private=True))
    assert "guards.secure" not in keys_of(alone.run)
    assert "Nothing is sent" in " ".join(alone.recipe.why)


@pytest.mark.parametrize("newcomers", [1, 3])
def test_one_client_cannot_hide_among_others(newcomers: int) -> None:
    found = advise(FOUR, Wishes(newcomers=newcomers, private=True))
    assert "guards.secure" not in keys_of(found.run)
    assert "there would be only one" in " ".join(found.recipe.why)
    assert "guards.secure" in keys_of(advise(FOUR, Wishes(newcomers=2, private=True)).run)


def test_a_site_with_few_test_images_is_named() -> None:
    assert not any("seeds" in one for one in advise(FOUR, NOTHING).known)
    found = advise(replace(FOUR, testing=(30, 3, 30, 30)), NOTHING)
    assert found.known[0].startswith("east has 3 test images")


def test_a_site_with_nothing_to_learn_from_is_named() -> None:
    found = advise(replace(FOUR, training=(60, 60, 0, 60)), NOTHING)
    assert found.known[0] == "south has no training images, so it cannot be a client; leave its images out."


def test_what_is_given_is_meant() -> None:
    run = keys_of(advise(FOUR, NOTHING, ("data.size=64", "data.test_fraction=0.3")).run)
    assert (run["data.size"], run["data.test_fraction"]) == ("64", "0.3")


# -- all of them ----------------------------------------------------------------------------------------------------

EVERY = [
    advise(replace(facts, **change), Wishes(clients, newcomers, new, whole, private, download))
    for facts, clients in ((FOUR, 0), (FOUR, 8), (SKEWED, 0), (APART, 0), (ONE, 0), (ONE, 12))
    for change in (
        {},
        {"training": (20,) * len(facts.sites)},
        {"name": "fashion-shops", "resizes": False, "training": (1500,) * len(facts.sites), "unequal": 9.0},
        {"name": "folder:my photos", "broken": 2, "training": (2000,) * len(facts.sites)},
        {"name": "cifar100", "resizes": False, "side": 32},
    )
    for newcomers, new, whole, private, download in product((0, 1), *((False, True),) * 4)
    if download or not new or change.get("name") == "fashion-shops"  # what is refused
]
COMMANDS = sorted({command for one in EVERY for command in (one.run, *one.against)})


@pytest.mark.parametrize("part", range(4))
def test_every_command_is_one_that_the_command_line_takes(part: int) -> None:
    run = typer.main.get_command(app).get_command(None, "run")  # type: ignore[attr-defined]
    for command in COMMANDS[part::4]:
        words = shlex.split(command)
        context = run.make_context("run", words[2:])
        assert context.params["source"] == words[2]
        assert config.load_one(context.params["source"], context.params["overrides"]).method["name"] == words[2]


def test_a_path_with_blanks_is_one_word() -> None:
    assert any("'data.name=folder:my photos'" in command for command in COMMANDS)


def test_every_percentage_is_evidence() -> None:
    for one in EVERY:
        parts = one.method, one.backbone, one.recipe
        for part in parts:
            told = {float(number) for number in re.findall(r"(\d+\.\d\d) %", " ".join(part.why))}
            assert told == {EVIDENCE[name].percent for name in part.evidence}


def test_every_piece_of_evidence_is_of_use(advice_page: str) -> None:
    used = {name for one in EVERY for name in one.evidence}
    for name in set(EVIDENCE) - used:
        assert f"{EVIDENCE[name].percent:.2f}" in advice_page


@pytest.fixture
def advice_page() -> str:
    return (Path(__file__).parents[2] / "docs" / "which-method.md").read_text(encoding="utf-8")


def test_the_advice_is_a_value() -> None:
    assert isinstance(advise(FOUR, NOTHING), Advice)
    assert advise(FOUR, NOTHING) == advise(FOUR, NOTHING)
