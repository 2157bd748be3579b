"""Images in parquet files: splits, columns, names of classes, rows that cannot be read, and the hub."""

import io
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data import parquet as module
from promptfed.data.inspecting import inspect
from promptfed.runs import config

CATS = {"image": {"_type": "Image"}, "label": {"names": ["dog", "cat"], "_type": "ClassLabel"}}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "pets"


def encoded(level: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (level, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def put(
    path: Path, levels: Sequence[int], features: object = None, groups: int = 100, **columns: Sequence[Any]
) -> None:
    """Write a parquet file of images of these levels; other columns by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(level), "path": f"{level}.png"} for level in levels]
    table = pa.table({"image": images, **columns})
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=groups)


def test_the_hubs_usual_layout(root: Path) -> None:
    put(root / "data" / "train-00000-of-00002.parquet", [0, 10, 20], CATS, groups=2, label=[0, 1, 1])
    put(root / "data" / "train-00001-of-00002.parquet", [30], CATS, label=[0])
    put(root / "data" / "test-00000-of-00001.parquet", [40, 50], CATS, label=[1, 0])
    for _ in range(2):  # the second time from the cache
        data = open_dataset(f"hf:{root}", size=4)
        assert (data.name, data.classes, data.domain_names) == ("pets", ("dog", "cat"), ("pets",))
        assert data.images[:, 0, 0, 0].tolist() == [40, 50, 0, 10, 20, 30]
        assert data.labels.tolist() == [1, 0, 0, 1, 1, 0]
        assert np.flatnonzero(data.test).tolist() == [0, 1]


def test_one_file_and_no_metadata(root: Path) -> None:
    put(root / "all.parquet", range(12), label=[n % 12 for n in range(12)])
    data = open_dataset(f"hf:{root}", size=4, test_fraction=0)
    assert data.classes == tuple(map(str, range(12)))  # by number, not by text
    assert data.labels.tolist() == list(range(12))
    put(root / "all.parquet", range(4), label=["b", "a", "b", "a"])
    assert open_dataset(f"hf:{root}", size=4).classes == ("a", "b")


def test_sites_and_patients(root: Path) -> None:
    more: dict[str, Any] = {
        "label": [n % 2 for n in range(20)],
        "camera": [n // 10 for n in range(20)],
        "who": [n // 2 for n in range(20)],
    }
    features = CATS | {"camera": {"names": ["west", "east"], "_type": "ClassLabel"}}
    put(root / "train.parquet", range(20), features, **more)
    chosen = {"site": "camera", "patient": "who"}
    data = open_dataset(f"hf:{root}", size=4, **chosen)
    assert data.domain_names == ("east", "west")
    assert data.domains.tolist() == [1] * 10 + [0] * 10
    assert data.patients is not None
    assert not set(data.patients[data.test].tolist()) & set(data.patients[~data.test].tolist())
    recipe = config.load_one("fedavg", [f"data.name=hf:{root}", "data.site=camera", "data.label=label"])
    assert (recipe.partition["name"], recipe.clients) == ("domain", 2)


def test_names_of_classes_in_the_readme(root: Path) -> None:
    put(root / "data" / "train-0.parquet", [0, 1], label=[1, 0])
    head = "dataset_info:\n  features:\n  - name: label\n    dtype:\n      class_label:\n        names:\n"
    (root / "README.md").write_text(f"---\n{head}          '0': dog\n          '1': cat\n---\n# Pets\n")
    data = open_dataset(f"hf:{root}", size=4)
    assert (data.classes, data.labels.tolist()) == (("dog", "cat"), [1, 0])


def test_validation_without_test_and_hidden_labels(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(root / "default" / "train" / "0000.parquet", [0, 1], CATS, label=[1, 0])
    put(root / "default" / "validation" / "0000.parquet", [2], CATS, label=[1])
    put(root / "default" / "test" / "0000.parquet", [3], CATS, label=[-1])
    with caplog.at_level(logging.WARNING, "promptfed"):
        data = open_dataset(f"hf:{root}", size=4)
    assert data.test.tolist() == [False, False, True]
    assert f"1 rows of {root} have no label" in caplog.text


def test_a_broken_image_is_named_and_may_be_left_out(root: Path) -> None:
    path = root / "data" / "train-0.parquet"
    put(path, [0, 1, 2], CATS, label=[0, 1, 0])
    table = pq.read_table(path).to_pylist()
    table[1]["image"]["bytes"] = b"torn"
    table.append({"image": {"bytes": None, "path": "x.png"}, "label": 1})
    table.append({"image": {"bytes": encoded(9), "path": "y.png"}, "label": 1})
    pq.write_table(pa.Table.from_pylist(table), path)
    with pytest.raises(PromptFedError, match=r"^row 1 of data/train-0\.parquet cannot be read as an image"):
        open_dataset(f"hf:{root}", size=4)
    data = open_dataset(f"hf:{root}", size=4, skip_corrupt=True, test_fraction=0)
    assert data.images[:, 0, 0, 0].tolist() == [0, 2, 9]
    assert inspect(f"hf:{root}").broken["row 3 of data/train-0.parquet"] == "it has no bytes"


@pytest.mark.parametrize(
    ("columns", "chosen", "said"),
    [
        (
            {"fine": [0, 1], "coarse": [0, 1]},
            {},
            "Several columns of {} could be the labels: fine, coarse. Choose one, such as data.label=fine.",
        ),
        ({"label": [0.5, 1.5]}, {}, "No column of {} looks like the labels; choose one by data.label: image, label."),
        (
            {"other": [b"a", b"b"], "label": [0, 1]},
            {},
            "Several columns of {} could be the images: image, other. Choose one, such as data.image=image.",
        ),
        (
            {"label": [0, 1]},
            {"label": "labl"},
            'Unknown column (data.label) "labl" in {}; did you mean "label"?',
        ),
        ({"label": [0, 1]}, {"config": "x"}, 'Unknown configuration (data.config) "x" in {}; valid: default.'),
        ({"label": [None, -1]}, {}, 'No row of {} has a label in the column "label".'),
    ],
)
def test_what_is_ambiguous_is_asked_for(root: Path, columns: dict[str, Any], chosen: dict[str, str], said: str) -> None:
    put(root / "train.parquet", [0, 1], **columns)
    with pytest.raises(PromptFedError) as refused:
        open_dataset(f"hf:{root}", **chosen)
    assert str(refused.value) == said.format(root)


def test_configurations(root: Path) -> None:
    for n, name in enumerate(("small", "large")):
        put(root / name / "train-0.parquet", [n], CATS, label=[0])
    with pytest.raises(
        PromptFedError, match=r"several configurations: large, small\. Choose one, such as data\.config=large"
    ):
        open_dataset(f"hf:{root}")
    assert open_dataset(f"hf:{root}", size=4, config="small").images[0, 0, 0, 0] == 0


def test_numbers_without_a_name_and_torn_files(root: Path) -> None:
    put(root / "train.parquet", [0], CATS, label=[2])
    with pytest.raises(PromptFedError, match=r'train\.parquet, row 0: "label" is 2, but there are names for 0 to 1'):
        open_dataset(f"hf:{root}")
    (root / "train.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(PromptFedError, match=r"train\.parquet is not a complete parquet file"):
        open_dataset(f"hf:{root}")
    (root / "train.parquet").unlink()
    with pytest.raises(PromptFedError, match="holds no parquet files"):
        open_dataset(f"hf:{root}")


def test_a_name_on_the_hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root / "converted" / "default" / "train" / "0000.parquet", [7, 8], CATS, label=[1, 0])
    (root / "main").mkdir()
    asked = []

    def deliver(name: str, *, repo_type: str, allow_patterns: list[str], revision: str = "") -> str:
        asked.append((name, repo_type, revision))
        return str(root / ("main" if not revision else "converted"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", deliver)
    module._fetched.cache_clear()
    data = open_dataset("hf:someone/pets", size=4)
    assert (data.name, len(data)) == ("pets", 2)
    assert asked == [("someone/pets", "dataset", ""), ("someone/pets", "dataset", "refs/convert/parquet")]
    open_dataset("hf:someone/pets@abc123", size=4)
    assert asked[2:] == [("someone/pets", "dataset", "abc123")]

    def refuse(*_: object, **__: object) -> str:
        raise OSError("Cannot reach the hub.\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(PromptFedError) as refused:
        open_dataset("hf:someone/other")
    assert str(refused.value) == (
        "There is no folder someone/other, and the hub did not deliver it: Cannot reach the hub."
    )
    with pytest.raises(PromptFedError, match=r"There is no folder /gone, and it is not a name on the hub"):
        open_dataset("hf:/gone")


@pytest.mark.parametrize(("missing", "extra"), [("pyarrow.parquet", "parquet"), ("huggingface_hub", "hf")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    module._fetched.cache_clear()
    with pytest.raises(PromptFedError, match=rf'pip install "promptfed\[{extra}\]"'):
        open_dataset("hf:someone/third")
