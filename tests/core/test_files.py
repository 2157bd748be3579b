"""Sealed files: every byte counts, and what was written before there were seals is read as it is."""

import json
import zlib
from pathlib import Path

import pytest

from promptfed.core.files import AlteredError, sealed, sealed_toml, unsealed, unsealed_toml, write_sealed


def test_a_seal_is_the_checksum_of_all_that_comes_before_it() -> None:
    body = '{"round": 1, '
    assert sealed('{"round": 1}') == f'{body}"crc32": "{zlib.crc32(body.encode()):08x}"}}'
    assert sealed_toml("seed = 3\n") == f"seed = 3\n# crc32 {zlib.crc32(b'seed = 3' + bytes([10])):08x}\n"


@pytest.mark.parametrize("value", [{}, {"a": {}}, {"a": {"crc32": "00000000"}, "b": [1, None]}, {"ü": float("inf")}])
@pytest.mark.parametrize("indent", [None, 1])
def test_what_is_sealed_is_read_again(value: dict[str, object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert json.loads(sealed(text)).keys() == {*value, "crc32"}
    assert unsealed(sealed(text)) == value
    assert unsealed(text) == value


def test_a_file_without_a_seal_is_read_as_it_is() -> None:
    assert unsealed('{"round": 1, "images_per_second": 12345678}') == {"round": 1, "images_per_second": 12345678}
    assert unsealed("[1]") == [1]
    assert unsealed_toml("seed = 3\n# a comment\n") == "seed = 3\n# a comment\n"


@pytest.mark.parametrize("text", ['{"round": 1, "clients": [0, 3]}', '{\n "round": 1,\n "clients": {}\n}'])
def test_no_other_byte_is_taken_for_what_was_sealed(text: str) -> None:
    content, value = sealed(text).encode(), json.loads(text)
    for place, old in enumerate(content):
        for new in range(256):
            changed = content[:place] + bytes([new]) + content[place + 1 :]
            try:
                assert unsealed(changed.decode()) == value, (place, old, new)
            except ValueError:
                assert new != old


def test_no_other_byte_of_a_recipe_changes_a_value() -> None:
    content = sealed_toml("seed = 3\n").encode()
    for place in range(len(content)):
        for new in set(range(256)) - {content[place]}:
            changed = content[:place] + bytes([new]) + content[place + 1 :]
            try:
                found = unsealed_toml(changed.decode())
            except ValueError:
                continue
            assert found.startswith("seed = 3\n"), (place, new)


def test_an_edited_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_sealed(path, {"mean": 0.5})
    assert unsealed(path.read_text()) == {"mean": 0.5}
    with pytest.raises(AlteredError, match="does not match its checksum"):
        unsealed(path.read_text().replace("0.5", "0.6"))
