"""Sets that are added by hand: zips are unpacked whole or not at all, folders remembered, what is gone is named."""

import zipfile
from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import add, open_dataset, status
from promptfed.data.office import DOMAINS
from support.small_sites import write_office, zipped

NAME = "office-caltech10"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "data" / NAME


@pytest.fixture
def office(tmp_path: Path) -> Path:
    return write_office(tmp_path / "office", dict.fromkeys(DOMAINS, 4))


def here(name: str = NAME) -> tuple[bool, Path, int]:
    return {row.name: row[1:] for row in status()}[name]


@pytest.mark.parametrize("name", ["office-caltech10", "domainnet", "dermoscopic-fl"])
def test_what_was_never_added_cannot_be_downloaded(name: str, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=rf"cannot be downloaded; `promptfed data add {name} PATH` takes a copy"):
        open_dataset(name)
    assert here(name) == (False, tmp_path / "home" / "data" / name, 0)


def test_a_zip_whose_contents_are_damaged_is_refused(office: Path, home: Path) -> None:
    archive = zipped(office, office.parent / "o.zip")
    raw = bytearray(archive.read_bytes())
    raw[80:200] = bytes(120)
    archive.write_bytes(raw)
    with pytest.raises(PromptFedError, match=r"o\.zip is neither a folder nor a complete zip"):
        add(NAME, archive)
    assert not list(home.rglob("*.jpg"))


def test_a_zip_is_unpacked_and_no_longer_needed(office: Path, home: Path) -> None:
    archive = zipped(office, office.parent / "o.zip")
    assert add(NAME, archive) == home / "unpacked" / "o"
    archive.unlink()
    assert len(open_dataset(NAME, size=2)) == 4 * (2 + 1 + 1)
    size = sum(path.stat().st_size for path in office.rglob("*") if path.is_file())
    assert here() == (True, home / "unpacked" / "o", size)


def test_a_folder_is_used_where_it_is_and_missed_when_it_is_gone(office: Path) -> None:
    assert add(NAME, office) == office
    assert here()[:2] == (True, office)
    office.rename(office.parent / "elsewhere")
    assert not here()[0]
    with pytest.raises(PromptFedError, match=r"The folder .*office of data set .* is gone; `promptfed data add"):
        open_dataset(NAME)


def test_the_last_one_added_counts(office: Path, home: Path) -> None:
    add(NAME, zipped(office, office.parent / "first.zip"))
    add(NAME, zipped(office, office.parent / "second.zip"))
    assert [path.name for path in (home / "unpacked").iterdir()] == ["second"]
    add(NAME, office)
    assert here()[1] == office
    assert not list((home / "unpacked").iterdir())
    assert office.is_dir()


def test_a_broken_or_foreign_zip_leaves_what_was_there(office: Path, home: Path) -> None:
    archive = zipped(office, office.parent / "o.zip")
    add(NAME, archive)
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(PromptFedError, match=r"o\.zip is neither a folder nor a complete zip"):
        add(NAME, archive)
    with zipfile.ZipFile(archive, "w") as foreign:
        foreign.writestr("notes.txt", "nothing here")
    with pytest.raises(PromptFedError, match=r"o\.zip lacks fedbn_split\.json"):
        add(NAME, archive)
    assert [path.name for path in (home / "unpacked").iterdir()] == ["o"]
    assert len(open_dataset(NAME, size=2)) == 16


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"There is no file or folder .*gone"):
        add(NAME, tmp_path / "gone")


@pytest.mark.parametrize("content", ["{", "[]", '{"a": null}'])
def test_an_edited_record_is_refused(office: Path, home: Path, content: str) -> None:
    add(NAME, office)
    (home / "folders.json").write_text(content)
    with pytest.raises(PromptFedError, match=r"folders\.json cannot be read .*; remove it and add office-caltech10"):
        open_dataset(NAME)
