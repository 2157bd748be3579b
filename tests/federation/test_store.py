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
from promptfed.federation.store import SMALL_FILES, Manifest, Store, verify
from support.personal_trees import BYTES, fresh, holding, put, value

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
