"""A word's encodings by template: whose they are, how they are laid out, and what alignment does to them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from markupsafe import escape
from torch import Tensor

from promptfed.analysis.figures import draw, encodings
from promptfed.analysis.figures.encodings import encoded, pool_of
from promptfed.analysis.quality import uploads
from promptfed.core import statistics, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.prompts.templates import OBJECT
from promptfed.runs import finished
from promptfed.runs.finished import FinishedRun, open_run
from support.drawn import about, files
from support.inverted_runs import inverted, painting, trained
from support.tiny_diffusion import saved


@pytest.fixture(autouse=True, scope="module")
def with_a_painter() -> Iterator[None]:
    with painting():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("runs")
    return {name: inverted(name, parent) for name in ("fedti", "relic", "ti-local")}


def fitted(run: FinishedRun, client: int) -> tuple[tree.Tree, tree.Tree]:
    """Return what one client would send after one more training, and what it would keep."""
    down, personal = run.own(client)
    data = run.loop.shards.data([client], run.loop.settings.total, stacked=False)
    return run.loop.method.fit(run.task, down, personal, data)


def painted_states(words: Tensor) -> Tensor:
    """Return what the painter makes of words [C, T, 12]: a tenth of the template's number is added."""
    return words + torch.tensor([0.0, 0.1])[None, :, None]


# -- which encodings --------------------------------------------------------------------------------------------------


def test_a_shared_word_is_each_clients_as_it_trained_it(folders: dict[str, Path]) -> None:
    run = open_run(folders["fedti"])
    words = uploads(run, [0, 2])["word"]  # [2, 1, 12]
    assert not words[0].equal(words[1])
    torch.testing.assert_close(encoded(run, [0, 2]), painted_states(words.expand(-1, 2, -1)))


def test_a_word_of_ones_own_is_kept_after_training(folders: dict[str, Path]) -> None:
    run = open_run(folders["ti-local"])
    words = torch.stack([fitted(run, client)[1]["word"] for client in (1, 2)])
    torch.testing.assert_close(encoded(run, [1, 2]), painted_states(words.expand(-1, 2, -1)))


def test_branches_are_those_after_training(folders: dict[str, Path]) -> None:
    run = open_run(folders["relic"])
    up, kept = fitted(run, 1)

    def branch(name: str, x: Tensor) -> Tensor:
        inner = (x @ kept[f"{name}1.weight"].mT + kept[f"{name}1.bias"]).relu()
        return inner @ kept[f"{name}2.weight"].mT + kept[f"{name}2.bias"]

    # the painter's context of template j is j, twelve times; the shift sees the mean of the client's images
    scale = branch("scale", torch.tensor([[0.0], [1.0]]).expand(-1, 12))
    words = branch("shift", kept["visual"]) + up["word"] * (1 + scale)
    torch.testing.assert_close(encoded(run, [1]), painted_states(words[None]))
    assert not run.own(1)[1]["shift2.weight"].equal(kept["shift2.weight"])


@pytest.mark.parametrize("name", ["fedti", "relic", "ti-local"])
def test_looking_changes_nothing(folders: dict[str, Path], name: str) -> None:
    run = open_run(folders[name])
    before, kept = files(folders[name]), [run.own(client) for client in range(3)]
    first = encoded(run, [0, 1, 2])
    assert first.equal(encoded(run, [0, 1, 2]))
    assert first[1:2].equal(encoded(run, [1])), "a client's are its own, whoever else is asked"
    for client, trees in enumerate(kept):
        for was, now in zip(trees, run.own(client), strict=True):
            assert was.keys() == now.keys()
            assert all(now[key].equal(value) for key, value in was.items())
    assert files(folders[name]) == before


def test_clients_in_a_stack_have_the_same(folders: dict[str, Path], tmp_path: Path) -> None:
    stacked = open_run(inverted("relic", tmp_path, "fleet.name=stacked", "fleet.width=2"))
    alone = encoded(open_run(folders["relic"]), [0, 1, 2])
    torch.testing.assert_close(encoded(stacked, [0, 1, 2]), alone, rtol=1e-4, atol=1e-4)


def test_the_pool_is_the_methods(folders: dict[str, Path]) -> None:
    assert pool_of(open_run(folders["relic"])) == OBJECT[:2]


# -- the figure -------------------------------------------------------------------------------------------------------


def test_a_figure_of_one_run_is_part_of_its_report(folders: dict[str, Path]) -> None:
    pytest.importorskip("sklearn")
    folder = folders["relic"]
    before = files(folder)
    path = draw("encodings", [folder])
    assert path == folder / "figures" / "encodings.png"
    told = about(path)
    found = told["numbers"]["runs"]["relic"]
    assert (found["clients"], found["templates"], found["map"]) == ([0, 1, 2], list(OBJECT[:2]), "t-SNE")
    assert np.array(found["points"]).shape == (3, 2, 2)
    assert np.array(found["centroids"]).shape == (2, 2)
    vectors = encoded(open_run(folder), [0, 1, 2]).double().numpy()
    score = statistics.silhouette(vectors.reshape(6, 12), np.array([0, 1] * 3))
    assert score is not None
    assert found["silhouette"] == pytest.approx(score, abs=1e-6)
    assert told["title"] == f"Encodings by template, silhouette {score:.2f}"
    assert "on the encodings themselves, not on the plane: relic" in told["caption"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert escape(told["title"]) in page
    assert files(folder) == before


def test_the_score_and_the_crosses_by_hand(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    # two clients, two templates: along a line at 0 and 1, and at 10 and 11
    given = torch.tensor([[[0.0], [10]], [[1], [11]]])
    monkeypatch.setattr(encodings, "encoded", lambda run, clients: given)
    found = about(draw("encodings", [folders["fedti"]], tmp_path / "a.png", [0, 1]))["numbers"]["runs"]["fedti"]
    assert found["silhouette"] == round((2 - 1 / 10.5 - 1 / 9.5) / 2, 6) == 0.899749
    # one dimension has no t-SNE; around the mean 5.5 the farthest is 5.5 away, the means of templates 5
    assert (found["map"], found["explained"]) == ("principal components", [1, 0])
    ends = np.array(found["points"])
    assert (ends[..., 1] == 0).all()
    assert np.abs(ends[..., 0]).tolist() == [[1, round(4.5 / 5.5, 4)], [round(4.5 / 5.5, 4), 1]]
    assert np.abs(np.array(found["centroids"])).tolist() == [[round(5 / 5.5, 4), 0]] * 2
    assert (np.sign(ends[:, 0, 0]) == np.sign(found["centroids"][0][0])).all(), "a cross lies among its own"


def test_runs_are_compared_side_by_side(folders: dict[str, Path]) -> None:
    path = draw("encodings", [folders["fedti"], folders["relic"]])
    assert path == folders["fedti"].resolve().parent / "encodings.png"
    told = about(path)
    scores = {name: run["silhouette"] for name, run in told["numbers"]["runs"].items()}
    assert list(scores) == ["fedti", "relic"]
    each = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
    assert told["title"] == f"Encodings by template, silhouette {each}"


def test_one_client_has_no_silhouette(folders: dict[str, Path], tmp_path: Path) -> None:
    told = about(draw("encodings", [folders["fedti"]], tmp_path / "a.png", [2]))
    assert told["numbers"]["runs"]["fedti"]["silhouette"] is None
    assert told["title"] == "Encodings by template, silhouette –"


def test_alignment_tightens_the_clusters(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    # the more prototypes count, the less clients of three colours differ within a template
    runs = [inverted("fedproto", tmp_path / str(align), f"method.align={align}") for align in (0, 0.7, 10)]
    found = about(draw("encodings", runs, tmp_path / "a.png"))["numbers"]["runs"]
    none, some, much = (run["silhouette"] for run in found.values())
    assert none < some < much


def test_a_diffusion_models_text_tower(tmp_path: Path) -> None:
    small = ("clients=2", "rounds=1", "evaluate.after=false", "method.repeats=1", "method.batch=8", "method.lr=0.1")
    weights = f"backbone.weights={saved(tmp_path / 'tiny')}"
    folder = trained("relic", tmp_path, *small, "method.first=3", weights, backbone="diffusion")
    run = open_run(folder)
    method, model = finished.inverted(run)
    found = encoded(run, [0, 1])
    assert found.shape == (2, 3, 16)
    up, kept = fitted(run, 1)
    last = torch.tensor([2])
    states, _ = model.encode(OBJECT[:3], last, method.spoken(run.task, up | kept, last))
    # "a cropped photo of the {}": the word stands behind the start and five other words
    torch.testing.assert_close(found[1, 2], states[0, 6])
    told = about(draw("encodings", [folder]))
    assert told["numbers"]["runs"]["relic"]["templates"] == list(OBJECT[:3])


def test_runs_that_cannot_be_compared(folders: dict[str, Path], tmp_path: Path) -> None:
    other = inverted("fedti", tmp_path, "method.templates=style")
    with pytest.raises(PromptFedError, match="do not have the same templates"):
        draw("encodings", [folders["relic"], other], tmp_path / "a.png")
    with pytest.raises(PromptFedError, match=r"There is no client 3 in .* it has clients 0 to 2\."):
        draw("encodings", [folders["relic"]], tmp_path / "a.png", [3])
