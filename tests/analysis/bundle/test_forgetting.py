"""A client that is forgotten leaves nothing in a bundle, and the others as they were."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from promptfed.analysis.bundle import contents, forgetting
from promptfed.analysis.bundle.contents import open_bundle, read_row, write_about
from promptfed.analysis.bundle.forgetting import forget
from promptfed.analysis.bundle.making import make_bundle
from promptfed.core.errors import PromptFedError
from promptfed.core.files import held
from support.bundles import CLIENTS, answers, fails, train
from support.command import promptfed, sentence
from support.tiny_runs import write_images


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forgetting")
    write_images(folder / "small.npz")
    return train(folder, "pfedpt")


@pytest.fixture
def own(run: Path, tmp_path: Path) -> Path:
    make_bundle(run, tmp_path / "own", "cpu")
    return tmp_path / "own"


def test_a_forgotten_client_is_gone_and_the_others_stay(own: Path) -> None:
    before = {client: answers(own, client) for client in range(CLIENTS)}
    bundle = open_bundle(own)
    gone = [contents.raw(value) for value in read_row(own, bundle, 2).values()]
    words = [bundle.clients[2].sha256.encode(), *gone]
    assert all(any(word in path.read_bytes() for path in own.iterdir()) for word in words)
    assert promptfed("forget", own, "--client", 2).out == f"{own}: client 2 is removed; 3 left\n"
    files = sorted(own.iterdir())
    assert [path.name for path in files] == [contents.ABOUT, "clients-1.safetensors", contents.SHARED]
    assert not [word for word in words if any(word in path.read_bytes() for path in files)]
    assert "2" not in json.loads((own / contents.ABOUT).read_text())["clients"]
    for client in (0, 1, 3):
        assert torch.equal(answers(own, client), before[client])
    assert fails(own, 2) == f"{own} has no client 2; it has 0, 1, 3."


def test_all_but_the_last_client_can_be_forgotten(own: Path) -> None:
    before = answers(own, 3)
    for client in range(3):
        forget(own, client)
    assert torch.equal(answers(own, 3), before)
    assert torch.equal(answers(own, None), before)  # the only one left needs no number
    assert "Client 3 is the only one" in sentence(promptfed("forget", own, "--client", 3))
    assert "has no client 0; it has 3." in sentence(promptfed("forget", own, "--client", 0))
    assert "is not a bundle" in sentence(promptfed("forget", own.parent, "--client", 0))


def test_a_run_is_told_from_a_bundle(run: Path) -> None:
    said = sentence(promptfed("forget", run, "--client", 0))
    assert said.endswith(f"bundle.json is missing; make one by promptfed bundle {run} --out DIR.\n")


def test_a_power_cut_while_forgetting_leaves_one_bundle_or_the_other(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = answers(own, 1), write_about

    def cut(folder: Path, bundle: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(forgetting, "write_about", cut)
    with pytest.raises(KeyboardInterrupt):
        forget(own, 2)
    assert torch.equal(answers(own, 1), before)
    assert list(open_bundle(own).clients) == [0, 1, 2, 3]

    def late(folder: Path, bundle: Any) -> None:
        real(folder, bundle)
        raise KeyboardInterrupt

    monkeypatch.setattr(forgetting, "write_about", late)
    with pytest.raises(KeyboardInterrupt):
        forget(own, 2)
    monkeypatch.setattr(forgetting, "write_about", real)
    assert torch.equal(answers(own, 1), before)
    with pytest.raises(PromptFedError, match="has no client 2"):
        forget(own, 2)
    assert not (own / contents.CLIENTS).exists()  # what was left over is removed


def test_two_processes_do_not_change_one_bundle(own: Path) -> None:
    with held(own / contents.ABOUT, wait=False), pytest.raises(PromptFedError, match="Another process is changing"):
        forget(own, 1)
