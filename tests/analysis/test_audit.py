"""What a curious server learns: scores by hand, words and models attacked, and runs that show nothing."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from promptfed.analysis import audit as attacks
from promptfed.analysis.audit import Attack, audit, balanced, matched, nearest
from promptfed.analysis.generate import Sampler
from promptfed.core.errors import PromptFedError
from promptfed.core.files import unsealed
from promptfed.results.report.measured import sentences
from promptfed.runs.finished import open_run
from support.command import promptfed
from support.inverted_runs import classified, inverted, painting
from support.stopped_runs import content

ATTACK = Attack(Sampler(count=2))


class Means:
    """Features that are the means of the three channels."""

    name = "means"

    def __call__(self, pictures: Tensor) -> Tensor:
        return pictures.mean((-2, -1))

    def texts(self) -> Tensor | None:
        return None


@pytest.fixture(autouse=True, scope="module")
def with_a_painter() -> Iterator[None]:
    with painting():
        yield


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "find_features", lambda *_: Means())


# -- scores -----------------------------------------------------------------------------------------------------------


def test_matching_by_hand() -> None:
    assert matched(torch.eye(4)) == 1
    assert matched(torch.eye(4).flip(0)) == 0
    assert matched(torch.zeros(4, 4)) == 0.25  # a guess
    # client 0 is near to everything; less that, the second and the third are told apart, but not the first
    assert matched(torch.tensor([[0.9, 0.1, 0.4], [0.9, 0.7, 0.1], [0.9, 0.1, 0.6]])) == pytest.approx(2 / 3)


def test_nearest_by_hand() -> None:
    made, held = torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([[3.0, 0], [1, 1]])
    assert float(nearest(made, held)) == pytest.approx((1 + 0.5**0.5) / 2)


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("means")
def test_an_uploaded_word_shows_whose_it_is(tmp_path: Path) -> None:
    folder = inverted("fedti", tmp_path)
    before = content(folder)
    found = audit(open_run(folder), ATTACK)
    assert found["kind"] == "pictures"
    assert found["sent"] == {"word": [1, 12]}
    assert (found["reidentified"], found["chance"]) == (1, pytest.approx(1 / 3))  # each drifts to its own colour
    assert all(line["nearest"] > line["nearest_others"] for line in found["per_client"])
    assert found["mean"]["fid"] == pytest.approx(np.mean([line["fid"] for line in found["per_client"]]))
    after = content(folder)
    assert unsealed(after.pop("audit.json").decode()) == found
    assert after == before
    assert sentences(found)[1] == "100 % of uploads are matched to their client, against 33 % by chance."
    assert sentences(found)[2].startswith("Note: 2 images in 3 features")


@pytest.mark.usefixtures("means")
def test_prototypes_are_listed_among_what_is_sent(tmp_path: Path) -> None:
    found = audit(open_run(inverted("relic", tmp_path)), Attack(Sampler(count=2), clients=1))
    assert found["sent"] == {"word": [1, 12], "prototype": [2, 12]}
    assert found["clients"] == [0]
    assert found["per_client"][0]["nearest_others"] is None


def test_where_nothing_is_sent_there_is_nothing_to_attack(tmp_path: Path) -> None:
    found = audit(open_run(inverted("ti-local", tmp_path)), ATTACK)
    assert sentences(found) == ["Nothing to attack: clients of this method send nothing."]


def test_secure_aggregation_shows_the_mean_alone(tmp_path: Path) -> None:
    found = audit(open_run(inverted("fedti", tmp_path, "guards.secure=true")), ATTACK)
    assert found["why"] == "secure aggregation shows the server the mean alone"


@pytest.mark.usefixtures("means")
def test_noise_is_on_what_the_server_sees(tmp_path: Path) -> None:
    words = ("guards.clip=0.1", "guards.noise=1000", "guards.place=local")
    found = audit(open_run(inverted("fedti", tmp_path, *words)), ATTACK)
    assert found["mean"]["nearest"] < audit(open_run(inverted("fedti", tmp_path / "bare")), ATTACK)["mean"]["nearest"]


# -- models -----------------------------------------------------------------------------------------------------------


def test_an_uploaded_model_shows_its_classes(tmp_path: Path) -> None:
    run = open_run(classified("fedavg", tmp_path, "method.epochs=10", "method.lr=0.2"))
    found = audit(run, ATTACK)
    assert found["kind"] == "classes"
    assert found["public_images"] == 12
    # after training on one class alone a model answers nothing else
    assert [line["inferred"] for line in found["per_client"]] == np.eye(3).tolist()
    assert found["mean"] == {"cosine": pytest.approx(1), "blind": pytest.approx(3**-0.5)}
    assert found["reidentified"] == 1
    assert sentences(found)[0].endswith("cosine 1.000 with what they hold; a guess of equal classes has 0.577.")


def test_an_untrained_model_shows_nothing(tmp_path: Path) -> None:
    found = audit(open_run(classified("fedavg", tmp_path, "method.epochs=0")), ATTACK)
    assert found["reidentified"] == pytest.approx(found["chance"])


@pytest.mark.parametrize("method", ["pfedpt", "fedper"])
def test_what_stays_at_home_is_replaced(method: str, tmp_path: Path) -> None:
    run = open_run(classified(method, tmp_path, "method.epochs=1"))
    found = audit(run, ATTACK)
    assert not set(found["sent"]) & set(run.own(0)[1])
    assert all(sum(line["inferred"]) == pytest.approx(1) for line in found["per_client"])


def test_public_images_are_balanced(tmp_path: Path) -> None:
    run = open_run(classified("fedavg", tmp_path, "method.epochs=0"))
    public = balanced(run)
    assert run.plan.dataset.test[public].all()
    assert np.bincount(run.plan.dataset.labels[public]).tolist() == [4, 4, 4]
    run.plan.dataset.test[:] = False
    with pytest.raises(PromptFedError, match="has no test images"):
        balanced(run)


def test_the_command(tmp_path: Path) -> None:
    folder = classified("fedavg", tmp_path, "method.epochs=0")
    done = promptfed("audit", folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{folder}:\nClasses inferred from what 3 clients send: cosine ")
