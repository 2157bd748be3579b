"""DomainNet: the official lists, ten or all classes, truncation of lists in order of class."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import add, open_dataset
from promptfed.data.domainnet import DOMAINS, TEN
from promptfed.data.split import evaluated_on
from support.small_sites import write_domainnet

FOLDERS = [name.replace(" ", "_") for name in TEN]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven classes, the first none of FedBN's, with four training images and one test image per domain."""
    return write_domainnet(tmp_path_factory.mktemp("domainnet"), ["axe", *FOLDERS], train=4, lists="splits")


def test_the_folder_is_used_where_it_is(root: Path, tmp_path: Path) -> None:
    assert add("domainnet", root) == root
    assert sorted(path.name for path in (tmp_path / "home" / "data" / "domainnet").iterdir()) == ["folders.json"]


def test_ten_classes_truncated_to_a_share_of_the_shortest_list(root: Path) -> None:
    add("domainnet", root)
    data = open_dataset("domainnet", size=2, share=0.25)
    assert (data.classes, data.domain_names) == (TEN, DOMAINS)
    assert data.val is not None
    train = data.dealt & ~data.test
    for mask, each in ((train, 10), (data.val, 10), (data.test, 10)):  # int(0.25 · 40), and one test image per class
        assert np.bincount(data.domains[mask]).tolist() == [each] * 6
    assert (data.images[:, 0, 0, 0] // 10 == data.labels + 1).all()  # class 0 of the lists is left out
    assert all(len(set(data.labels[train & (data.domains == domain)].tolist())) > 2 for domain in range(6))


def test_lists_that_are_not_shuffled_are_truncated_as_they_stand(root: Path) -> None:
    add("domainnet", root)
    data = open_dataset("domainnet", size=2, share=0.1, shuffle=False)
    assert data.val is not None
    assert [TEN[label] for label in data.labels[data.dealt & ~data.test]] == ["bird"] * 24
    assert [TEN[label] for label in data.labels[data.val]] == ["zebra"] * 24


def test_the_seed_decides_the_order(root: Path) -> None:
    add("domainnet", root)
    one, same, other = (open_dataset("domainnet", size=1, share=0.25, seed=seed).labels.tolist() for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_all_classes_whole(root: Path) -> None:
    add("domainnet", root)
    data = open_dataset("domainnet", classes="all", truncate=False, size=2)
    assert data.classes == ("axe", *TEN)
    assert data.val is not None
    assert (int((~data.test).sum()), int(data.test.sum()), int(data.val.sum())) == (6 * 44, 6 * 11, 6 * 8)
    assert set(Counter(data.labels.tolist()).values()) == {6 * 5}
    assert (data.images[:, 0, 0, 0] // 10 == data.labels).all()


def test_all_of_the_lists_may_be_trained_on(root: Path) -> None:
    add("domainnet", root)
    data = open_dataset("domainnet", classes="all", truncate=False, validate=False, size=2)
    assert data.val is None
    assert int((data.dealt & ~data.test).sum()) == 6 * 44
    assert open_dataset("domainnet", classes="all", truncate=False, size=2).val is not None  # the other copy is kept
    # settings are then chosen on one of the four training images of each class and domain
    chosen = evaluated_on(data, "val", seed=0)
    assert (int(chosen.test.sum()), int((chosen.dealt & ~chosen.test).sum())) == (6 * 11, 6 * 33)
    assert not (chosen.test & data.test).any()


def test_truncated_lists_always_validate() -> None:
    with pytest.raises(PromptFedError, match=r"data\.validate=false is for whole training lists; set data\.truncate"):
        open_dataset("domainnet", validate=False)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("clipart/bird/1.jpg", r'clipart_train\.txt is not a list of lines "domain/class/file.jpg NUMBER"'),
        ("clipart/bird/1.jpg one", r'clipart_train\.txt is not a list of lines "domain/class/file.jpg NUMBER"'),
        ("clipart/cat/1.jpg 0", 'call class 0 both "cat" and "dog"'),
        ("clipart/cat/1.jpg 1", "do not number their classes 0, 1, … with one name each"),
    ],
)
def test_mistakes_in_lists_are_one_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    for domain in DOMAINS:
        for split in ("train", "test"):
            (tmp_path / f"{domain}_{split}.txt").write_text(f"{domain}/dog/1.jpg 0\n" if "cat/1.jpg 0" in line else "")
    (tmp_path / "clipart_train.txt").write_text(f"{line}\n")
    with pytest.raises(PromptFedError, match=sentence):
        add("domainnet", tmp_path)


def test_a_folder_without_lists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"lacks clipart_train\.txt, one of the official lists of domainnet"):
        add("domainnet", tmp_path)


def test_training_and_validation_may_not_overlap(root: Path) -> None:
    with pytest.raises(PromptFedError, match=r"data\.share must be at most 0\.5, not 0\.6"):
        open_dataset("domainnet", share=0.6)
