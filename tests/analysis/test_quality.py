"""FID, KID and likeness on numbers worked out by hand, and what a run's quality.json holds."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from promptfed.analysis import quality
from promptfed.analysis.generate import Sampler, draw_all, spoken
from promptfed.analysis.quality import (
    DrawRequest,
    Judge,
    caution,
    chosen,
    fid,
    kid,
    kid_error,
    likeness,
    measure,
    real_images,
    uploads,
)
from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.federation.loop import rng_for
from promptfed.results.report.measured import words
from promptfed.runs.finished import FinishedRun, open_run, train_again
from support.command import promptfed
from support.inverted_runs import classified, inverted, painted, painting

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def with_a_painter() -> Iterator[None]:
    with painting():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("runs")
    return {name: inverted(name, parent) for name in ("relic", "ti-local")}


@pytest.fixture(scope="module")
def relic(folders: dict[str, Path]) -> FinishedRun:
    return open_run(folders["relic"])


class Means:
    """Features that are the means of the three channels."""

    name = "means"

    def __call__(self, pictures: Tensor) -> Tensor:
        return pictures.mean((-2, -1))

    def texts(self) -> Tensor | None:
        return torch.eye(3)


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_fid_of_gaussians_by_hand() -> None:
    # means (0, 0) and (3, 4); variances 2, 0 and 8, 0 along the first axis: 25 + 2 + 8 − 2 √16
    one = torch.tensor([[-1.0, 0], [1, 0]])
    two = torch.tensor([[1.0, 4], [5, 4]])
    assert fid(one, two) == pytest.approx(25 + 2 + 8 - 2 * 4)
    assert fid(one, one) == pytest.approx(0, abs=1e-12)


def test_fid_knows_correlations() -> None:
    # covariances [[2, 2], [2, 2]] and [[2, −2], [−2, 2]] have nothing in common: tr 4 + 4 − 0
    one, two = torch.tensor([[1.0, 1], [-1, -1]]), torch.tensor([[1.0, -1], [-1, 1]])
    assert fid(one, two) == pytest.approx(8)


def test_fid_of_one_image_is_a_distance_and_a_spread() -> None:
    assert fid(torch.tensor([[1.0, 1]]), torch.tensor([[0.0, 1], [4, 1]])) == pytest.approx(1 + 8)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 30), other=st.integers(2, 30), width=st.integers(1, 6))
def test_fid_is_the_textbooks(seed: int, count: int, other: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = rng.normal(size=(count, width)), rng.normal(size=(other, width)) * 2 + 1
    first, second = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (one, two))
    roots = np.sqrt(np.linalg.eigvals(first @ second).astype(complex)).real.sum()
    expected = np.square(one.mean(0) - two.mean(0)).sum() + np.trace(first) + np.trace(second) - 2 * roots
    assert fid(torch.from_numpy(one), torch.from_numpy(two)) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert fid(torch.from_numpy(two), torch.from_numpy(one)) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_kid_by_hand() -> None:
    # in one feature the kernel is (xy + 1)³: pairs within 0, 1 give 1, within 1, 2 give 27; between: 1, 1, 8, 27
    one, two = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [2.0]])
    assert kid(one, two) == pytest.approx(1 + 27 - 2 * (1 + 1 + 8 + 27) / 4)
    # in two features products are halved: within (2, 0), (0, 2) it is 1; with (2, 2) each gives (4/2 + 1)³ = 27
    one, two = torch.tensor([[2.0, 0], [0, 2]]), torch.tensor([[2.0, 2], [2, 2]])
    assert kid(one, two) == pytest.approx(1 + 125 - 2 * 27)
    assert kid(one[:1], two) is None


def test_likeness_by_hand() -> None:
    assert likeness(torch.tensor([[2.0, 0]]), torch.tensor([[0.0, 1], [3, 3]])) == pytest.approx(math.sqrt(0.5) / 2)


def test_small_samples_are_warned_of() -> None:
    assert "1 image has no spread" in caution(1, 50, 8)
    assert caution(100, 50, 2048) == "50 images in 2,048 features: the FID is biased upwards; compare equal counts only"
    assert caution(100, 50, 49) == ""


def test_images_are_chosen_evenly() -> None:
    assert chosen(np.arange(10), 3).tolist() == [0, 3, 6]
    assert chosen(np.arange(3), 10).tolist() == [0, 1, 2]


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_judge_by_hand(relic: FinishedRun) -> None:
    real = relic.plan.partition.train[0]  # eight images that are all red
    red = torch.tensor([1.0, -1, -1]).view(1, 3, 1, 1).expand(4, 3, 8, 8)
    found = Judge(relic, Means(), real)(red)
    assert (found["real"], found["drawn"]) == (8, 4)
    assert found["text"] == pytest.approx(3**-0.5)  # class 0's text is the first axis
    known = torch.from_numpy(relic.plan.dataset.images[real]).movedim(-1, -3).double().mean((2, 3)) / 127.5 - 1
    assert found["image"] == pytest.approx(likeness(known, red.double().mean((2, 3))), rel=1e-5)
    assert found["fid"] == pytest.approx(fid(known, red.double().mean((2, 3))), rel=1e-4)
    assert found["caution"] == ""


def test_what_is_sent_leaves_nothing_behind(relic: FinishedRun) -> None:
    before = {client: relic.own(client) for client in range(3)}
    once, twice = uploads(relic, [0, 2]), uploads(relic, [2])
    assert once["word"].shape == (2, 1, 12)
    assert once["word"][1].equal(twice["word"][0])
    for client, (down, personal) in before.items():
        now = relic.own(client)
        assert all(now[0][name].equal(value) for name, value in down.items())
        assert all(now[1][name].equal(value) for name, value in personal.items())
    with pytest.raises(PromptFedError, match="not 3"):
        uploads(relic, [3])


def test_words_of_a_run(relic: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "find_features", lambda *_: Means())
    found = measure(relic, DrawRequest(Sampler(count=4), clients=2, own=3, real=6))
    assert [(line["word"], line.get("client")) for line in found["words"]] == [
        ("global", None),
        ("global", 0), ("sent", 0), ("client", 0), ("trained", 0),
        ("global", 1), ("sent", 1), ("client", 1), ("trained", 1),
    ]  # fmt: skip
    assert [(line["real"], line["drawn"]) for line in found["words"]] == [(6, 4), *[(8, 3)] * 8]
    assert (found["features"], found["rounds"], found["round"]) == ("means", [], 2)
    assert unsealed((relic.folder / "quality.json").read_text()) == found
    everyone = np.unique(np.concatenate(relic.plan.partition.train))
    pictures = painted(relic.loop.server["word"]).expand(4, -1, -1, -1)
    assert found["words"][0] == {"word": "global", **Judge(relic, Means(), chosen(everyone, 6))(pictures)}
    own = Judge(relic, Means(), relic.plan.partition.train[1])(pictures[:3])
    assert found["words"][5] == {"word": "global", "client": 1, **own}


def test_a_word_right_after_its_own_training(
    relic: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Tensor] = {}

    def noted(run: FinishedRun, words: dict[str, Tensor], sampler: Sampler) -> dict[str, Tensor]:
        drawn.update(words)
        return draw_all(run, words, sampler)

    monkeypatch.setattr(quality, "find_features", lambda *_: Means())
    monkeypatch.setattr(quality, "draw_all", noted)
    before = relic.own(1)[1]
    measure(relic, DrawRequest(Sampler(count=2), clients=2, own=2))
    for client, own, up, _ in train_again(relic.loop, [0, 1], keep=True):
        assert drawn[f"sent {client}"].equal(up["word"])
        personal = relic.loop.store.get(client)
        params = relic.loop.method.trained(relic.task, own, personal, up)
        assert drawn[f"trained {client}"].equal(spoken(relic, params, Sampler().prompt))
        assert not drawn[f"trained {client}"].equal(drawn[f"client {client}"])
    relic.loop.store.discard()
    assert all(relic.own(1)[1][name].equal(value) for name, value in before.items())
    plain = open_run(inverted("fedti", tmp_path))
    found = measure(plain, DrawRequest(Sampler(count=2), clients=1, own=2))
    assert [line["word"] for line in found["words"]] == ["global", "global", "sent", "client"]


def test_few_images_in_one_place_are_compared_with_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "find_features", lambda *_: Means())
    central = open_run(inverted("ti-central", tmp_path, "clients=1"))  # one client, one of the three colours
    own = central.plan.partition.train[0]
    assert len(own) == 8
    assert real_images(central, "own").tolist() == own.tolist()
    assert real_images(central, "all").tolist() == list(range(24)), "the 12 test images are not among them"
    pictures = painted(central.loop.server["word"]).expand(4, -1, -1, -1)
    found = measure(central, DrawRequest(Sampler(count=4), clients=0))
    assert found["against"] == "all"
    assert found["words"] == [{"word": "global", **Judge(central, Means(), np.arange(24))(pictures)}]
    found = measure(central, DrawRequest(Sampler(count=4), clients=0, every=1, against="own"))
    assert found["against"] == "own"
    assert found["words"] == [{"word": "global own", **Judge(central, Means(), own)(pictures)}]
    assert [line["real"] for line in found["rounds"]] == [8, 8, 8]


def test_all_and_own_images_by_hand(relic: FinishedRun) -> None:
    # a picture with channel means 0; the images' means are those of their colours, up to noise
    grey = torch.zeros(1, 3, 8, 8)
    means = relic.plan.dataset.images[:24].mean((1, 2)) / 127.5 - 1
    for real in (np.arange(24), relic.plan.partition.train[1]):
        some = means[real]
        expected = np.square(some.mean(0)).sum() + some.var(0, ddof=1).sum()  # one picture has no covariance
        assert Judge(relic, Means(), real)(grey)["fid"] == pytest.approx(expected, rel=1e-4)


def test_a_curve_ends_where_the_run_did(relic: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "find_features", lambda *_: Means())
    kept = (relic.folder / "rounds.jsonl").read_bytes()
    judge = Judge(relic, Means(), chosen(real_images(relic, "all"), 50))
    found = measure(relic, DrawRequest(Sampler(count=2), clients=0, every=1))
    assert [line["round"] for line in found["rounds"]] == [0, 1, 2]
    first, last, end = found["rounds"][0], found["rounds"][2], found["words"][0]
    start = relic.loop.method.init_server(relic.task, rng_for(relic.plan.recipe.seed, "server"))["word"]
    assert first == {"round": 0, **judge(painted(start).expand(2, -1, -1, -1))}
    assert {key: last[key] for key in ("fid", "kid", "image")} == {key: end[key] for key in ("fid", "kid", "image")}
    assert len({line["fid"] for line in found["rounds"]}) == 3
    assert (relic.folder / "rounds.jsonl").read_bytes() == kept


def test_without_a_server_there_are_clients_words(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "find_features", lambda *_: Means())
    found = measure(open_run(folders["ti-local"]), DrawRequest(Sampler(count=2), clients=1, every=1))
    assert [(line["word"], line["client"]) for line in found["words"]] == [("client", 0), ("trained", 0)]
    assert found["rounds"] == []


def test_the_error_of_kid_leaves_out_one_at_a_time() -> None:
    draw = torch.Generator().manual_seed(0)
    one, two = torch.randn(5, 3, generator=draw), 1 + torch.randn(4, 3, generator=draw)
    real = [kid(torch.cat([one[:i], one[i + 1 :]]), two) for i in range(5)]
    drawn = [kid(one, torch.cat([two[:i], two[i + 1 :]])) for i in range(4)]
    squares = [(len(x) - 1) ** 2 / len(x) * np.var(x, ddof=1) for x in (np.array(real, float), np.array(drawn, float))]
    assert kid_error(one, two) == pytest.approx(sum(squares) ** 0.5)
    assert kid_error(one[:2], two) is None


def test_the_error_of_kid_is_that_of_other_samples() -> None:
    draw = torch.Generator().manual_seed(1)
    found = [torch.randn(2, 40, 8, generator=draw) + torch.tensor([0.0, 0.5])[:, None, None] for _ in range(200)]
    spread = np.std([kid(one, two) or 0.0 for one, two in found])
    guessed = np.mean([kid_error(one, two) or 0.0 for one, two in found])
    assert guessed == pytest.approx(spread, rel=0.2)


def test_the_table_says_what_is_too_small() -> None:
    line = {"word": "sent", "client": 3, "fid": 1.5, "kid": None, "image": 0.25, "text": None, "real": 1, "drawn": 8}
    shown = words([{"method": "relic", "words": [line | {"caution": caution(1, 8, 64)}]}])
    assert [cell.text for cell in shown.rows[0][:-1]] == ["relic", "sent", "3", "1.50", "–", "0.250", "–", "1 / 8"]
    assert "1 image has no spread" in shown.to_markdown()
    assert shown.to_csv().splitlines()[0] == "method,word,client,fid,kid,kid_error,image,text,real,drawn,note"


def test_the_command(folders: dict[str, Path]) -> None:
    done = promptfed("quality", *folders.values(), "--count", 2, "--own", 2, "--clients", 1, "--format", "markdown")
    assert (done.code, done.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in done.out.splitlines() if "| " in line][1:]
    assert rows == [
        ["relic", "global", "–"],
        ["relic", "global", "0"],
        ["relic", "sent", "0"],
        ["relic", "client", "0"],
        ["relic", "trained", "0"],
        ["ti-local", "client", "0"],
        ["ti-local", "trained", "0"],
    ]
    done = promptfed("quality", folders["relic"], "--count", 2, "--clients", 0, "--against", "own", "--format", "csv")
    assert (done.code, done.out.splitlines()[1].split(",")[1]) == (0, "global own")
    assert promptfed("quality", folders["relic"], "--against", "mine").code == 2


def test_a_run_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match="learns no word"):
        measure(open_run(classified("fedavg", tmp_path)), DrawRequest(Sampler()))
