"""What a malicious coordinator is refused by the process that works at a real site, not only by the objects in it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptfed.core.tree import Tree
from promptfed.data import open_dataset
from promptfed.data.digest import digest_images
from promptfed.sites import wire
from promptfed.sites.audit_check import check_audit
from promptfed.sites.audit_log import read_head
from promptfed.sites.identity import MEMBERS, load_identity
from promptfed.sites.signed_requests import SIGNED, asker
from promptfed.sites.wire import Header, Message
from support.bad_recipes import BAD_RECIPES
from support.certificates import write_certificates
from support.forged_requests import FORGED, SIGNED_RUN, asked
from support.masked_worker import EVERYONE, CuriousAtADistance
from support.real_worker import RealSite, sign, signer
from support.three_sites import OPEN, furthest, recipe

pytestmark = pytest.mark.real_processes

TERMS = OPEN + 'methods = ["fedavg"]\nbackbones = ["cnn"]\n[guards]\nclip = 1.0\nnoise = 4.0\nepsilon_for_life = 4.0\n'
NOISY = ("guards.clip=1", "guards.noise=4", "guards.entropy=system")
SMALL = "min_test = 1\n"  # north has three test images
SUM_OPENED = "it has already helped to open another sum of this round"
COUNTS = {"tested.correct", "tested.count"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    """Return the site whose one process all of these tests ask, each in runs of its own."""
    made = RealSite(tmp_path_factory.mktemp("site"), recipe("fedavg"))
    with made.at_work():
        yield made


def test_a_sites_process_answers_its_coordinator_alone(site: RealSite) -> None:
    site.agree(OPEN)

    def answer(head: Header) -> Any:
        return wire.unpack(site.child.ask(wire.pack(Message(head, {}))), 2**30).head

    for given, sentence in FORGED.values():
        assert sentence in answer(given())["error"]
    head = sign(asked(), signer())
    assert answer(head)["classes"] == ["dark", "light"]
    found = check_audit(site.home)
    assert found.problems == []
    *forged, last = [record for record in found.records if record["run"] == SIGNED_RUN]
    assert [(record["to"], record["request"]) for record in forged] == [(None, None)] * len(FORGED)
    assert (last["to"], last["request"]) == (asker(site.home, head), head[SIGNED]["signature"])


def refusals(site: RealSite, *recipes: tuple[str, str]) -> None:
    """Ask for runs of these recipes; each is refused with its sentence."""
    for number, (text, sentence) in enumerate(recipes):
        assert sentence in site.ask("hello", run=f"refused-{number}", recipe=text).head["error"]
        assert not (site.home / "runs" / f"refused-{number}").exists()


def test_a_sites_process_keeps_to_its_owners_terms(site: RealSite) -> None:
    noisy = recipe("fedavg", *NOISY).to_toml()
    site.agree(TERMS)
    refusals(
        site,
        (recipe("fedrep").to_toml(), "its owner's terms allow fedavg, not fedrep"),
        (recipe("fedavg").to_toml(), "they ask for guards.noise, added at the site"),
        (recipe("fedavg", *NOISY, "guards.clip=2").to_toml(), "its owner's terms ask for guards.clip=1 at most, not 2"),
        (recipe("fedavg", *NOISY[:2]).to_toml(), "noise that the coordinator can compute hides nothing"),
        (noisy.replace('"fedavg"', '"os:system"'), "method os:system is not PromptFed's own; this site runs no other"),
    )
    site.agree(TERMS.replace("methods", "# methods"))
    refusals(site, (recipe("pfedpg", *NOISY).to_toml(), "its owner's terms allow cnn, not vit"))
    assert "error" not in site.ask("hello", run="terms", recipe=noisy).head
    longer = recipe("fedavg", *NOISY, "rounds=2").to_toml()
    assert "which cannot change" in site.ask("hello", run="terms", recipe=longer).head["error"]


def test_a_sites_process_spends_no_more_than_its_owner_allows_unless_its_disk_is_set_back(
    site: RealSite, tmp_path: Path
) -> None:
    site.agree(TERMS)
    noisy, model = recipe("fedavg", *NOISY).to_toml(), site.model(0)

    def error(run: str) -> str | None:
        asked = site.ask("fit", model, run=run, recipe=noisy, keep=True, test=True)
        return str(asked.head["error"]) if "error" in asked.head else None

    first, again = (site.ask("fit", model, run="twice", recipe=noisy, keep=True, test=True) for _ in range(2))
    assert first.tree.keys() == again.tree.keys() > {"weight"}
    assert furthest(first.tree, again.tree) == 0  # the noise cannot be averaged out
    assert len((site.home / "ledger.jsonl").read_text().splitlines()) == 1
    backup = shutil.copytree(site.home, tmp_path / "backup", ignore=shutil.ignore_patterns("lock", "worker.log"))
    said = [error(f"new-{number}") for number in range(6)]
    assert said[0] is None
    assert "its owner's terms allow ε=4 for life" in str(said[-1])
    told = read_head(site.home)
    spent = [record["guards"].get("epsilon_for_life", 0) for record in check_audit(site.home).records]
    assert 0 < max(spent) <= 4.0
    shutil.rmtree(site.home / "runs")
    shutil.copytree(backup, site.home, dirs_exist_ok=True)
    assert error("set-back") is None  # who can write the owner's disk has the budget once more
    assert check_audit(site.home).problems == []
    assert check_audit(site.home, known=told).problems != []  # and the coordinator knows better


def test_a_sites_process_tells_one_result_of_a_round(site: RealSite) -> None:
    site.agree(SMALL)
    models = [site.model(seed) for seed in range(20)]
    results = [site.ask("evaluate", model, run="tests", adapt=False, final=False) for model in models]
    assert [set(result.tree) for result in results] == [COUNTS] + [set()] * 19
    assert not any("error" in result.head for result in results)


def test_a_sites_process_trains_from_no_more_models_than_its_owner_allows(site: RealSite) -> None:
    site.agree(OPEN + "rounds_for_life = 3\n")
    asked = [site.ask("fit", site.model(seed), run="models", keep=True, test=False) for seed in range(5)]
    life = "its owner's terms allow 3 rounds for life, and this would be another one"
    assert [answer.head.get("error") for answer in asked] == [None] * 3 + [life] * 2


def test_a_sites_process_takes_a_recipe_for_data(site: RealSite) -> None:
    site.agree(OPEN)
    before = site.child.starts
    for number, text in enumerate(BAD_RECIPES):
        answer = site.ask("hello", run=f"bad-{number}", recipe=text)
        assert answer.head["error"].isprintable(), text[:40]
        assert len(answer.head["error"]) < 100, text[:40]
        assert answer.tree == {}
    assert "error" not in site.ask("hello", run="good").head
    assert site.child.starts == before  # it has survived them all


# -- what is open -----------------------------------------------------------------------------------------------------


def blank(site: RealSite, **more: list[float]) -> Tree:
    """Return a model that knows nothing: its answers to all images are alike."""
    zero = {name: torch.zeros_like(value) for name, value in site.model(0).items()}
    return zero | {name.replace("_", "."): torch.tensor(value) for name, value in more.items()}


def test_without_noise_an_answer_tells_how_many_images_of_each_class_a_site_has(site: RealSite) -> None:
    site.agree(OPEN)
    step = recipe("fedavg", "method.lr=1", "method.epochs=1", "method.batch=64").to_toml()
    answer = site.ask("fit", blank(site), run="classes", recipe=step, keep=True, test=False)
    with np.load(site.folder / "north.npz") as opened:
        labels = opened["y_train"]
    guessed = (answer.tree["up.head.bias"] + 0.5) * float(answer.tree["weight"])  # a gradient is 1/2 less the share
    assert guessed.tolist() == pytest.approx(np.bincount(labels).tolist(), abs=1e-4)


def test_a_bad_model_is_taken_and_its_owner_sees_how_bad_it_is(site: RealSite) -> None:
    site.agree(OPEN)
    always = blank(site, head_bias=[9.0, 0.0])  # says "dark" whatever it sees
    assert "error" not in site.ask("evaluate", always, run="bad-model", adapt=False, final=True).head
    with np.load(site.folder / "north.npz") as opened:
        share = float((opened["y_test"] == 0).mean())
    assert json.loads((site.home / "runs" / "bad-model" / "report.json").read_text())["accuracy"] == pytest.approx(
        share
    )
    assert share < 1


def test_a_site_tells_classes_and_sizes_but_only_a_salted_digest_of_its_images(site: RealSite) -> None:
    site.agree(OPEN)
    told = site.ask("hello", run="hello").head
    assert (told["classes"], told["shape"], told["train"], told["test"]) == (["dark", "light"], [32, 32], 11, 3)
    assert len(told["sources"]["images"]) == 64
    assert told["sources"]["images"] != digest_images(open_dataset(f"npz:{site.folder / 'north.npz'}"))


# -- under masks ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curious(site: RealSite) -> CuriousAtADistance:
    """Return a coordinator that has made the keys of the other two sites itself."""
    return CuriousAtADistance(site)


def test_the_keys_of_others_are_signed_and_known(site: RealSite, curious: CuriousAtADistance, tmp_path: Path) -> None:
    curious.run = "keys"
    site.agree(OPEN)
    assert curious.hand_on(*EVERYONE) == ""  # from now on it knows both
    assert curious.hand_on(*EVERYONE, identities=None) == "the keys of the other sites are not signed"
    honest, met = dict(curious.signers), site.home / MEMBERS
    listed = f'[members]\nsouth = "{honest[1].key}"\nwest = "{honest[2].key}"\n'
    try:
        curious.signers[1] = honest[2]
        assert curious.hand_on(*EVERYONE) == "one site takes part as several"
        curious.signers[1] = load_identity(write_certificates(tmp_path / "second kit", "south"), "south")
        assert curious.hand_on(*EVERYONE) == 'the key of "south" is not the one it had before'
        met.unlink()
        site.agree(OPEN + listed)
        assert curious.hand_on(*EVERYONE) == 'its owner\'s terms do not list "south" with this key'
        site.agree(OPEN)
        assert curious.hand_on(*EVERYONE) == ""  # it has not met south, and its owner has not listed it
    finally:
        curious.signers |= honest
        met.unlink()


def test_an_answer_is_hidden_among_enough_sites(site: RealSite, curious: CuriousAtADistance) -> None:
    curious.run = "few"
    site.agree(OPEN)
    assert curious.hand_on(0) == "an answer would not be hidden among these sites"
    site.agree("")
    assert curious.hand_on(0, 1) == "its owner's terms ask for 3 sites in a sum, and these are 2"


def test_a_round_has_one_answer_and_one_sum(site: RealSite, curious: CuriousAtADistance) -> None:
    curious.run = "sums"
    site.agree(OPEN)
    curious.session()
    assert "out of turn" in curious.fit().head["error"]  # a second answer under the same mask
    assert "error" not in curious.reveal(*EVERYONE).head
    curious.session()
    assert curious.reveal(0, 1).head["error"] == SUM_OPENED
    found = check_audit(site.home)
    assert found.problems == []
    fits = [record for record in found.records if (record["run"], record["kind"]) == ("sums", "fit")]
    assert [set(record["tensors"]) for record in fits] == [{"masked"}, set(), {"masked"}]


def test_sites_that_were_told_different_lists_open_nothing(site: RealSite, curious: CuriousAtADistance) -> None:
    curious.run = "lists"
    site.agree(OPEN)
    curious.session()
    own = curious.confirm(*EVERYONE)
    other = curious.worker._masks._list().replace(b"[0, 1, 2]", b"[0, 1]", 1)
    signed = {"0": own.head["confirmed"], "1": curious.signers[1].confirm(other), "2": None}
    answer = curious.ask("reveal", confirmed=signed)
    assert answer.head["error"] == "fewer than 2 sites have signed the list of those who have answered"
    assert answer.tree == {}


def test_two_runs_do_not_differ_by_one_site_but_two_rounds_may(site: RealSite, curious: CuriousAtADistance) -> None:
    site.agree(OPEN + "min_change = 2\n")
    (site.home / "company.json").unlink(missing_ok=True)
    curious.run = "with-west"
    assert curious.hand_on(*EVERYONE) == ""
    curious.run = "without-west"
    assert "only west would differ" in curious.hand_on(0, 1)
    curious.run, curious.number = "with-west", 1
    try:
        assert curious.hand_on(0, 1) == ""  # a site may be lost: only noise helps
    finally:
        curious.number = 0
