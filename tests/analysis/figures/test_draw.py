"""Figures as commands on run folders: what each draws, what it writes, and what it refuses."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

from promptfed.analysis.figures import FIGURES, draw, plotting, priors
from promptfed.analysis.figures.inspection import class_attention, grad_cam
from promptfed.analysis.figures.opened import inspect, reopen
from promptfed.analysis.figures.saliency import scaled, spaced
from promptfed.core.errors import PromptFedError
from promptfed.results.report import write_report
from promptfed.runs import runner
from support.command import promptfed
from support.drawn import about, files
from support.tiny_runs import tiny, write_images

CNN = ["backbone.name=cnn", "backbone.channels=[4]", "backbone.kernel=3", "backbone.hidden=[8]"]
CNN += ["backbone.pool_after=[1]"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "pt": ("pfedpt", ["method.prompt_epochs=1", "method.size=1", *CNN]),
    "pt-vit": ("pfedpt", ["method.prompt_epochs=1", "method.size=1"]),
    "tokens": ("pfedpt", ["method.prompt=tokens", "method.prompt_epochs=1", "method.size=2"]),
    "fedavg": ("fedavg", CNN),
    "fedper": ("fedper", CNN),
    "local": ("local", CNN),
    "two": ("fedavg", [*CNN, "clients=2", "partition.name=pathological", "partition.classes_per_client=1"]),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return finished runs by name, of four clients with 8×8 images of four classes."""
    images = write_images(tmp_path_factory.mktemp("images") / "tiny.npz")
    parent = tmp_path_factory.mktemp("runs")
    for name, (method, words) in RUNS.items():
        # the later word holds: CNN's keys take the place of the transformer's
        given = [word for word in tiny(images) if not (word.startswith("backbone.") and CNN[0] in words)]
        found = runner.run(method, out=parent / name, overrides=(*given, "rounds=2", *words), device="cpu")
        assert found.folder == parent / name
    return {name: parent / name for name in RUNS}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images of one colour, laid out on their principal components: t-SNE has tests of its own."""
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    monkeypatch.setattr(priors, "COLOURS", 6)


@pytest.mark.parametrize("kind", FIGURES)
def test_every_kind_names_a_function_and_itself(kind: str) -> None:
    module, _, function = FIGURES[kind].maker.partition(":")
    assert callable(getattr(import_module(module), function))
    assert kind in promptfed("figure", "--help").out


def test_the_page_on_figures_lists_every_kind_and_which_ones_compare_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "figures.md").read_text(encoding="utf-8")
    table = page.partition("| kind | shows | needs |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert {name.strip("`"): "compares runs" in shows for name, shows, _ in rows} == {
        name: kind.several for name, kind in FIGURES.items()
    }
    (told,) = [line for line in page.splitlines() if line.startswith("- `--class NAME`")]
    assert [name for name, kind in FIGURES.items() if kind.by_class] == [
        name for name in FIGURES if f"`{name}`" in told
    ]


@pytest.mark.parametrize(
    ("kind", "run"),
    [(kind, "pt") for kind in FIGURES if kind not in ("attention", "encodings")]  # a word's have tests of their own
    + [
        ("attention", "pt-vit"),
        ("attention", "tokens"),
        ("grad-cam", "fedavg"),
        ("prior", "local"),
        ("tsne", "tokens"),
    ],
)
def test_a_figure_becomes_part_of_the_run_and_its_report(runs: dict[str, Path], kind: str, run: str) -> None:
    before = files(runs[run])
    path = draw(kind, [runs[run]])
    assert path == runs[run] / "figures" / f"{kind}.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    told = about(path)
    assert told["kind"] == kind
    page = (runs[run] / "report.html").read_text(encoding="utf-8")
    assert escape(told["title"]) in page
    assert files(runs[run]) == before, "nothing else in the folder changes"


def test_the_same_run_gives_the_same_figure(runs: dict[str, Path], tmp_path: Path) -> None:
    for form in ("svg", "pdf", "png"):
        one, other = (draw("labels", [runs["pt"]], tmp_path / f"{name}.{form}") for name in "ab")
        assert about(one) == about(other)
        assert one.read_bytes() == other.read_bytes()


def test_the_prior_is_a_distribution_beside_the_labels(runs: dict[str, Path], tmp_path: Path) -> None:
    found = about(draw("prior", [runs["pt"]], tmp_path / "a.png", [2, 0]))["numbers"]
    assert found["clients"] == [2, 0]
    assert np.array(found["expected"]).sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)
    counts = json.loads((runs["pt"] / "partition.json").read_text(encoding="utf-8"))["clients"]
    held = np.array([counts[client]["counts"] for client in (2, 0)], float)
    assert np.allclose(found["held"], held / held.sum(1, keepdims=True), atol=1e-6)


def test_drift_and_labels_are_the_records_own(runs: dict[str, Path], tmp_path: Path) -> None:
    rounds = [json.loads(line) for line in (runs["pt"] / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
    drift = about(draw("drift", [runs["pt"], runs["pt-vit"]], tmp_path / "a.png"))["numbers"]["runs"]
    assert list(drift) == [f"pfedpt [{runs['pt']}]", f"pfedpt [{runs['pt-vit']}]"]
    assert next(iter(drift.values())) == [[one["round"], one["measures"]["prompt_drift"]] for one in rounds]
    labels = about(draw("labels", [runs["pt"]], tmp_path / "b.png", [1]))["numbers"]
    clients = json.loads((runs["pt"] / "partition.json").read_text(encoding="utf-8"))["clients"]
    assert labels["counts"] == [clients[1]["counts"]]


def test_without_prompts_one_model_sees_one_thing(runs: dict[str, Path], tmp_path: Path) -> None:
    found = about(draw("tsne", [runs["fedavg"]], tmp_path / "a.png"))
    assert "by each client's model" in found["caption"]
    assert found["numbers"]["images"] == 6
    points = np.array(found["numbers"]["points"])
    assert points.shape == (24, 2)


def test_leakage_compares_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    found = about(draw("leakage", [runs["fedavg"], runs["pt"]], tmp_path / "a.png", [0, 3]))["numbers"]["runs"]
    assert list(found) == ["fedavg", "pfedpt"]
    for one in found.values():
        assert one["clients"] == [0, 3]
        assert np.array(one["inferred"]).sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)
        assert all(0 <= value <= 1 for value in one["similarity"])
        held, inferred = np.array(one["held"][0]), np.array(one["inferred"][0])
        cosine = held @ inferred / np.linalg.norm(held) / np.linalg.norm(inferred)
        assert one["similarity"][0] == pytest.approx(cosine, abs=1e-4)


def test_maps_with_and_without_the_prompt(runs: dict[str, Path], tmp_path: Path) -> None:
    shares = {
        name: about(draw(kind, [runs[name]], tmp_path / "a.png", [1]))["numbers"]["share_on_prompt"]
        for name, kind in {"pt": "grad-cam", "pt-vit": "attention", "tokens": "attention", "fedavg": "grad-cam"}.items()
    }
    assert list(shares["pt"]) == list(shares["pt-vit"]) == ["of the map without", "of the map with"]
    assert list(shares["tokens"]) == ["of the attention with"]
    # four patches and two tokens: the untrained attention is near even
    assert 0 < shares["tokens"]["of the attention with"] < 1
    assert shares["fedavg"] == {}


def test_beside_the_prompts_share_stands_a_blind_one(runs: dict[str, Path], tmp_path: Path) -> None:
    found = {
        name: about(draw(kind, [runs[name]], tmp_path / "a.png", [1]))
        for name, kind in {"pt": "saliency", "tokens": "attention", "fedavg": "saliency"}.items()
    }
    # a frame of one pixel covers 28 of 64; of four patches, two prompt tokens and the class token two are the prompt's
    assert found["pt"]["numbers"]["blind"] == 28 / 64
    assert found["tokens"]["numbers"]["blind"] == pytest.approx(2 / 7, abs=1e-6)
    assert found["fedavg"]["numbers"]["blind"] is None
    assert "if every place got the same it would get 43.8 %." in found["pt"]["caption"]
    assert "The method adds no prompt to its images." in found["fedavg"]["caption"]
    first = found["pt"]["numbers"]["images"][0]["maps"]["with"]
    assert np.array(first).shape == (8, 8)


@pytest.mark.parametrize(("kind", "run"), [("grad-cam", "pt"), ("attention", "tokens"), ("grad-cam", "fedavg")])
def test_the_numbers_of_maps_say_all_that_is_drawn(runs: dict[str, Path], tmp_path: Path, kind: str, run: str) -> None:
    found = about(draw(kind, [runs[run]], tmp_path / "a.png", [3, 1]))["numbers"]
    assert (found["clients"], found["class"]) == ([3, 1], None)
    clients = json.loads((runs[run] / "partition.json").read_text(encoding="utf-8"))["clients"]
    assert [(one["client"], one["image"]) for one in found["images"]] == [
        (client, int(number)) for client in (3, 1) for number in spaced(np.array(clients[client]["test"]), 4)
    ]
    model, prompted = reopen(runs[run], "cpu"), run != "fedavg"
    for one in found["images"]:
        assert one["class"] == str(one["image"] % 4), "write_images gives the classes in turn"
        params, batch = model.model(one["client"]), model.batch(one["client"], np.array([one["image"]]))
        seen = {"without": inspect(model, params, batch, bare=True)} | (
            {"with": inspect(model, params, batch)} if prompted else {}
        )
        assert one["decided"] == {name: str(int(each.logits.argmax())) for name, each in seen.items()}
        drawn = seen["with" if prompted else "without"].logits.argmax(-1)
        for name, each in seen.items():
            (values,) = class_attention(each)[0] if kind == "attention" else grad_cam(each, drawn)
            # two rows of patches; a kernel of 3 leaves 6 × 6 places, and pooling 3 × 3
            assert values.shape == ((2, 2) if kind == "attention" else (3, 3))
            assert np.array(one["maps"].pop(name)) == pytest.approx(np.array(scaled(values)), abs=0.0011)
        assert not one["maps"]


def test_maps_of_one_class(runs: dict[str, Path], tmp_path: Path) -> None:
    clients = json.loads((runs["pt"] / "partition.json").read_text(encoding="utf-8"))["clients"]
    having = [number for number, one in enumerate(clients) if any(image % 4 == 2 for image in one["test"])]
    told = about(draw("grad-cam", [runs["pt"]], tmp_path / "a.png", label="2"))
    assert told["numbers"]["clients"] == having[:2], "the first two that have any"
    assert told["numbers"]["class"] == "2"
    assert {one["class"] for one in told["numbers"]["images"]} == {"2"}
    assert "test images of class 2 of clients" in told["caption"]
    done = promptfed("figure", "grad-cam", runs["pt"], "--out", tmp_path / "b.png", "--class", 2)
    assert (done.code, about(tmp_path / "b.png")) == (0, told)


@pytest.mark.parametrize(
    ("kind", "run", "clients", "label", "sentence"),
    [
        # one class each: client 0 has class 3, client 1 class 0, and there are no others
        ("grad-cam", "two", [0], "0",
         'Client 0 has no test images of class "0"; name another with --client, such as 1'),
        ("grad-cam", "two", [], "2", 'No client in ".*" has test images of class "2"; name another class.'),
        ("grad-cam", "two", [], "4", "There is no class 4 in tiny; it has classes 0 to 3."),
        ("attention", "tokens", [], "x", 'Unknown class "x" in tiny; valid: 0, 1, 2, 3.'),
        ("prior", "pt", [], "2",
         "Figure prior shows no images of a class, only attention, grad-cam and saliency do; leave out --class."),
        ("sizes", "pt", [], "2", "Figure sizes shows no images of a class"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_shown(
    runs: dict[str, Path], tmp_path: Path, kind: str, run: str, clients: list[int], label: str, sentence: str
) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        draw(kind, [runs[run]], tmp_path / "a.png", clients, label)
    assert not list(tmp_path.iterdir())


def test_unnamed_clients_are_those_that_have_the_class(runs: dict[str, Path], tmp_path: Path) -> None:
    assert about(draw("grad-cam", [runs["two"]], tmp_path / "a.png", label="0"))["numbers"]["clients"] == [1]


@pytest.mark.parametrize(
    ("kind", "run", "clients", "sentence"),
    [
        ("attention", "pt", [], "Attention needs a vision transformer, such as vit-tiny or vit; draw grad-cam"),
        ("grad-cam", "tokens", [], "Grad-CAM needs a convolutional network, such as cnn; draw attention instead."),
        ("drift", "fedavg", [], "records no prompt drift; fedavg has no such prompt."),
        ("drift", "pt", [1], "leave out --client"),
        ("leakage", "local", [], "Method local uploads nothing"),
        ("leakage", "fedper", [], "What a client of fedper uploads is not a model by itself"),
        ("encodings", "fedavg", [], "is a run of fedavg, which learns no word; relic, fedti and similar methods do."),
        ("prior", "pt", [4], "There is no client 4 in .* it has clients 0 to 3."),
        ("labels", "pt", [-1], "There is no client -1"),
        ("sizes", "fedavg", [], "has no prompt with a size; pfedpt has method.size, and other methods prompt.size."),
        ("sizes", "pt", [1], "leave out --client"),
        ("tsn", "pt", [], 'Unknown figure "tsn"; did you mean "tsne"?'),
    ],
)  # fmt: skip
def test_refusals_are_sentences(
    runs: dict[str, Path], tmp_path: Path, kind: str, run: str, clients: list[int], sentence: str
) -> None:
    with pytest.raises(PromptFedError, match=sentence.replace("?", r"\?")):
        draw(kind, [runs[run]], tmp_path / "a.png", clients)
    assert not list(tmp_path.iterdir())


def test_folders_and_files_that_cannot_be(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"Figure prior is of one run; give one run folder, not 2\."):
        draw("prior", [runs["pt"], runs["fedavg"]])
    with pytest.raises(PromptFedError, match='Unknown picture format "jpg" in'):
        draw("labels", [runs["pt"]], tmp_path / "a.jpg")
    with pytest.raises(PromptFedError, match="does not exist; give the folder of a run"):
        draw("prior", [tmp_path / "none"])
    with pytest.raises(PromptFedError, match="at least one run folder"):
        draw("prior", [])


def test_a_run_whose_models_are_gone(runs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("recipe.toml", "rounds.jsonl", "summary.json", "partition.json"):
        (tmp_path / name).write_bytes((runs["pt"] / name).read_bytes())
    with pytest.raises(PromptFedError, match="has no checkpoint"):
        draw("prior", [tmp_path])
    assert "promptfed figure prior" not in write_report([tmp_path]).read_text(encoding="utf-8")
    assert draw("labels", [tmp_path]).is_file(), "the records are enough for this one"


def test_several_runs_are_drawn_beside_them(runs: dict[str, Path]) -> None:
    path = draw("drift", [runs["pt"], runs["pt-vit"]])
    assert path == runs["pt"].resolve().parent / "drift.png"
    assert path.is_file()


def test_the_command_line(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.svg"
    done = promptfed("figure", "labels", runs["pt"], "--out", out, "--client", 0, "--client", 2)
    assert (done.code, done.out.strip(), done.err) == (0, str(out), "")
    assert about(out)["numbers"]["clients"] == [0, 2]
    failed = promptfed("figure", "prior", runs["pt"], "--client", 9)
    assert failed.code == 2
    assert failed.err.startswith("promptfed: There is no client 9")


def test_without_matplotlib_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PromptFedError, match=r"Figures need matplotlib: pip install"):
        plotting.blank(1, 1)
