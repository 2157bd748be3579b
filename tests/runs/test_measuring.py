"""Measures of whole runs: they agree with the accuracies, whoever computes them and however the run ended."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method, Task, classifies
from promptfed.core.protocols import Batch
from promptfed.core.tree import Tree
from promptfed.federation.loop import Loop
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.pfedpt import PFedPT
from promptfed.methods.relic import RELIC
from promptfed.methods.with_frame import WithFrame
from promptfed.results import read_run
from promptfed.results.folder import names
from promptfed.results.folder.predictions import read_predictions
from promptfed.results.metrics import METRICS, TITLES
from promptfed.results.report.measures import measure_names
from promptfed.results.report.tables import compare
from promptfed.runs import config, execution
from promptfed.runs.measuring import peak_memory
from promptfed.runs.recipe import EvaluateOptions
from promptfed.runs.runner import Result, run
from promptfed.sites import coordinator
from promptfed.sites.settings import Federation
from support.loops import TESTS, make
from support.reports import column
from support.tiny_runs import tiny, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images") / "tiny.npz", count=160)


Go = Callable[..., Result]


@pytest.fixture
def go(images: Path, tmp_path: Path) -> Go:
    def go(method: str, name: str, *more: str) -> Result:
        return run(method, out=tmp_path / name, overrides=tuple(tiny(images, *more)))

    return go


@dataclass(frozen=True)
class Doubtful(FedAvg):
    """FedAvg with a test of its own."""

    def evaluate(self, task: Task, params: Tree, batch: Batch) -> Tree:
        return {"correct": batch["mask"].sum(-1), "loss": batch["mask"].sum(-1), "count": batch["mask"].sum(-1)}


# -- the answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", ("evaluate.every=2",)),
        ("fedavg", ("method.tune_epochs=1",)),  # adapts
        ("pfedpt", ("method.prompt_epochs=1", "newcomers=1", "join_rounds=1")),
        ("fedavg", ("prompt.kind=patch", "evaluate.personal=false")),
    ],
)
def test_the_measures_are_of_the_models_of_the_headline(go: Go, method: str, more: tuple[str, ...]) -> None:
    done = go(method, "run", *more)
    accuracy, found = done.summary["accuracy"], done.summary["metrics"]
    assert found["accuracy"]["per_client"] == accuracy["per_client"]
    assert found["accuracy"]["mean"] == accuracy["mean"]
    assert found["accuracy"]["worst"] == accuracy["worst"]
    assert found["accuracy"]["pooled"] == pytest.approx(accuracy["weighted"])
    assert found["headline"] == "accuracy"


def test_the_answers_are_of_the_clients_own_test_images(go: Go) -> None:
    done = go("fedavg", "run")
    found = read_predictions(done.folder)
    assert found is not None
    partition = json.loads((done.folder / names.PARTITION).read_text())
    for client, held in enumerate(partition["clients"]):
        assert found.image[found.client == client].tolist() == held["test"]
    assert found.probabilities is not None
    assert found.probabilities.sum(1) == pytest.approx(np.ones(len(found)), abs=1e-5)
    assert (found.probabilities.argmax(1) == found.predicted).all()
    assert (found.probabilities.max(1) == found.confidence).all()
    assert (found.label == found.image % 4).all()  # as `write_images` numbers them


@pytest.mark.parametrize("method", [FedAvg(lr=0.05, epochs=1, batch=8), PFedPT(lr=0.05, epochs=1, prompt_epochs=1)])
def test_a_stack_answers_like_one_by_one(method: Method, tmp_path: Path) -> None:
    """Of five unequal clients the third has no test images, and the second has more than a batch."""
    heard = []
    for fleet, width in (("one-by-one", 0), ("stacked", 2), ("stacked", 0)):
        loop = make(method, tmp_path / f"{fleet}{width}", fleet, width=width)
        loop.run(lambda: None, lambda line: None)
        found = loop.predictions()
        assert found is not None
        heard.append(found)
    assert np.bincount(heard[0].client, minlength=5).tolist() == list(TESTS)
    for other in heard[1:]:
        for name in ("client", "image", "label", "predicted"):
            assert (getattr(other, name) == getattr(heard[0], name)).all()
        assert other.probabilities == pytest.approx(heard[0].probabilities, abs=1e-5)


def test_too_many_probabilities_are_left_out(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptfed.results.folder.predictions.MOST_NUMBERS", 100)
    done = go("fedavg", "run")
    found = read_predictions(done.folder)
    assert found is not None
    assert found.probabilities is None
    assert done.summary["metrics"]["auroc"]["pooled"] is None
    assert done.summary["metrics"]["accuracy"]["mean"] == done.summary["accuracy"]["mean"]


def test_who_classifies() -> None:
    assert classifies(FedAvg())
    assert classifies(WithFrame(FedAvg()))
    assert not classifies(RELIC())
    assert not classifies(WithFrame(RELIC()))
    assert not classifies(Doubtful())


def test_a_test_of_ones_own_counts_and_has_no_measures(tmp_path: Path) -> None:
    loop = make(Doubtful(lr=0.05, epochs=1), tmp_path / "run")
    loop.run(lambda: None, lambda line: None)
    assert loop.record.rounds[-1]["received"]["worst"] == 1.0
    assert loop.predictions() is None


def test_a_frame_around_a_test_of_ones_own_keeps_its_counts(tmp_path: Path) -> None:
    loop = make(WithFrame(Doubtful(lr=0.05, epochs=1), epochs=1), tmp_path / "run")
    loop.run(lambda: None, lambda line: None)
    assert loop.record.rounds[-1]["received"]["worst"] == 1.0
    assert loop.predictions() is None


# -- stopping and resuming ------------------------------------------------------------------------------------------


class PowerCutError(Exception):
    """The power cut."""


@pytest.mark.parametrize("more", [(), ("method.tune_epochs=1",)])
def test_stopped_before_the_summary_gives_the_same_bytes(
    go: Go, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = go("fedavg", "straight", *more)

    def cut(loop: Loop, recipe: config.Recipe) -> dict[str, object]:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(execution, "measured", cut)
        with pytest.raises(PowerCutError):
            go("fedavg", "stopped", *more)
    assert not (tmp_path / "stopped" / names.PREDICTIONS).exists()
    again = run("fedavg", resume=tmp_path / "stopped", overrides=tuple(tiny(_npz(straight), *more)))
    assert again.summary["metrics"] == straight.summary["metrics"]
    first, second = ((one.folder / names.PREDICTIONS).read_bytes() for one in (straight, again))
    assert first == second


def _npz(done: Result) -> Path:
    return Path(str(config.load_one(str(done.folder / names.RECIPE)).data["name"]).removeprefix("npz:"))


def test_more_rounds_measure_again(go: Go, images: Path) -> None:
    done = go("fedavg", "run")
    before = (done.folder / names.PREDICTIONS).read_bytes()
    longer = run("fedavg", resume=done.folder, overrides=tuple(tiny(images, "rounds=5")))
    assert longer.summary["metrics"]["accuracy"]["mean"] == longer.summary["accuracy"]["mean"]
    assert (done.folder / names.PREDICTIONS).read_bytes() != before


def test_nothing_is_tested_twice(go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    real = Loop._evaluate

    def counted(loop: Loop, server: Tree, t: int, *, adapt: bool) -> Tree:
        times.append(t)
        return real(loop, server, t, adapt=adapt)

    monkeypatch.setattr(Loop, "_evaluate", counted)
    go("fedavg", "run")
    assert times == [0, 1, 2]


# -- the headline ---------------------------------------------------------------------------------------------------


def test_the_options_are_the_measures() -> None:
    hints = EvaluateOptions.__annotations__["metric"].__args__
    assert hints == METRICS == tuple(TITLES)


def test_the_default_leaves_the_fingerprint_alone() -> None:
    plain = config.load_one("fedavg")
    assert plain.hash == config.load_one("fedavg", ["evaluate.metric=accuracy"]).hash
    assert plain.hash != config.load_one("fedavg", ["evaluate.metric=auroc"]).hash


def test_a_wrong_metric_names_the_nearest() -> None:
    with pytest.raises(PromptFedError, match=r'evaluate\.metric "balanced-accuracy"; did you mean "balanced_accuracy"'):
        config.load_one("fedavg", ["evaluate.metric=balanced-accuracy"])


def test_a_method_without_classes_has_no_other_headline() -> None:
    assert config.load_one("relic").evaluate["metric"] == "accuracy"
    with pytest.raises(PromptFedError, match=r"evaluate\.metric=auroc needs a classifier, which relic is not"):
        config.load_one("relic", ["evaluate.metric=auroc"])


def test_over_sites_there_is_only_accuracy(tmp_path: Path) -> None:
    recipe = config.load_one("fedavg", ["clients=3", "evaluate.metric=ece"])
    with pytest.raises(PromptFedError, match=r"evaluate\.metric=ece .* never leaves a site; use accuracy"):
        coordinator.create(tmp_path / "run", recipe, Federation(("a", "b", "c")))
    assert not (tmp_path / "run").exists()


def test_the_headline_comes_first_in_the_table(go: Go) -> None:
    plain = read_run(go("fedavg", "plain").folder)
    asked = read_run(go("fedavg", "asked", "evaluate.metric=macro_f1", "seed=1").folder)
    assert asked.metrics is not None
    titles = [one.title for one in compare([asked]).columns]
    assert titles[:4] == ["method", "macro_f1", "worst_macro_f1", "mean"]
    value = asked.metrics.scores["macro_f1"].mean
    assert column(compare([asked]), "macro_f1") == [f"{100 * (value or 0):.2f}"]
    assert [one.title for one in compare([plain]).columns][:2] == ["method", "mean"]
    both = compare([plain, asked])  # they differ in seed and headline alone: one row, and accuracy comes first
    assert len(both.rows) == 1
    assert [one.title for one in both.columns][:2] == ["method", "mean"]


def test_an_older_run_has_no_measures(go: Go) -> None:
    done = go("fedavg", "run")
    path = done.folder / names.SUMMARY
    path.write_text(json.dumps({key: value for key, value in done.summary.items() if key != "metrics"}))
    old = read_run(done.folder)
    assert old.metrics is None
    assert [one.title for one in compare([old]).columns][:2] == ["method", "mean"]


def test_measures_by_name() -> None:
    assert list(measure_names())[:3] == ["balanced_accuracy", "worst_balanced_accuracy", "pooled_balanced_accuracy"]


def test_a_cpu_has_no_peak_memory() -> None:
    assert peak_memory(torch.device("cpu")) == {}
