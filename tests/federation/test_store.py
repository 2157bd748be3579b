"""The store of personal trees against a plain dict, in memory and on disk, through crashes."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.segments import Segment
from promptfed.federation.store import SMALL_FILES, Manifest, Store, read_tree, verify, write_tree

BYTES = 2**-20  # in megabytes


def fresh(client: int) -> Tree:
    return holding(-1.0 - client)


def holding(value: float, size: int = 3) -> Tree:
    return {"prompt.up": torch.full((size,), value), "velocity": torch.full((2, 2), -value)}


def value(found: Tree) -> float:
    """Return the one number a tree was filled with, having checked the whole of it."""
    number = float(found["prompt.up"][0])
    assert list(found) == ["prompt.up", "velocity"]
    assert (found["prompt.up"] == number).all()
    assert found["velocity"].equal(torch.full((2, 2), -number))
    return number


def put(store: Store, **values: float) -> None:
    """Finish a round in which client `c<number>` arrives at the value given."""
    for client, number in values.items():
        store.put(int(client[1:]), holding(number))
    store.seal()


# -- one round ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(fresh, tmp_path)


def test_a_client_never_seen_is_fresh(store: Store) -> None:
    assert value(store.get(4)) == -5.0


def test_put_counts_once_sealed(store: Store) -> None:
    store.put(1, holding(7.0))
    assert value(store.get(1)) == 7.0
    store.seal()
    store.discard()
    assert value(store.get(1)) == 7.0


def test_discard_forgets_the_round_under_way(store: Store) -> None:
    put(store, c1=7.0)
    store.put(1, holding(8.0))
    store.put(2, holding(9.0))
    store.discard()
    assert [value(store.get(client)) for client in (1, 2)] == [7.0, -3.0]


def test_a_round_under_way_is_not_committed(store: Store, tmp_path: Path) -> None:
    put(store, c1=7.0)
    store.put(1, holding(8.0))
    other = Store(fresh, tmp_path)
    other.restore(store.commit())
    assert value(other.get(1)) == 7.0


def test_methods_without_personal_trees_write_nothing(tmp_path: Path) -> None:
    store = Store(lambda client: {}, tmp_path / "never")
    store.put(0, {})
    store.seal()
    assert store.commit() == {}
    assert store.get(0) == store.get(1) == {}
    assert not (tmp_path / "never").exists()


# -- memory and disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_mb", [0, 60 * BYTES, 100 * BYTES, 1024])
def test_spilling_to_disk_changes_no_tree(tmp_path: Path, memory_mb: float) -> None:
    store = Store(fresh, tmp_path, memory_mb)  # a tree has 28 bytes
    for number in range(5):
        put(store, **{f"c{client}": 10.0 * number + client for client in range(12)})
    assert [value(store.get(client)) for client in range(14)] == [
        *(40.0 + client for client in range(12)),
        -13.0,
        -14.0,
    ]
    assert any(tmp_path.iterdir()) is (memory_mb < 1)


def test_types_and_shapes_survive_the_disk(tmp_path: Path) -> None:
    store = Store(fresh, tmp_path, 0)
    kept = {"a": torch.tensor(3), "b": torch.zeros(0, 2), "c": torch.ones(2).bfloat16(), "d": torch.eye(2).mT.double()}
    store.put(1, kept)
    store.put(11, holding(5.0))
    store.seal()
    other = Store(fresh, tmp_path)
    other.restore(store.commit())
    assert value(other.get(11)) == 5.0
    found = other.get(1)
    assert set(found) == set(kept)
    for name, tensor in kept.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].equal(tensor)


def test_one_tensor_under_two_names_can_be_saved(store: Store, tmp_path: Path) -> None:
    both = torch.ones(3)
    store.put(0, {"model": both, "last": both})
    store.seal()
    other = Store(fresh, tmp_path)
    other.restore(store.commit())
    assert other.get(0)["last"].tolist() == [1.0, 1.0, 1.0]


def test_two_clients_with_the_same_tensor_can_be_saved(store: Store, tmp_path: Path) -> None:
    same = holding(5.0)
    store.put(0, same)
    store.put(1, same)
    store.seal()
    other = Store(fresh, tmp_path)
    other.restore(store.commit())
    assert value(other.get(0)) == value(other.get(1)) == 5.0


def test_rows_of_a_stack_can_be_saved(store: Store, tmp_path: Path) -> None:
    stacked = tree.stack([holding(5.0), holding(6.0)])
    for client in range(2):
        store.put(client, tree.row(stacked, client))
    store.seal()
    other = Store(fresh, tmp_path)
    other.restore(store.commit())
    assert [value(other.get(client)) for client in range(2)] == [5.0, 6.0]


def used(folder: Path, manifest: Manifest) -> int:
    return sum((folder / name).stat().st_size for name in manifest)


@pytest.mark.parametrize("memory_mb", [0.05, 1024])
def test_the_disk_holds_at_most_a_fifth_more_than_the_state(tmp_path: Path, memory_mb: float) -> None:
    store = Store(fresh, tmp_path, memory_mb)
    size, clients = 5_000, 12
    state = clients * tree.nbytes(holding(0.0, size))
    for number in range(40):
        for client in {number % clients, (5 * number + 1) % clients, (number * number) % clients}:
            store.put(client, holding(float(number), size))
        store.seal()
        manifest = store.commit()
        assert used(tmp_path, manifest) < 1.2 * state + 10_000
        for path in tmp_path.iterdir():
            if path.name not in manifest:
                path.unlink()


def test_a_file_kept_for_a_few_clients_is_written_anew(store: Store, tmp_path: Path) -> None:
    size, clients = 5_000, 12
    state = clients * tree.nbytes(holding(0.0, size))
    for number in range(clients):  # every round leaves one more client behind: without care 12 + 11 + … + 1 trees
        for client in range(clients - number):
            store.put(client, holding(float(number), size))
        store.seal()
        assert used(tmp_path, store.commit()) < 1.2 * state + 10_000
    assert [value(store.get(client)) for client in range(clients)] == [float(11 - client) for client in range(clients)]


def test_many_clients_are_few_files(store: Store, tmp_path: Path) -> None:
    for number in range(70):  # every commit has a file of its own, and all its trees count
        put(store, **{f"c{client}": float(client) for client in range(10 * number, 10 * number + 10)})
        manifest = store.commit()
        assert len(manifest) <= SMALL_FILES + 1
        for path in set(tmp_path.iterdir()) - {tmp_path / name for name in manifest}:
            path.unlink()
    assert all(value(store.get(client)) == client for client in (0, 377, 699))


def test_what_is_written_between_commits_and_outdated_is_removed_at_once(tmp_path: Path) -> None:
    store = Store(fresh, tmp_path, 0)
    for number in range(20):
        put(store, c0=float(number), c1=float(number))
    assert len(list(tmp_path.iterdir())) <= 3


# -- checkpoints --------------------------------------------------------------------------------------------------


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


# -- any sequence of events ---------------------------------------------------------------------------------------


class Events(RuleBasedStateMachine):
    """A store with room for about two trees against three plain dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name)
        self.store = Store(fresh, self.folder, 60 * BYTES)
        self.staged: dict[int, float] = {}
        self.sealed: dict[int, float] = {}
        self.committed: dict[int, float] = {}
        self.manifest: Manifest = {}

    @rule(client=st.integers(0, 5), number=st.integers(0, 1000))
    def put(self, client: int, number: int) -> None:
        self.store.put(client, holding(float(number)))
        self.staged[client] = float(number)

    @rule()
    def seal(self) -> None:
        self.store.seal()
        self.sealed |= self.staged
        self.staged = {}

    @rule()
    def discard(self) -> None:
        self.store.discard()
        self.staged = {}

    @rule(client=st.integers(0, 5))
    def get(self, client: int) -> None:
        assert value(self.store.get(client)) == (self.sealed | self.staged).get(client, -1.0 - client)

    @rule(sweep=st.booleans())
    def commit(self, sweep: bool) -> None:
        self.manifest, self.committed = self.store.commit(), dict(self.sealed)
        for path in list(self.folder.iterdir()) if sweep else []:
            if path.name not in self.manifest:
                path.unlink()

    @rule()
    def commit_whose_manifest_is_lost(self) -> None:
        self.store.commit()

    @rule()
    def crash(self) -> None:
        self.store = Store(fresh, self.folder, 60 * BYTES)
        self.store.restore(json.loads(json.dumps(self.manifest)))
        self.staged, self.sealed = {}, dict(self.committed)

    @invariant()
    def checkpoint_is_whole(self) -> None:
        for name, entry in self.manifest.items():
            verify(self.folder / name, entry["crc32"])

    def teardown(self) -> None:
        for client in range(6):
            self.get(client)
        self.place.cleanup()


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


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


# -- what has reached the disk --------------------------------------------------------------------------------------


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
