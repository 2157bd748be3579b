"""Whole patients on one side: how many are tested, what is given back, and lists that tear a patient apart."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.partition import make_partition
from promptfed.data.patients import whole_patients
from promptfed.data.split import evaluated_on, stratified
from support.photographs import put


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


def listed(root: Path, rows: list[str], columns: str = "path,label,patient") -> str:
    """Write a list of images, one for each row, and return its name as a data set."""
    for number, row in enumerate(rows):
        put(root / row.split(",")[0], number)
    (root / "list.csv").write_text("\n".join([columns, *rows]))
    return f"csv:{root / 'list.csv'}"


def test_the_share_is_met_as_nearly_as_whole_patients_allow() -> None:
    labels = np.zeros(10, np.int64)
    patients = np.repeat([0, 1, 2], [6, 2, 2])
    for seed in range(5):
        test = whole_patients(labels, labels, patients, 0.2, seed)
        assert test.sum() == 2  # the one of six images is too large, and one of the others is just right
        assert not test[:6].any()


def test_one_image_each_is_as_without_patients() -> None:
    labels = np.repeat([0, 1], [10, 15])
    for fraction, right in ((0.2, (2, 3)), (0.5, (5, 8)), (1, (9, 14))):
        test = stratified(labels, labels * 0, fraction, 0, np.arange(25))
        assert (test[:10].sum(), test[10:].sum()) == right


def test_a_class_that_only_tested_patients_have_goes_back_to_training() -> None:
    # of each of ten patients nine images are of class 0; one image of class 1 is of the last patient
    labels, patients = np.zeros(91, np.int64), np.repeat(np.arange(10), [9] * 9 + [10])
    labels[-1] = 1
    for seed in range(20):
        test = whole_patients(labels, labels * 0, patients, 0.5, seed)
        assert not test[labels == 1].any()


@given(
    rows=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 6)), min_size=1, max_size=50),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 3),
)
def test_no_patient_is_on_both_sides(rows: list[tuple[int, int, int]], fraction: float, seed: int) -> None:
    domains, labels, patients = np.array(rows, np.int64).T
    test = whole_patients(labels, domains, patients, fraction, seed)
    assert not set(patients[test].tolist()) & set(patients[~test].tolist())
    assert set(zip(domains[~test], labels[~test], strict=True)) == set(zip(domains, labels, strict=True))


def test_a_list_with_patients(tmp_path: Path) -> None:
    rows = [f"{n}.png,{'ab'[n % 2]},person {n // 4}" for n in range(40)]
    for _ in range(2):  # the second time from the cache
        data = open_dataset(listed(tmp_path, rows), size=4)
        assert data.patients is not None
        assert data.patients.tolist() == [n // 4 for n in range(40)]
        assert (data.test.sum(), data.columns) == (8, {})
    patients = data.patients
    assert patients is not None
    assert not set(patients[data.test].tolist()) & set(patients[~data.test].tolist())
    validated = evaluated_on(data, "val", 0)
    assert validated.used is not None
    trains = validated.dealt & ~validated.test
    assert validated.test.sum() == 8  # nearest to a fifth of 32 images
    assert not set(patients[validated.test].tolist()) & set(patients[trains].tolist())
    kept = "".join(path.read_text() for path in (tmp_path / "home").rglob("names.json"))
    assert "person" not in kept


def test_partitions_that_tear_patients_apart_are_refused(tmp_path: Path) -> None:
    data = open_dataset(listed(tmp_path, [f"{n}.png,{'ab'[n % 2]},{n // 4}" for n in range(40)]), size=4)
    with pytest.raises(PromptFedError, match=r"partition\.name=pfllib-iid divides images at random, so a patient"):
        make_partition("pfllib-iid", {}, data, 2, 0)


def test_a_list_that_tears_a_patient_apart_is_refused(tmp_path: Path) -> None:
    rows = ["0.png,a,p,train", "1.png,a,p,test", "2.png,a,q,train", "3.png,a,r,test"]
    with pytest.raises(PromptFedError) as refused:
        open_dataset(listed(tmp_path, rows, "path,label,patient,split"))
    assert str(refused.value) == (
        f"In {tmp_path / 'list.csv'} 1 of 3 patients have images in more than one split, such as training and "
        "testing; put all images of a patient into one."
    )
