"""A ViT of the hub by name, fetched by the real huggingface_hub from a hub on this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from promptfed.backbones.checkpoint import read_weights
from support.command import environment
from support.stand_in_hub import Hub, commit, stand_in_hub
from support.tiny_hub import saved, vit

NAME = "someone/tiny-vit"


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two versions of a model, the second of which is the hub's newest; each has files of no use."""
    base = tmp_path_factory.mktemp("hub")
    old, new = Path(saved(vit(), base / "old")), base / "new"
    other = vit()
    with torch.no_grad():
        other.embeddings.cls_token.add_(1)
    saved(other, new)
    for folder in (old, new):
        (folder / "training.log").write_text("x")
        (folder / "pytorch_model.bin").write_bytes(b"what no one needs")
    return {"v1": old, "main": new}


@pytest.fixture
def hub(versions: dict[str, Path]) -> Iterator[tuple[Hub, str]]:
    with stand_in_hub({NAME: versions}) as running:
        yield running


def run(address: str, home: Path, weights: str, *, offline: bool = False) -> subprocess.CompletedProcess[str]:
    """Start a run on weights of that name in another process, whose only hub is the one at `address`."""
    more = {"HF_ENDPOINT": address, "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1" if offline else "0"}
    words = ["backbone.name=vit", f"backbone.weights={weights}", "rounds=1", "device=cpu", "clients=2", "data.limit=4"]
    command = [sys.executable, "-m", "promptfed", "run", "head-probe", "--out", str(home / "run"), *words]
    settings = environment(PROMPTFED_HOME=str(home / "cache"), no_proxy="127.0.0.1", **more)
    return subprocess.run(command, env=settings, capture_output=True, text=True, check=False, cwd=home)


@pytest.mark.slow
def test_a_name_is_fetched_once_and_no_more_than_is_needed(
    hub: tuple[Hub, str], versions: dict[str, Path], tmp_path: Path
) -> None:
    running, address = hub
    done = run(address, tmp_path, NAME)
    assert done.returncode == 0, done.stderr
    fetched = {one.rpartition("/")[2] for one in running.asked if one.startswith("GET") and "/resolve/" in one}
    assert fetched == {"config.json", "model.safetensors"}
    assert all(commit(versions["main"]) in one for one in running.asked if "/resolve/" in one), (
        "one version for all files"
    )
    (tmp_path / "run").rename(tmp_path / "first")
    again = run("http://127.0.0.1:9", tmp_path, NAME, offline=True)
    assert again.returncode == 0, again.stderr


def test_a_revision_is_the_one_that_is_named(hub: tuple[Hub, str], versions: dict[str, Path], tmp_path: Path) -> None:
    _, address = hub
    done = run(address, tmp_path, f"{NAME}@v1")
    assert done.returncode == 0, done.stderr
    (snapshot,) = (tmp_path / "hf" / "hub").glob("models--*/snapshots/*")
    assert snapshot.name == commit(versions["v1"])
    assert torch.equal(read_weights(str(snapshot))["cls"], read_weights(str(versions["v1"]))["cls"])
    assert not torch.equal(read_weights(str(snapshot))["cls"], read_weights(str(versions["main"]))["cls"])


@pytest.mark.parametrize("weights", [f"{NAME}@v7", pytest.param("someone/nothing", marks=pytest.mark.slow)])
def test_what_the_hub_does_not_have_is_a_sentence(weights: str, hub: tuple[Hub, str], tmp_path: Path) -> None:
    done = run(hub[1], tmp_path, weights)
    assert done.returncode == 2
    assert done.stderr.startswith(f'promptfed: backbone.weights="{weights}" is not a folder here, and the hub did not')
    assert done.stderr.count("\n") == 1
