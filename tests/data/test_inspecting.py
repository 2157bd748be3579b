"""A look at a data set before a run: what is counted, and what is found wrong."""

import csv
from pathlib import Path

import numpy as np
import pytest

from promptfed.cli import inspection_tables as tables
from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.inspecting import DatasetInspection, Look, inspect
from support.command import promptfed, sentence
from support.photographs import put, put_sites


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return put_sites(tmp_path / "pets", ["north", "south"], each=5)


def splits_of(found: DatasetInspection) -> list[str]:
    return [image.split for image in found.images]


def test_the_split_is_the_one_of_a_run(root: Path) -> None:
    found, data = inspect(f"folder:{root}", test_fraction=0.4), open_dataset(f"folder:{root}", test_fraction=0.4)
    assert splits_of(found) == ["test" if tested else "train" for tested in data.test]
    assert [image.site for image in found.images] == [data.domain_names[domain] for domain in data.domains]
    assert (found.name, found.classes, found.sites) == (data.name, data.classes, data.domain_names)
    assert found.sides == {(6, 8): 20}
    assert not found.broken


def test_with_broken_files_it_is_the_one_of_a_run_without_them(root: Path) -> None:
    (root / "north" / "cat" / "1.png").write_bytes(b"no image")
    found, data = inspect(f"folder:{root}"), open_dataset(f"folder:{root}", skip_corrupt=True)
    assert splits_of(found) == ["test" if tested else "train" for tested in data.test]
    assert list(found.broken) == [str(root / "north" / "cat" / "1.png")]


def test_equal_images_are_found_whatever_their_format(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    for level, name in enumerate(("train/cat/a.png", "train/dog/b.png", "test/cat/c.png", "test/dog/d.png")):
        put(root / name, level)
    put(root / "test" / "cat" / "again.bmp", 0)
    put(root / "train" / "dog" / "other.png", 0)
    found = inspect(f"folder:{root}")
    ((*names,),) = ([Path(image.name).name for image in some] for some in found.alike("split"))
    assert names == ["a.png", "other.png", "again.bmp"]
    assert len(found.alike("label")) == 1
    assert found.alike("site") == []


def test_arrays_and_named_sets(tmp_path: Path) -> None:
    images = np.zeros((4, 8, 6, 3), np.uint8)
    images[1:] = np.arange(3, dtype=np.uint8)[:, None, None, None]
    np.savez(tmp_path / "a.npz", x_train=images[:2], y_train=[0, 1], x_test=images[2:], y_test=[0, 1])
    found = inspect(f"npz:{tmp_path / 'a.npz'}")
    assert splits_of(found) == ["train", "train", "test", "test"]
    assert found.sides == {(8, 6): 4}
    assert [[image.name for image in some] for some in found.alike("label")] == [["image 0", "image 1"]]
    shops = inspect("fashion-shops", limit=1)
    assert (len(shops.images), len(shops.classes), len(shops.sites)) == (2040, 10, 4)


def test_a_list(root: Path) -> None:
    names = [f"{site}/cat/{n}.png" for site in ("north", "south") for n in range(2)]
    lines = ["path,site,label", *(f"{name},{name[:5]},cat" for name in names)]
    (root / "pets.csv").write_text("\n".join(lines))
    found = inspect(f"csv:{root / 'pets.csv'}")
    assert (found.name, found.sites, found.classes) == ("pets", ("north", "south"), ("cat",))


def test_patients_and_further_columns(tmp_path: Path) -> None:
    lines = ["path,label,patient,sex,age"]
    for n in range(12):
        put(tmp_path / f"{n}.png", n)
        lines.append(f"{n}.png,cat,p{n // 2},{'f' if n < 8 else ''},{n}")
    (tmp_path / "pets.csv").write_text("\n".join(lines))
    found = inspect(f"csv:{tmp_path / 'pets.csv'}")
    assert splits_of(found).count("test") == 2  # one of six patients
    assert tables.findings(found)[5:] == [
        "Patients: 6; none is in several splits.",
        "Further columns: sex (empty: 4, f: 8); age (12 different values).",
    ]


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "pets" / "cat" / "a.png").write_bytes(b"no image")
    with pytest.raises(PromptFedError, match=r"None of the 1 images of .*pets can be read"):
        inspect(f"folder:{tmp_path / 'pets'}")


# -- the command --------------------------------------------------------------------------------------------------


def test_a_table_to_paste(root: Path) -> None:
    (root / "south" / "dog" / "4.png").write_bytes(b"no image")
    put(root / "south" / "dog" / "5.png", 0)
    done = promptfed("data", "inspect", f"folder:{root}", "--format", "markdown")
    assert done.code == 0, done
    assert done.out.startswith("pets: 20 images, 2 classes, 2 sites.\n")
    for line in (
        "| class | north | south | all |",
        "| dog | 5 | 5 | 10 |",
        "| all | 10 | 10 | 20 |",
        "| site | train | val | test | all |",
        "| north | 8 | 0 | 2 | 10 |",
        "- Sizes, width × height: 8 × 6 (20).",
        f"- The same image at several sites: 1: {root}/north/cat/0.png (north) and {root}/south/dog/5.png (south).",
    ):
        assert line in done.out.splitlines()
    assert f"- Broken files: 1: {root}/south/dog/4.png (cannot identify image file" in done.out


def test_as_csv_there_is_one_table(root: Path) -> None:
    done = promptfed("data", "inspect", f"folder:{root}", "data.test_fraction=0.4", "--format", "csv")
    assert list(csv.reader(done.out.strip().splitlines())) == [
        ["class", "north", "south", "all"],
        ["cat", "5", "5", "10"],
        ["dog", "5", "5", "10"],
        ["all", "10", "10", "20"],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fashion-shop"], 'Unknown data set "fashion-shop"; did you mean "fashion-shops"?'),
        (["folder"], 'Data set "folder" needs a path: write folder:PATH.'),
        (["fashion-shops", "limit=3"], '"limit=3" is not an option of a data set; write for example data.size=64.'),
        (["fashion-shops", "data.limt=3"], 'Unknown option "limt" in data set "fashion-shops"; did you mean "limit"?'),
    ],
)
def test_mistakes_are_sentences(words: list[str], said: str) -> None:
    assert sentence(promptfed("data", "inspect", *words)) == f"promptfed: {said}\n"


def test_a_path_without_its_kind_is_told_which_it_is(root: Path, tmp_path: Path) -> None:
    said = sentence(promptfed("data", "inspect", root))
    assert said == f'promptfed: Unknown data set "{root}"; to use what is there, write folder:{root}.\n'
    (tmp_path / "list.csv").touch()
    assert f"write csv:{tmp_path / 'list.csv'}." in sentence(promptfed("advise", tmp_path / "list.csv"))


@pytest.mark.parametrize(
    ("sites", "classes", "columns", "rows"),
    [
        (2, 30, ["class", "s0", "s1", "all"], 31),
        (30, 2, ["site", "c0", "c1", "all"], 31),
        (20, 20, ["site", "class", "images"], 20),
    ],
)
def test_what_there_is_less_of_has_the_columns(sites: int, classes: int, columns: list[str], rows: int) -> None:
    names = [f"s{n}" for n in range(sites)], [f"c{n}" for n in range(classes)]
    pairs = [(names[0][n % sites], names[1][n % classes]) for n in range(max(sites, classes))]
    looks = tuple(Look(site, label, "train", "", (1, 1), f"{site}{label}") for site, label in pairs)
    table = tables.counts(DatasetInspection("x", tuple(names[1]), tuple(names[0]), looks, {}))
    assert [column.title for column in table.columns] == columns
    assert len(table.rows) == rows


def test_long_findings_are_cut() -> None:
    looks = tuple(Look("here", f"c{n % 2}", "train", f"image {n}", (n, 1), f"{n // 2}") for n in range(40))
    broken = {f"{n}.png": "torn" for n in range(7)}
    said = tables.findings(DatasetInspection("x", ("c0", "c1"), ("here",), looks, broken))
    assert said[0].endswith("(1), and 35 other sizes.")
    assert said[2].endswith("; and 15 more.")
    few = tables.findings(DatasetInspection("x", ("c0", "c1"), ("here",), looks[:6], {}))
    assert few[0].endswith("(1), and 1 other size.")
    assert said[4] == (
        "Broken files: 7: 0.png (torn); 1.png (torn); 2.png (torn); 3.png (torn); 4.png (torn); and 2 more."
    )
