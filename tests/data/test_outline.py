"""What a data set is like, in few numbers, worked out by hand."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data.inspecting import DatasetInspection, Look, inspect
from promptfed.data.outline import DataFacts, describe
from support.photographs import put_sites


def looks(*groups: tuple[str, str, str, int]) -> DatasetInspection:
    """Return an inspection with so many images for each site, class and split."""
    names = [(site, label, split, n) for site, label, split, count in groups for n in range(count)]
    images = tuple(Look(site, label, split, str(n), (6, 8), f"{site}{label}{n}") for site, label, split, n in names)
    sites, classes = dict.fromkeys(one[0] for one in groups), dict.fromkeys(one[1] for one in groups)
    return DatasetInspection("pets", tuple(classes), tuple(sites), images, {"broken.png": "why"})


def test_the_numbers_by_hand() -> None:
    found = looks(
        ("north", "cat", "train", 6),
        ("north", "dog", "train", 1),
        ("north", "dog", "val", 1),
        ("south", "dog", "train", 8),
        ("south", "cat", "test", 3),
    )
    facts = DataFacts.of("folder:pets", found)
    assert (facts.sites, facts.classes, facts.training, facts.testing) == (("north", "south"), 2, (8, 8), (0, 3))
    assert facts.held == (2, 1)
    assert facts.shared == 1 / 2  # dogs are at both, cats to learn from in the north only
    assert facts.skew == pytest.approx(3 / 8)  # north 6/8 to 6/16, south 0 to 6/16
    assert facts.unequal == pytest.approx(10 / 6)
    assert (facts.side, facts.broken, facts.resizes) == (6, 1, True)
    assert describe(facts)[1:3] == (
        "A site has 8 training images of 1 to 2 classes.",
        "50 % of the classes are at several sites; label skew is 0.38, where 0 is the same proportions everywhere and "
        "1 is nothing in common.",
    )


def test_one_site_knows_nothing_of_skew() -> None:
    facts = DataFacts.of("npz:pets.npz", looks(("pets", "cat", "train", 2), ("pets", "dog", "train", 2)))
    assert (facts.shared, facts.skew, facts.resizes) == (0, 0, False)
    assert "from one site or an unknown number of them" in describe(facts)[0]


def test_there_must_be_something_to_learn_from() -> None:
    with pytest.raises(PromptFedError, match=r"pets has no training images"):
        DataFacts.of("folder:pets", looks(("pets", "cat", "test", 2)))


def test_it_is_what_folders_hold(tmp_path: Path) -> None:
    root = put_sites(tmp_path / "pets", ["north", "south"], each=5)
    facts = DataFacts.of(f"folder:{root}", inspect(f"folder:{root}"))
    assert (facts.training, facts.testing, facts.shared, facts.skew) == ((8, 8), (2, 2), 1, 0)
