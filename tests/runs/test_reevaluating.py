"""One training, read under several settings: the same numbers as training anew, and nothing else passes for it."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.papers import reproduce
from promptfed.papers.plan import TablePlan
from promptfed.papers.reproduce import find_table
from promptfed.runs import config, execution, resuming, runner
from promptfed.runs.config import Recipe
from promptfed.runs.execution import start
from promptfed.runs.reevaluating import reevaluate

SMALL = ["rounds=2", "data.limit=2", "device=cpu"]


def cell(name: str, *more: str) -> Recipe:
    (recipe,) = config.load(f"fedapt/shops-t4/{name}", [*SMALL, *more])
    return recipe


def test_reading_again_equals_training_again(tmp_path: Path) -> None:
    start(cell("eq5"), tmp_path / "eq5")
    trained = start(cell("e2"), tmp_path / "anew").summary
    read = reevaluate(tmp_path / "eq5", cell("e2"), tmp_path / "read").summary
    assert read["recipe_hash"] == trained["recipe_hash"]
    for key in ("per_client", "before", "after", "deployed"):
        assert read["accuracy"][key] == trained["accuracy"][key]
    assert read["traffic"] == trained["traffic"]
    assert read["accuracy"]["trained"] is None
    again = resuming.resume(tmp_path / "read", cell("e2"))
    assert again.summary == read


def test_rounds_are_taken_over_where_only_the_adaptation_differs(tmp_path: Path) -> None:
    few = ["rounds=3", "clients=4", "per_round=2", "data.limit=3", "device=cpu", "method.epochs=1"]
    plain, tuned = (config.load_one("fedavg", [*few, f"method.tune_epochs={epochs}"]) for epochs in (0, 2))
    first = start(plain, tmp_path / "plain")
    anew = start(tuned, tmp_path / "anew")
    read = reevaluate(tmp_path / "plain", tuned, tmp_path / "read")
    seconds = {"seconds": 0}
    assert [line | seconds for line in read.rounds] == [line | seconds for line in anew.rounds]
    assert read.rounds == first.rounds
    assert read.summary["accuracy"] == anew.summary["accuracy"]
    assert read.summary["accuracy"]["best_local"] == first.summary["accuracy"]["best_local"] is not None
    assert read.summary["accuracy"]["mean"] != first.summary["accuracy"]["mean"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [("method.lr=0.5", "method.lr=0.1, not 0.5"), ("rounds=3", "rounds=2, not 3"), ("seed=1", "seed=0, not 1")],
)
def test_another_training_is_refused(more: str, sentence: str, tmp_path: Path) -> None:
    start(cell("eq5"), tmp_path / "eq5")
    with pytest.raises(PromptFedError, match=f"was trained with {sentence}; it cannot be evaluated as that"):
        reevaluate(tmp_path / "eq5", cell("e2", more), tmp_path / "read")
    assert not (tmp_path / "read").exists()


def test_options_of_testing_leave_the_training_as_it_is() -> None:
    one, other = cell("eq5"), cell("e1")
    assert one.hash != other.hash
    assert config.training(one).hash == config.training(other).hash
    assert config.training(one).hash != config.training(cell("eq5", "method.lr=0.5")).hash


def test_a_table_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def counting(recipe: Recipe, folder: Path) -> runner.Result:
        made.append(folder)
        return start(recipe, folder)

    monkeypatch.setattr(execution, "start", counting)
    plan = TablePlan(tmp_path, tuple(SMALL), rows=("none", "e0", "eq5"))
    outcome = reproduce.reproduce(find_table("fedapt/shops-t4"), plan)
    assert made == [tmp_path / "none" / "seed0"]
    assert [len(entry["ours"]["per_client"]) for entry in outcome["rows"]] == [4, 4, 4]
