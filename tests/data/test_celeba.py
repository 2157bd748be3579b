"""CelebA by identity: the official list and folders."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import add, open_dataset
from promptfed.data.celeba import read_identities
from promptfed.data.facts import find_domains
from support.small_sites import paint


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


def write(root: Path, people: list[int], listing: str, images: str) -> Path:
    """Write one image per entry of `people`; image n (from 1) has level n."""
    for number in range(1, len(people) + 1):
        paint(root / images / f"{number:06}.jpg", number)
    (root / listing).mkdir(parents=True, exist_ok=True)
    lines = [f"{number:06}.jpg {who}\n" for number, who in enumerate(people, 1)]
    (root / listing / "identity_CelebA.txt").write_text("".join(lines))
    return root


@pytest.mark.parametrize(("listing", "images"), [(".", "img_align_celeba"), ("Anno", "img_align_celeba"), (".", ".")])
def test_one_person(tmp_path: Path, listing: str, images: str) -> None:
    add("celeba", write(tmp_path / "celeba", [2820, 5, 2820, 5, 2820, 2820], listing, images))
    data = open_dataset("celeba", size=2, test_fraction=0.25)
    assert data.classes == ("2820",)
    assert data.images[:, 0, 0, 0].tolist() == [1, 3, 5, 6]
    assert data.test.sum() == 1


def test_everyone_with_enough_images(tmp_path: Path) -> None:
    add("celeba", write(tmp_path / "celeba", [10, 9, 10, 9, 8], ".", "img_align_celeba"))
    data = open_dataset("celeba", size=2, identity=0, least=2, test_fraction=0.0)
    assert data.classes == ("9", "10")
    assert data.labels.tolist() == [1, 0, 1, 0]


def test_every_person_a_domain_and_an_attribute_to_tell(tmp_path: Path) -> None:
    root = write(tmp_path / "celeba", [7, 7, 7, 7, 5, 5, 5, 5, 9], ".", "img_align_celeba")
    smiles = (1, 1, -1, -1, 1, 1, 1, 1, 1)
    lines = [f"{number:06}.jpg -1  {smile}\n" for number, smile in enumerate(smiles, 1)]
    (root / "list_attr_celeba.txt").write_text("9\nBald Smiling \n" + "".join(lines))
    add("celeba", root)
    options = {"size": 2, "identity": 0, "least": 4, "attribute": "Smiling", "test_fraction": 0.5}
    data = open_dataset("celeba", **options)
    assert (data.classes, data.domain_names) == (("face, not smiling", "face, smiling"), ("5", "7"))
    assert data.labels.tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    assert data.domains.tolist() == [1] * 4 + [0] * 4
    assert [int(data.test[data.domains == person].sum()) for person in (0, 1)] == [2, 2]
    assert find_domains("celeba", **options) == ("5", "7")
    assert find_domains("celeba") == ("celeba",)
    drawn = {find_domains("celeba", **options, people=1, seed=seed) for seed in range(8)}
    assert drawn == {("5",), ("7",)}
    with pytest.raises(PromptFedError, match=r"has 2 people with 4 images, fewer than data\.people=3; lower"):
        open_dataset("celeba", **options, people=3)
    with pytest.raises(PromptFedError, match=r'"Smiles" in list_attr_celeba\.txt; did you mean "Smiling"'):
        open_dataset("celeba", **options | {"attribute": "Smiles"})
    (root / "list_attr_celeba.txt").write_text("9\nBald Smiling\n000001.jpg -1 0\n")
    with pytest.raises(PromptFedError, match=r"is not the list of attributes: .*KeyError"):
        open_dataset("celeba", **options)
    (root / "list_attr_celeba.txt").write_text("9\nBald Smiling\n000001.jpg -1 1\n")
    with pytest.raises(PromptFedError, match=r"list_attr_celeba\.txt does not list 000002\.jpg"):
        open_dataset("celeba", **options)
    (root / "list_attr_celeba.txt").unlink()
    with pytest.raises(PromptFedError, match=r"lacks list_attr_celeba\.txt, .* for data\.attribute=Smiling"):
        open_dataset("celeba", **options)


def test_a_part_of_the_set(tmp_path: Path) -> None:
    root = write(tmp_path / "celeba", [3, 3, 3, 4, 4, 4], ".", "Celeb")
    listed = root / "identity_CelebA.txt"
    listed.write_text("image identity\n" + listed.read_text())
    for number in (1, 5):
        (root / "Celeb" / f"{number:06}.jpg").unlink()
    add("celeba", root)
    data = open_dataset("celeba", size=2, identity=0, least=2, part=True, test_fraction=0)
    assert data.images[:, 0, 0, 0].tolist() == [2, 3, 4, 6]
    assert data.classes == ("3", "4")
    missing = r"2 of 6 listed images are not in .*Celeb, such as 000001\.jpg; data\.part=true takes those"
    with pytest.raises(PromptFedError, match=missing):
        open_dataset("celeba", size=2, identity=0, least=2)


@pytest.mark.parametrize(("options", "who"), [({}, "identity 2820"), ({"identity": 0}, "anyone with 20 images")])
def test_nobody(tmp_path: Path, options: dict[str, int], who: str) -> None:
    add("celeba", write(tmp_path / "celeba", [1, 2], ".", "img_align_celeba"))
    with pytest.raises(PromptFedError, match=f"has no images of {who}"):
        open_dataset("celeba", size=2, **options)


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PromptFedError, match=r"lacks identity_CelebA\.txt"):
        add("celeba", tmp_path / "empty")
    place = write(tmp_path / "celeba", [1], ".", "elsewhere/deep")
    with pytest.raises(PromptFedError, match=r'"000001\.jpg" is the first'):
        read_identities(place)
    (place / "identity_CelebA.txt").write_text("000001.jpg\n")
    with pytest.raises(PromptFedError, match=r"is not a list of lines such as 000001\.jpg 2880"):
        read_identities(place)
