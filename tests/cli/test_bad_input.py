"""Every mistake gets one sentence on standard error and exit code 2, and leaves nothing half-made behind."""

import errno
import gc
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from promptfed.core.method import Method, Task
from promptfed.core.protocols import Data
from promptfed.core.tree import Tree
from promptfed.federation import segments, store
from promptfed.federation.segments import Segment
from support.command import Done, environment, promptfed, sentence
from support.stopped_runs import bits, same
from support.tiny_runs import tiny, write_images


@dataclass(frozen=True)
class Demanding(Method):
    """A method with a hyper-parameter that has no default."""

    name: ClassVar[str] = "demanding"
    lr: float

    def fit(self, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        return {}, personal


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a small data set; the current folder is an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))
    return write_images(tmp_path / "tiny.npz")


def mistake(*words: object) -> str:
    """Return the sentence of a run that must not even begin."""
    found = sentence(promptfed("run", *words))
    assert list(Path.cwd().iterdir()) == []
    return found


SMALL_CNN = ["backbone.name=cnn", "backbone.channels=[2]", "backbone.kernel=3", "backbone.hidden=[4]"]
KEYS = {
    "unknown key": (["round=3"], 'Unknown key "round"', "did you mean"),
    "unknown key of the method": (["method.epoch=3"], '"method.epoch"', 'did you mean "method.epochs"?'),
    "unknown table": (["metod.lr=3"], 'Unknown key "metod"', 'did you mean "method"?'),
    "unknown method": (["method.name=fedavgg"], '"fedavgg"', 'did you mean "fedavg"?'),
    "unknown dotted method": (["method.name=no.such:Thing"], '"no.such:Thing"', "No module named"),
    "no method at a path": (["method.name=pathlib:Path"], '"pathlib:Path"', "is not a method"),
    "unknown data set": (["data.name=cifar11"], '"cifar11"', 'did you mean "cifar10"?'),
    "data set without its path": (["data.name=npz"], '"npz"', "needs a path"),
    "path for a data set without one": (["data.name=fashion-shops:there"], "fashion-shops", "path"),
    "unknown partition": (["partition.name=dirichlett"], '"dirichlett"', 'did you mean "dirichlet"?'),
    "path for a partition": (["partition.name=iid:there"], "iid", ""),
    "key for a saved partition": (["partition.name=file:x.json", "partition.alpha=1"], "alpha", ""),
    "no saved partition": (["partition.name=file:x.json"], "x.json", "no partition file"),
    "unknown backbone": (["backbone.name=cnnn"], '"cnnn"', 'did you mean "cnn"?'),
    "path for a backbone": (["backbone.name=cnn:there"], "cnn", ""),
    "key of another backbone": (["backbone.name=cnn", "backbone.width=3"], '"backbone.width"', ""),
    "unknown fleet": (["fleet.name=stackd"], '"stackd"', 'did you mean "stacked"?'),
    "unknown preset": (["method.preset=papr"], '"papr"', ""),
    "wrong type": (["rounds=many"], "rounds must be a whole number", "'many'"),
    "a fraction of a round": (["rounds=1.5"], "rounds must be a whole number", "1.5"),
    "wrong type in a table": (['method.lr="fast"'], "method.lr must be a number", "'fast'"),
    "a value for a table": (["method=fedavg"], "method", "must be a table"),
    "a table for a value": (["seed.x=1"], "seed", ""),
    "negative seed": (["seed=-1"], "seed must be at least 0", "-1"),
    "no rounds": (["rounds=0"], "rounds must be at least 1", "0"),
    "lr of zero": (["method.lr=0"], "method.lr must be above 0", "0"),
    "negative lr": (["method.lr=-0.1"], "method.lr must be above 0", "-0.1"),
    "lr not a number": (["method.lr=nan"], "method.lr must be above 0", "nan"),
    "negative alpha": (["partition.name=dirichlet", "partition.alpha=-1"], "partition.alpha", "-1"),
    "too many a round": (["per_round=5"], "per_round=5 is more than clients=4", ""),
    "too many clients": (["clients=1000"], "1000 clients", ""),
    "no key=value": (["rounds"], '"rounds" is not key=value', "rounds=20"),
    "empty sweep": (["seed=[]"], "seed", ""),
    "unknown device": (["device=gpu"], 'Unknown device "gpu"', "did you mean"),
    "no such processor": (["device=cpu:one"], "cpu:one", ""),
    "frame too large": (["method.size=5"], "A frame of 5 pixels per side does not fit 8×8 images", "1 to 4"),
    "patch too large": (["method.prompt=patch", "method.size=9"], "patch", "8×8"),
    "tokens with a CNN": (["method.prompt=tokens", *SMALL_CNN], "tokens need a transformer", "backbone.name=vit"),
    "images too small": (["backbone.name=cnn"], "8×8 pixels are too small", ""),
    "no convolutions": (["backbone.name=cnn", "backbone.channels=[]"], "backbone.channels", ""),
    "patch that does not divide": (["backbone.patch=3"], "backbone.patch=3 does not divide", "8×8 pixels"),
    "heads that do not divide": (["backbone.heads=3"], "backbone.heads=3 does not divide backbone.width=8", ""),
}


@pytest.mark.parametrize("what", KEYS)
def test_a_wrong_key_or_value(what: str, images: Path) -> None:
    words, first, second = KEYS[what]
    name = "fedavg" if what == "unknown method" else "pfedpt"
    named = any(word.startswith("backbone.name") for word in words)
    others = [word for word in tiny(images) if not (named and word.startswith("backbone"))]
    found = mistake(name, *others, *words)
    assert first in found
    assert second in found


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu(images: Path) -> None:
    assert "torch sees none here; use device=cpu." in mistake("local", *tiny(images), "--device", "cuda")


def test_nothing_to_run(images: Path) -> None:
    assert "name a recipe or a method" in mistake()


def test_a_name_between_colons_stays_as_it_is(tmp_path: Path) -> None:
    place = f"{tmp_path}/:cat:s"
    assert f"no folder {place}." in sentence(promptfed("run", "fedavg", f"data.name=folder:{place}"))


def test_unknown_source(images: Path) -> None:
    assert 'did you mean "pfedpt"?' in mistake("pfedpp")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed = \n", "is not valid TOML"),
        ("sed = 1\n", 'Unknown key "sed" in'),
        ("[method]\nname = 3\n", "method.name"),
    ],
)
def test_a_wrong_recipe(text: str, expected: str, images: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert expected in mistake(path)


def test_a_recipe_that_is_no_text(images: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    assert "mine.toml" in mistake(tmp_path / "mine.toml")


def test_a_missing_recipe(images: Path, tmp_path: Path) -> None:
    assert "cannot be read: No such file or directory" in mistake(tmp_path / "mine.toml")


def test_a_method_with_a_missing_key(images: Path) -> None:
    assert "method.lr is missing" in mistake("test_bad_input:Demanding", "clients=4")


def test_check_of_a_method_without_defaults() -> None:
    assert "lr" in sentence(promptfed("check", "test_bad_input:Demanding"))


# -- data ---------------------------------------------------------------------------------------------------------


def photos(root: Path) -> Path:
    """Make a folder of three classes with ten images each."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "owl"):
        (root / name).mkdir(parents=True)
        for number in range(10):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(root / name / f"{number}.png")
    return root


def of_folder(images: Path, root: Path, *more: str) -> list[str]:
    return [f"data.name=folder:{root}" if word.startswith("data") else word for word in tiny(images, "rounds=1", *more)]


def test_a_corrupt_image(images: Path, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    (root / "dog" / "3.png").write_bytes(b"no picture")
    found = mistake("local", *of_folder(images, root, "data.size=8"))
    assert str(root / "dog" / "3.png") in found
    assert "data.skip_corrupt=true" in found


def test_an_empty_class(images: Path, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos")
    (root / "yak").mkdir()
    assert f"The class folder {root / 'yak'} holds no images" in mistake("local", *of_folder(images, root))


def test_a_missing_folder(images: Path, tmp_path: Path) -> None:
    assert f"There is no folder {tmp_path / 'none'}" in mistake("local", *of_folder(images, tmp_path / "none"))


def test_a_missing_file(images: Path, tmp_path: Path) -> None:
    assert f"There is no file {tmp_path / 'none.npz'}" in mistake("local", *tiny(tmp_path / "none.npz"))


def test_a_file_that_is_no_npz(images: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    assert "text.npz is not an .npz file" in mistake("local", *tiny(tmp_path / "text.npz"))


def test_a_truncated_npz(images: Path) -> None:
    images.write_bytes(images.read_bytes()[:-200])
    assert "is not an .npz file" in mistake("local", *tiny(images))
    gc.collect()  # a file left open would be noticed here


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x": np.zeros((4, 8, 8, 3), np.float32), "y": np.zeros(4, np.int64)}, "must be uint8"),
        ({"x": np.zeros((4, 8, 8, 3), np.uint8), "y": np.zeros(3, np.int64)}, "4 images, but there are 3 labels"),
        ({"x": np.zeros((4, 8, 8, 3), np.uint8)}, "lacks y"),
        ({"x": np.zeros((0, 8, 8, 3), np.uint8), "y": np.zeros(0, np.int64)}, ""),
    ],
)
def test_wrong_arrays(arrays: dict[str, Any], expected: str, images: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    assert expected in mistake("local", *tiny(tmp_path / "own.npz"))


# -- folders ------------------------------------------------------------------------------------------------------


def test_out_is_not_empty(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    found = mistake("local", *tiny(images), "--out", tmp_path / "out")
    assert f"{tmp_path / 'out'} is not empty; choose another --out." in found
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    (tmp_path / "out" / "recipe.toml").write_text("precious")
    found = mistake("local", *tiny(images), "--out", tmp_path / "out")
    assert f"resume it with --resume {tmp_path / 'out'}, or choose another --out." in found


def test_out_cannot_be_made(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    found = mistake("local", *tiny(images), "--out", tmp_path / "file" / "out")
    assert f"Run folder {tmp_path / 'file' / 'out'} cannot be created: Not a directory; choose another" in found


def test_out_is_a_file(images: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    mistake("local", *tiny(images), "--out", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "precious"


def test_out_below_a_file(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "Not a directory" in mistake("local", *tiny(images), "--out", tmp_path / "file" / "run")


@pytest.mark.parametrize("command", ["compare", "report"])
def test_no_run_folder(command: str, images: Path, tmp_path: Path) -> None:
    assert "There is no " in sentence(promptfed(command, tmp_path / "none"))
    assert "is not a run folder" in sentence(promptfed(command, tmp_path))


def test_resume_without_a_run(images: Path, tmp_path: Path) -> None:
    assert "There is no " in mistake("--resume", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_unknown_archive(images: Path, tmp_path: Path) -> None:
    assert "cifar10" in sentence(promptfed("data", "add", "cifar", tmp_path))
    assert "There is no file" in sentence(promptfed("data", "add", "cifar10", tmp_path / "none.tar.gz"))


def test_as_a_process(images: Path) -> None:
    command = [sys.executable, "-m", "promptfed", "run", "pfedpt", *tiny(images), "method.epoch=2"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert "method.epochs" in sentence(Done(done.returncode, done.stdout, done.stderr))


# -- a run that goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["local", "fedavg", "pfedpt"])
def test_divergence(method: str, images: Path, tmp_path: Path) -> None:
    words = [method, *tiny(images, "method.lr=1e30", "method.epochs=4", "checkpoint_seconds=0")]
    done = promptfed("run", *words, "--out", tmp_path / "run")
    assert "Training diverged in round 1" in sentence(done)
    assert "lower method.lr" in done.err
    assert "Training diverged in round 1" in sentence(promptfed("run", "--resume", tmp_path / "run"))


def test_photographs_for_a_word(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "photos" / "ball").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (40, 40), (60 * number, 0, 0)).save(tmp_path / "photos" / "ball" / f"{number}.png")
    words = ["run", "relic", f"data.name=folder:{tmp_path / 'photos'}", "data.test_fraction=0", "clients=1"]
    for more, expected in (
        ("data.size=16", "data.size=16 is less than the 32 × 32 pixels that the backbone draws; set data.size=32."),
        ("method.vectors=30", "with a word of 30 vectors is longer than 24 tokens."),
        ("method.initialiser=clematis", 'it must be one, as "thing" is.'),
    ):
        assert expected in sentence(promptfed(*words, more, "--out", tmp_path / "run"))
        assert not (tmp_path / "run").exists()


def test_divergence_under_noise_names_what_scales_it(images: Path, tmp_path: Path) -> None:
    guards = ["guards.clip=1e30", "guards.noise=1e9"]
    done = promptfed("run", "fedavg", *tiny(images), *guards, "--out", tmp_path / "run")
    assert "lower method.lr or, since guards.noise is in units of it, guards.clip." in sentence(done)


def test_divergence_keeps_the_last_good_checkpoint(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from promptfed.methods.fedavg import FedAvg

    words, fit = ["fedavg", *tiny(images, "checkpoint_seconds=0")], FedAvg.fit

    def diverge(self: FedAvg, task: Task, down: Tree, personal: Tree, data: Data) -> tuple[Tree, Tree]:
        up, after = fit(self, task, down, personal, data)
        return {name: value * (float("nan") if data.round == 2 else 1) for name, value in up.items()}, after

    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "fit", diverge)
        assert "diverged in round 3" in sentence(promptfed("run", *words, "--out", tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "checkpoint" / "state.json").read_text())["round"] == 2
    assert promptfed("run", "--resume", tmp_path / "run").code == 0
    assert promptfed("run", *words, "--out", tmp_path / "straight").code == 0
    assert same(bits(tmp_path / "run")[0], bits(tmp_path / "straight")[0])


def full(*given: object, **more: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "personal-000009.safetensors")


@pytest.mark.parametrize(
    "place",
    [
        "promptfed.federation.loop.write_tree",
        "promptfed.federation.store.write_segment",
        "promptfed.federation.segments.Segment.sync",
        "promptfed.results.folder.record.write_sealed",
    ],
)
def test_a_full_disk_keeps_the_last_checkpoint(
    place: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, run = ["pfedpt", *tiny(images, "checkpoint_seconds=0", "per_round=2")], tmp_path / "run"
    assert promptfed("run", *words, "rounds=2", "--out", run).code == 0
    before = bits(run)
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        done = promptfed("run", run / "recipe.toml", "rounds=5", "--resume", run)
    assert "No space left on device" in sentence(done)
    assert f"Free some space. Resume with promptfed run --resume {run}." in done.err
    assert f"--resume continues in {run}; leave out --out." in sentence(promptfed("run", "--resume", run, "--out", "x"))
    after = bits(run)
    assert same(before[0], after[0])
    assert before[2] == after[2][:2]
    assert promptfed("run", "--resume", run).code == 0
    assert promptfed("run", *words, "rounds=5", "--out", tmp_path / "straight").code == 0
    assert same(bits(run)[0], bits(tmp_path / "straight")[0])


def test_a_disk_full_while_a_round_is_taken_over(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["pfedpt", *tiny(images, "checkpoint_seconds=1000", "rounds=4", "fleet.memory_mb=0.001")]
    real, failed = segments.write_segment, list[Path]()

    def once(path: Path, *content: Any) -> Segment:
        if not failed and path.parents[1].joinpath("rounds.jsonl").read_text().count("\n") == 3:
            failed.append(path)
            full()
        return real(path, *content)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_segment", once)
        assert "No space left" in sentence(promptfed("run", *words, "--out", tmp_path / "run"))
    assert failed
    assert promptfed("run", "--resume", tmp_path / "run").code == 0
    assert promptfed("run", *words, "--out", tmp_path / "straight").code == 0
    assert same(bits(tmp_path / "run")[0], bits(tmp_path / "straight")[0])


def test_a_disk_full_from_the_start(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["local", *tiny(images, "rounds=1"), "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        found = sentence(promptfed("run", *words))
    assert "No space left on device" in found
    assert not (tmp_path / "run" / "recipe.toml").exists()
    assert promptfed("run", *words).code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_tree_does_not_fit() -> None:
    from promptfed.federation.store import write_tree

    with pytest.raises(OSError, match="No space left"):
        write_tree(Path("/dev/full"), {"prompt": torch.zeros(9)})
