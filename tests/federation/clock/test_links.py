"""Profiles of links and devices: by name, from a file, with numbers changed, and what is refused."""

from dataclasses import asdict
from pathlib import Path

import pytest

from promptfed.core import options
from promptfed.core.errors import PromptFedError
from promptfed.federation.clock.links import PROFILES, Profile, read_profile
from promptfed.federation.clock.options import ClockOptions


@pytest.mark.parametrize("name", PROFILES)
def test_shipped_profiles_keep_their_own_rules(name: str) -> None:
    assert read_profile(name) == PROFILES[name]


def test_the_page_has_the_keys_and_profiles() -> None:
    page = (Path(__file__).parents[3] / "docs" / "links.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    keys = {cells[0].strip("`"): cells[1].strip("`") for cells in rows if cells[0].startswith("`clock.")}
    own = options.defaults(ClockOptions).keys() - options.hints(Profile).keys()
    assert keys.keys() == {f"clock.{key}" for key in own}
    assert all(str(getattr(ClockOptions, key)).removesuffix(".0") == keys[f"clock.{key}"] for key in own)
    told = {
        key.strip("`"): [float(cell.split(", ")[place]) for cell in cells[1:4]]
        for cells in rows
        if len(cells) == 5
        for place, key in enumerate(cells[0].split(", "))
    }
    assert told == {key: [asdict(one)[key] for one in PROFILES.values()] for key in asdict(PROFILES["mobile"])}


def test_numbers_can_be_changed() -> None:
    found = read_profile("clinic-dsl", ["up_mbit=2", "dropout=0"])
    assert (found.up_mbit, found.dropout, found.down_mbit) == (2.0, 0.0, 50.0)


def test_a_file_needs_two_numbers_only(tmp_path: Path) -> None:
    path = tmp_path / "rural.toml"
    path.write_text("down_mbit = 6\nup_mbit = 0.5\n")
    assert read_profile(str(path)) == Profile(down_mbit=6.0, up_mbit=0.5)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("mobil", [], '"mobil" in --profile, which takes a name or a .toml file; did you mean "mobile"?'),
        ("none.toml", [], "The profile none.toml cannot be read: No such file or directory."),
        ("mobile", ["up=2"], "up_mbit"),
        ("mobile", ["up_mbit"], '"up_mbit" is not of the form KEY=NUMBER'),
        ("mobile", ["up_mbit=fast"], '"up_mbit=fast" is not of the form KEY=NUMBER'),
        ("mobile", ["up_mbit=0"], "profile.up_mbit must be above 0, not 0."),
        ("mobile", ["dropout=1"], "profile.dropout must be at most 0.95, not 1."),
        ("mobile", ["hours=25"], "profile.hours must be at most 24, not 25."),
        ("mobile", ["latency_ms=nan"], "latency_ms"),
    ],
)
def test_what_is_wrong_gets_a_sentence(
    name: str, changes: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PromptFedError) as refused:
        read_profile(name, changes)
    assert said in str(refused.value)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("down_mbit =")
    with pytest.raises(PromptFedError, match="is not valid TOML"):
        read_profile(str(tmp_path / "a.toml"))
