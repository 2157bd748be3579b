"""What a store commits is what another takes over; what is missing or damaged gets a sentence."""

import json
from pathlib import Path

import pytest
import torch

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.federation.segments import Segment
from promptfed.federation.store import Manifest, Store, read_tree, verify, write_tree
from support.personal_trees import BYTES, fresh, holding, put, value


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(fresh, tmp_path)


def test_a_second_store_takes_over(store: Store, tmp_path: Path) -> None:
    put(store, c0=1.0, c1=2.0)
    store.commit()
    put(store, c1=3.0, c2=4.0)
    manifest = json.loads(json.dumps(store.commit()))
    other = Store(fresh, tmp_path)
    other.restore(manifest)
    assert [value(other.get(client)) for client in range(4)] == [1.0, 3.0, 4.0, -4.0]


def test_a_commit_of_nothing_new_writes_nothing(store: Store, tmp_path: Path) -> None:
    put(store, c0=1.0)
    first, files = store.commit(), sorted(tmp_path.iterdir())
    store.get(5)
    assert store.commit() == first
    assert sorted(tmp_path.iterdir()) == files


def test_leftovers_of_an_interrupted_commit_do_not_matter(store: Store, tmp_path: Path) -> None:
    put(store, c0=1.0, c1=2.0)
    manifest = store.commit()
    put(store, c0=10.0, c1=20.0)
    store.commit()  # its manifest is lost
    (tmp_path / "personal-000003.safetensors").write_bytes(b"cut off")
    second = Store(fresh, tmp_path)
    second.restore(manifest)
    assert [value(second.get(client)) for client in range(2)] == [1.0, 2.0]
    put(second, c1=3.0)
    manifest = second.commit()
    put(second, c2=4.0)
    manifest = second.commit()
    third = Store(fresh, tmp_path)
    third.restore(manifest)
    assert [value(third.get(client)) for client in range(3)] == [1.0, 3.0, 4.0]


def test_files_of_the_last_checkpoint_are_never_written_over(store: Store, tmp_path: Path) -> None:
    put(store, c0=1.0)
    manifest = store.commit()
    second = Store(fresh, tmp_path, 0)
    second.restore(manifest)
    for number in range(4):
        put(second, c0=float(number), c1=float(number))
        second.commit()
    assert manifest
    for name, entry in manifest.items():
        verify(tmp_path / name, entry["crc32"])


def damaged(store: Store, folder: Path) -> tuple[Path, Manifest]:
    put(store, c0=1.0)
    manifest = store.commit()
    (name,) = manifest
    return folder / name, manifest


def test_a_torn_file_is_a_sentence(store: Store, tmp_path: Path) -> None:
    path, manifest = damaged(store, tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PromptFedError, match=rf"^The checkpoint is damaged: .*{path.name} .*--out\.$"):
        Store(fresh, tmp_path).restore(manifest)


def test_a_missing_file_is_a_sentence(store: Store, tmp_path: Path) -> None:
    path, manifest = damaged(store, tmp_path)
    path.unlink()
    with pytest.raises(PromptFedError, match=rf"^The checkpoint is incomplete: .*{path.name} is missing; .*--out\.$"):
        Store(fresh, tmp_path).restore(manifest)


@pytest.mark.parametrize("content", [None, b"", b"cut off", b"\xff" * 64])
def test_a_file_lost_or_torn_later_is_a_sentence(store: Store, tmp_path: Path, content: bytes | None) -> None:
    path, manifest = damaged(store, tmp_path)
    other = Store(fresh, tmp_path)
    other.restore(manifest)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PromptFedError, match=rf"^The checkpoint file .*{path.name} cannot be read"):
        other.get(0)


def test_a_store_of_format_1_is_taken_over(tmp_path: Path) -> None:
    first, second = (tmp_path / f"personal-00000{number}.safetensors" for number in (1, 2))
    manifest: Manifest = {
        first.name: {"crc32": write_tree(first, tree.stack([holding(1.0), holding(2.0)])), "clients": [0, 7]},
        second.name: {"crc32": write_tree(second, tree.stack([holding(3.0)])), "clients": [7]},
    }
    store = Store(fresh, tmp_path)
    store.restore(manifest)
    assert [value(store.get(client)) for client in (0, 7, 8)] == [1.0, 3.0, -9.0]
    put(store, c8=5.0)
    other = Store(fresh, tmp_path)
    other.restore(json.loads(json.dumps(store.commit())))
    assert [value(other.get(client)) for client in (0, 7, 8)] == [1.0, 3.0, 5.0]


@pytest.mark.parametrize("place", [3, -3])
def test_a_changed_byte_of_a_large_store_is_a_sentence(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    path, manifest = damaged(store, tmp_path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1  # in its index, and in a tree
    path.write_bytes(content)
    monkeypatch.setattr("promptfed.federation.store.CHECKED_WHOLE", 0)
    other = Store(fresh, tmp_path)

    def open_and_read() -> None:
        other.restore(manifest)
        other.get(0)

    with pytest.raises(PromptFedError, match=rf"^The checkpoint .*{path.name}"):
        open_and_read()


def test_trees_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "tree.safetensors"
    checksum = write_tree(path, {"b": torch.tensor([5.0, 6.0]), "a": torch.eye(2).mT, "c": torch.zeros(2, 0)})
    verify(path, checksum)
    assert {name: part.tolist() for name, part in read_tree(path, 1).items()} == {"b": 6.0, "a": [0, 1], "c": []}
    assert list(read_tree(path)) == ["b", "a", "c"]  # as written, not sorted
    with pytest.raises(PromptFedError, match="damaged"):
        verify(path, checksum + 1)


def test_what_is_read_lies_as_what_was_written(tmp_path: Path) -> None:
    path, names = tmp_path / "tree.safetensors", [f"part{number}" for number in range(5)]
    write_tree(path, {name: torch.zeros(2, number + 1) for number, name in enumerate(names)})
    for found in (read_tree(path), read_tree(path, 1)):
        assert {value.data_ptr() % 64 for value in found.values()} == {0}


def test_a_view_is_kept_in_memory_of_its_own(store: Store) -> None:
    store.put(1, {"part": torch.arange(4.0)[1:]})
    assert store.get(1)["part"].data_ptr() % 64 == 0


def test_no_other_byte_of_a_sealed_file_is_read_as_the_tree(tmp_path: Path) -> None:
    path, word = tmp_path / "word.safetensors", {"word": torch.arange(3.0), "half": torch.ones(2, dtype=torch.bfloat16)}
    write_tree(path, word, sealed=True)
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in range(8):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            try:
                found = read_tree(path)
            except PromptFedError:
                continue
            assert list(found) == list(word), (place, bit)
            assert all(found[name].equal(value) for name, value in word.items()), (place, bit)


def test_a_commit_waits_for_the_files_that_it_names_and_for_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = list[str]()
    monkeypatch.setattr(Segment, "sync", lambda segment: synced.append(segment.path.name))
    store = Store(fresh, tmp_path, memory_mb=BYTES)  # every tree but the last one is written at once
    for number in range(3):
        put(store, c0=number, c1=number)
    assert synced == []
    first = store.commit()
    assert synced == sorted(first)
    put(store, c2=9.0)
    second = store.commit()
    assert synced == [*sorted(first), *sorted(second.keys() - first.keys())]
    assert store.commit() == second
    assert len(synced) == len(second)
