"""Files that would run code, or reach out of their place, wherever one may be handed over: a sentence, and no more."""

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from promptfed.data import by_hand
from support.command import promptfed, sentence
from support.tiny_diffusion import saved as saved_diffusion
from support.tiny_hub import saved, vit
from support.tiny_runs import tiny, write_images
from support.tiny_server import copied, picture, tiny_bundle


class Trap:
    """Whoever unpickles this makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Path]]:
        return Path.touch, (self.marker,)


def torch_file(marker: Path) -> bytes:
    """Return what torch.save writes today."""
    stream = io.BytesIO()
    torch.save({"cls_token": Trap(marker)}, stream)
    return stream.getvalue()


def old_torch_file(marker: Path) -> bytes:
    """Return what torch.save wrote long ago."""
    stream = io.BytesIO()
    torch.save({"cls_token": Trap(marker)}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def plain_pickle(marker: Path) -> bytes:
    return pickle.dumps({"cls_token": Trap(marker)})


def array_file(marker: Path) -> bytes:
    """Return an .npz file of objects."""
    stream = io.BytesIO()
    trap = np.array([Trap(marker)], object)
    np.savez(stream, x=trap, y=np.zeros(1, int), labels=trap)
    return stream.getvalue()


KINDS = {"torch": torch_file, "old-torch": old_torch_file, "pickle": plain_pickle, "npz": array_file}


@pytest.fixture(params=KINDS)
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    """Return the bytes of a file that makes `marker` where it is unpickled."""
    return KINDS[request.param](tmp_path / "marker")


def marked(tmp_path: Path) -> bool:
    return (tmp_path / "marker").exists()


def test_the_trap_is_a_trap(hostile: bytes, tmp_path: Path) -> None:
    with io.BytesIO(hostile) as stream:
        if hostile[:2] == b"PK" and b"labels.npy" in hostile:
            np.load(stream, allow_pickle=True)["x"]
        elif hostile == plain_pickle(tmp_path / "marker"):
            pickle.loads(hostile)
        else:
            torch.load(stream, weights_only=False)
    assert marked(tmp_path)


# -- code in a file ---------------------------------------------------------------------------------------------------

WEIGHTS = [
    ("vit", "w.safetensors"),
    ("vit", "w.pt"),
    ("resnet", "w.pth"),
    ("resnet", "w.pt"),
    ("clip", "w.safetensors"),
]


@pytest.mark.parametrize(("backbone", "name"), WEIGHTS)
def test_a_file_of_weights_runs_nothing(backbone: str, name: str, hostile: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(hostile)
    words = [f"backbone.name={backbone}", f"backbone.weights={tmp_path / name}", "device=cpu", "rounds=1"]
    said = sentence(promptfed("run", "head-probe", "--out", tmp_path / "run", *words))
    assert name in said
    assert not marked(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_of_weights_runs_nothing(name: str, hostile: bytes, tmp_path: Path) -> None:
    folder = Path(saved(vit(), tmp_path / "vit"))
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(hostile)
    words = ["backbone.name=vit", f"backbone.weights={folder}", "device=cpu", "rounds=1"]
    said = sentence(promptfed("run", "head-probe", "--out", tmp_path / "run", *words))
    assert name in said
    assert not marked(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["unet/diffusion_pytorch_model.bin", "vae/diffusion_pytorch_model.safetensors", "text_encoder/pytorch_model.bin"],
)
def test_a_text_to_image_model_runs_nothing(name: str, tmp_path: Path) -> None:
    folder = Path(saved_diffusion(tmp_path / "model"))
    next((folder / name).parent.glob("*.safetensors")).unlink()
    (folder / name).write_bytes(torch_file(tmp_path / "marker"))
    words = ["backbone.name=diffusion", f"backbone.weights={folder}", "device=cpu", "rounds=1"]
    sentence(promptfed("run", "relic", "--out", tmp_path / "run", *words))
    assert not marked(tmp_path)


def test_a_data_set_runs_nothing(hostile: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(hostile)
    said = sentence(promptfed("run", "fedavg", "--out", tmp_path / "run", f"data.name=npz:{tmp_path / 'data.npz'}"))
    assert "data.npz" in said
    assert not marked(tmp_path)


def test_photographs_that_are_none_run_nothing(hostile: bytes, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "one.jpg").write_bytes(hostile)
    sentence(promptfed("run", "fedavg", "--out", tmp_path / "run", f"data.name=folder:{tmp_path / 'photos'}"))
    assert not marked(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("hostile")
    done = promptfed("run", "pfedpt", "--out", folder / "run", *tiny(write_images(folder / "a.npz"), "device=cpu"))
    assert done.code == 0, done.err
    return folder / "run"


def kind_for(file: Path) -> Callable[[Path], bytes]:
    """Return the trap that a file of that name is most likely to spring."""
    return {".safetensors": torch_file, ".npz": array_file, ".npy": array_file}.get(file.suffix, plain_pickle)


def test_no_file_of_a_run_folder_runs_anything(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(picture())
    files = [path.relative_to(finished) for path in sorted(finished.rglob("*")) if path.is_file()]
    assert any("checkpoint" in file.parts and file.suffix == ".safetensors" for file in files)
    assert Path("predictions.npz") in files
    for file in files:
        run = tmp_path / "run"
        shutil.copytree(finished, run)
        (run / file).write_bytes(kind_for(file)(tmp_path / "marker"))
        for words in (["report", run], ["predict", run, tmp_path / "photo.png"], ["run", "--resume", run]):
            done = promptfed(*words)
            assert done.code in (0, 2), (file, words, done)
            assert "Traceback" not in done.err
        assert not marked(tmp_path), file
        shutil.rmtree(run)


def test_no_file_of_a_bundle_runs_anything(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "photo.png").write_bytes(picture())
    for file in sorted(path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file()):
        copy = copied(bundle, tmp_path / "copy")
        (copy / file).write_bytes(kind_for(file)(tmp_path / "marker"))
        done = promptfed("predict", copy, tmp_path / "photo.png", "--client", 0)
        assert done.code in (0, 2), (file, done)
        assert "Traceback" not in done.err
        assert not marked(tmp_path), file
        shutil.rmtree(copy)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("bundle"))


# -- places out of a folder -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "..", "a/../../other.safetensors", ["x"], ""])
def test_an_index_names_files_of_its_own_folder_alone(name: object, tmp_path: Path) -> None:
    folder = Path(saved(vit(), tmp_path / "vit"))
    shutil.move(folder / "model.safetensors", tmp_path / "other.safetensors")
    index = {"weight_map": {"cls_token": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    words = ["backbone.name=vit", f"backbone.weights={folder}", "device=cpu", "rounds=1"]
    said = sentence(promptfed("run", "head-probe", "--out", tmp_path / "run", *words))
    assert "is not the name of a file beside it" in said


@pytest.mark.parametrize("name", ["../out.txt", "/tmp/promptfed-out.txt", "a/../../out.txt", "..\\out.txt"])
def test_a_zip_is_unpacked_into_its_own_folder_alone(name: str, tmp_path: Path) -> None:
    path, folder = tmp_path / "set.zip", tmp_path / "home" / "set"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "out")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    by_hand._unpack(path, folder, lambda _: None)
    assert not next(folder.rglob("link")).is_symlink()
    outside = [one for one in tmp_path.rglob("*out.txt") if not one.is_relative_to(folder)]
    assert outside == []
    assert not Path("/tmp/promptfed-out.txt").exists()


HEADERS = {
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "a header of 2^63 bytes": (1 << 63).to_bytes(8, "little") + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"true",
    "nothing": b"",
    "half a number": b"\x01\x00",
}
ENTRIES: dict[str, dict[str, Any]] = {
    "offsets beyond the end": {"cls_token": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 50]}},
    "a shape that overflows": {"cls_token": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}},
    "negative offsets": {"cls_token": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
    "an unknown type": {"cls_token": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}},
    "overlapping tensors": {
        "cls_token": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    },
}


@pytest.mark.parametrize("what", [*HEADERS, *ENTRIES])
def test_a_hostile_header_of_safetensors_is_refused(what: str, tmp_path: Path) -> None:
    folder = Path(saved(vit(), tmp_path / "vit"))
    if what in HEADERS:
        content = HEADERS[what]
    else:
        header = json.dumps(ENTRIES[what]).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(content)
    words = ["backbone.name=vit", f"backbone.weights={folder}", "device=cpu", "rounds=1"]
    said = sentence(promptfed("run", "head-probe", "--out", tmp_path / "run", *words))
    assert "model.safetensors is not a complete safetensors file" in said
