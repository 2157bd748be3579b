"""A user's own photographs in a CSV list: columns, splits, further columns, and rows that make no sense."""

from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.csv_file import read_rows
from promptfed.data.facts import find_domains
from promptfed.runs import config
from support.photographs import put

FULL = """path,label,site,split,age
a.png,cat,north,train,61
b.png,dog,north,train,
c.png,cat,south,test,"47, or more"
d.png,dog,south,val,55
e.png,dog,south,train,55
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for level, name in enumerate("abcde"):
        put(tmp_path / "pets" / f"{name}.png", 10 * level)
    return tmp_path / "pets"


def write(root: Path, text: str) -> Path:
    (root / "pets.csv").write_bytes(text.encode())
    return root / "pets.csv"


def test_all_columns(root: Path) -> None:
    for _ in range(2):  # the second time from the cache
        data = open_dataset(f"csv:{write(root, FULL)}", size=4)
        assert (data.name, data.classes, data.domain_names) == ("pets", ("cat", "dog"), ("north", "south"))
        assert data.labels.tolist() == [0, 1, 0, 1, 1]
        assert data.domains.tolist() == [0, 0, 1, 1, 1]
        assert data.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
        assert np.flatnonzero(data.test).tolist() == [2]
        assert data.val is not None
        assert np.flatnonzero(data.val).tolist() == [3]
        assert data.columns == {"age": ("61", "", "47, or more", "55", "55")}


def test_a_changed_column_is_read_again(root: Path) -> None:
    open_dataset(f"csv:{write(root, FULL)}")
    assert open_dataset(f"csv:{write(root, FULL.replace('61', '62'))}").columns["age"][0] == "62"


def test_further_columns_of_corrupt_images_are_left_out_with_them(root: Path) -> None:
    (root / "b.png").write_bytes(b"no image")
    data = open_dataset(f"csv:{write(root, FULL)}", skip_corrupt=True)
    assert data.columns == {"age": ("61", "47, or more", "55", "55")}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_write(root: Path, separator: str, start: str, end: str) -> None:
    rows = [["Label", " PATH "], ["cat", "a.png"], ["", ""], ["dog", str(root / "b.png")], ["dog ", "./c.png"]]
    path = write(root, start + end.join(separator.join(row) for row in rows))
    photos = read_rows(path)
    assert [photo.label for photo in photos] == ["cat", "dog", "dog"]
    assert [photo.path.name for photo in photos] == ["a.png", "b.png", "c.png"]
    assert {(photo.domain, photo.test, photo.more) for photo in photos} == {("", False, ())}
    assert open_dataset(f"csv:{path}").domain_names == ("pets",)


def test_without_splits_some_images_are_set_aside(root: Path) -> None:
    path = write(root, "path,label\n" + "".join(f"{name}.png,cat\n" for name in "abcde"))
    assert open_dataset(f"csv:{path}").test.sum() == 1
    assert open_dataset(f"csv:{path}", test_fraction=0.6).test.sum() == 3


def test_validation_images_without_test_images_are_the_test_set(root: Path) -> None:
    path = write(root, "path,label,split\na.png,cat,train\nb.png,cat,Validation\n")
    data = open_dataset(f"csv:{path}")
    assert (data.test.tolist(), data.val) == ([False, True], None)


def test_a_recipe_needs_no_other_key(root: Path) -> None:
    path = write(root, FULL)
    recipe = config.load_one("fedavg", [f"data.name=csv:{path}"])
    assert (recipe.partition["name"], recipe.clients) == ("domain", 2)
    assert find_domains(f"csv:{path}") == ("north", "south")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", '{} lacks the column "path" in its first line, which has: nothing.'),
        ("file,label\na.png,cat\n", '{} lacks the column "path" in its first line, which has: file, label.'),
        ("path,site\na.png,cat\n", '{} lacks the column "label" in its first line, which has: path, site.'),
        ("path,label,path\na.png,cat,b\n", '{} has two columns called "path".'),
        ("path,label\n", "{} lists no images."),
        ("path,label\na.png,cat\nb.png\n", "{}, line 3 has 1 values for 2 columns."),
        ("path,label\na.png,cat,x\n", "{}, line 2 has 3 values for 2 columns."),
        ("path,label\n,cat\n", "{}, line 2 has no path; fill in every row, or leave the column out."),
        ("path,label\na.png,\n", "{}, line 2 has no label; fill in every row, or leave the column out."),
        ("path,label,site\na.png,cat,\n", "{}, line 2 has no site; fill in every row, or leave the column out."),
        ("path,label,split\na.png,cat,trian\n", '{}, line 2: the split is "trian"; write train, val or test.'),
        ("path,label\na.png,cat\n\nz.png,cat\n", "{}, line 4: there is no file {root}/z.png."),
        ("path,label\na.png,cat\n./a.png,dog\n", "{}, line 3: ./a.png is already listed on line 2."),
        ('path,label\n"a.png,cat\n', "{}, line 2 is not valid CSV: unexpected end of data."),
        ("path,label,split\na.png,cat,train\nb.png,dog,test\n", 'Class "dog" of {root} has no training images in {}.'),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(root: Path, text: str, said: str) -> None:
    path = write(root, text)
    with pytest.raises(PromptFedError) as refused:
        open_dataset(f"csv:{path}")
    assert str(refused.value) == said.format(path, root=root)


def test_a_file_that_is_missing_or_not_text(root: Path) -> None:
    with pytest.raises(PromptFedError, match=r"There is no file .*gone\.csv\."):
        open_dataset(f"csv:{root / 'gone.csv'}")
    (root / "pets.csv").write_bytes(b"path,label\n\xff\xfe")
    with pytest.raises(PromptFedError, match=r"is not UTF-8 text \(invalid start byte at byte 11\)"):
        open_dataset(f"csv:{root / 'pets.csv'}")
