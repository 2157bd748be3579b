"""fed.toml: what it says, and one sentence for every mistake."""

from pathlib import Path

import pytest

from promptfed.core.errors import PromptFedError
from promptfed.sites.settings import read_federation


def written(folder: Path, text: str) -> Path:
    path = folder / "fed.toml"
    path.write_text(text)
    return path


def test_a_federation_is_its_sites_and_its_rules(tmp_path: Path) -> None:
    found = read_federation(
        written(tmp_path, 'sites = ["north", "south", "west"]\nmin_sites = 2\nround_seconds = 60\n')
    )
    assert found.sites == ("north", "south", "west")
    assert (found.needed, found.round_seconds, found.coordinator, found.port) == (2, 60.0, "localhost", 8002)
    assert read_federation(written(tmp_path, 'sites = ["north", "south"]')).needed == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sites = []", "names no sites"),
        ("sites = ['a', 'a']", "names a site twice"),
        ("sites = ['A b']", '"A b" in .* is not a valid name'),
        ("sites = ['localhost']", "gives a site the coordinator's name"),
        ("sites = ['a']\nmin_sites = 2", "min_sites=2 in .* is more than the 1 sites"),
        ("sites = ['a']\nport = 'x'", "federation.port must be a whole number, not 'x'"),
        ("sites = ['a']\nround_second = 1", 'Unknown key "round_second" in .*; did you mean "round_seconds"?'),
        ("sites = ['a']\nport = 80000", "port=80000 in .* is too high; ports end at 65535"),
        ("sites = ['a']\nport = 8003", "port and admin_port in .* are both 8003"),
        ("sites = ['a']\nclasses = ['x', 'x']", "names a class twice"),
        ("name = 'x'", "federation.sites is missing"),
        ("sites = [", "is not valid TOML"),
    ],
)
def test_a_mistake_gets_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=sentence):
        read_federation(written(tmp_path, text))


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptFedError, match=r"fed\.toml cannot be read: No such file"):
        read_federation(tmp_path / "fed.toml")
