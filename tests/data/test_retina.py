"""Retina: the layouts of APTOS 2019 and DeepDRiD, and that no patient and no photograph is on two sides."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from promptfed.core.errors import PromptFedError
from promptfed.data import add, open_dataset
from promptfed.data.facts import find_domains
from promptfed.data.retina import EVALUATION, GRADES, TRAINING, VALIDATION
from promptfed.data.split import evaluated_on
from support.sheets import write_sheet
from support.small_sites import paint

HEAD = "patient_id,image_id,image_path,Overall quality,left_eye_DR_Level,right_eye_DR_Level,patient_DR_Level\n"
SHEET = "Challenge1_labels.xlsx"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


def aptos(root: Path, grades: Sequence[int], levels: Sequence[int] | None = None) -> Path:
    """Write a photograph for each grade; the n-th has level n, unless `levels` says otherwise."""
    for number, level in enumerate(levels or range(len(grades))):
        paint(root / "train_images" / f"a{number:03}.png", level)
    rows = "".join(f"a{number:03},{grade}\n" for number, grade in enumerate(grades))
    (root / "train.csv").write_text("id_code,diagnosis\n" + rows)
    (root / "test.csv").write_text("id_code\n0005cfc8afb6\n")
    return root


def deepdrid(root: Path, start: int = 200) -> Path:
    """Write two patients to train, one to validate, one to test; patient p's left eye has grade p, the right p + 1."""
    top, level = root / "regular_fundus_images", start
    for folder, patients in ((TRAINING, (0, 1)), (VALIDATION, (2,)), (EVALUATION, (3,))):
        rows, graded = [], [["image_id", "DR_Levels"]]
        for patient in patients:
            for eye, grade in (("l", patient), ("r", patient + 1)):
                for view in "12":
                    name = f"{patient}_{eye}{view}"
                    paint(top / folder / "Images" / str(patient) / f"{name}.jpg", level)
                    level += 1
                    sides = f"{grade}," if eye == "l" else f",{grade}"
                    rows.append(f"{patient},{name},\\{folder}\\{patient}\\{name}.jpg,1,{sides},{patient + 1}\r\n")
                    graded.append([name, str(grade)])
        if folder == EVALUATION:
            write_sheet(top / folder / SHEET, graded)
        else:
            (top / folder / f"{folder}.csv").write_text(HEAD + "".join(rows), newline="")
    return root


@pytest.fixture
def sites(tmp_path: Path) -> tuple[Path, Path]:
    """Both sites, added one after the other; APTOS has twenty photographs of each grade."""
    both = aptos(tmp_path / "aptos", [n % 5 for n in range(100)]), deepdrid(tmp_path / "drid")
    for root in both:
        add("retina", root)
    return both


def test_two_sites_with_five_grades(sites: tuple[Path, Path]) -> None:
    data = open_dataset("retina", size=2)
    assert data.val is not None
    assert data.classes == GRADES
    assert data.classes[2] == "moderate diabetic retinopathy"
    assert data.domain_names == find_domains("retina") == ("aptos", "deepdrid")
    assert np.bincount(data.domains).tolist() == [100, 16]
    levels = data.images[:, 0, 0, 0]
    assert levels.tolist() == [*range(100), *range(200, 216)]
    assert data.labels[:7].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert data.labels[100:].tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]
    there = data.domains == 1
    assert (levels[there & data.val].tolist(), levels[there & data.test].tolist()) == (
        [208, 209, 210, 211],
        [212, 213, 214, 215],
    )
    assert [int(data.test[~there & (data.labels == grade)].sum()) for grade in range(5)] == [4] * 5  # of 20
    assert [int(data.val[~there & (data.labels == grade)].sum()) for grade in range(5)] == [3] * 5  # of 16
    tuned = evaluated_on(data, "val", 0)
    assert np.bincount(tuned.domains[tuned.test]).tolist() == [15, 4]


def test_fewer_and_other_images(sites: tuple[Path, Path]) -> None:
    data, other = (open_dataset("retina", size=2, seed=seed) for seed in (0, 1))
    assert not np.array_equal(data.test, other.test)
    assert np.array_equal(data.test[100:], other.test[100:])
    few = open_dataset("retina", size=2, limit=1)
    training = few.dealt & ~few.test
    assert np.bincount(few.labels[training & (few.domains == 0)]).tolist() == [1] * 5


def test_photographs_that_are_there_twice_and_patients_stay_together(tmp_path: Path) -> None:
    levels = [n // 2 for n in range(60)] + [205, 215]  # pairs, and copies of DeepDRiD's training and test photographs
    add("retina", aptos(tmp_path / "aptos", [0] * 60 + [1, 1], levels))
    add("retina", deepdrid(tmp_path / "drid"))
    data = open_dataset("retina", size=2, test_fraction=0.4)
    assert data.val is not None
    assert data.patients is not None
    side = np.where(data.test, 2, np.where(data.val, 1, 0))
    shown = data.images[:, 0, 0, 0]
    assert all(len(set(side[shown == level])) == 1 for level in np.unique(shown))
    assert len(np.unique(data.patients[:60])) == 30
    assert data.patients[60] == data.patients[62 + 5]
    assert (side[60], set(side[62:70])) == (0, {0})
    assert {2, 1, 0} == set(side[:60])
    assert set(side[62 + 12 :]) == {side[61]}, "a test patient whose photograph is also at the other site goes with it"


def test_one_site_is_not_enough(tmp_path: Path) -> None:
    add("retina", aptos(tmp_path / "aptos", [0, 1]))
    with pytest.raises(PromptFedError, match=r"Of retina DeepDRiD is not on this machine; `promptfed data add retina"):
        open_dataset("retina", size=2)


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    with pytest.raises(PromptFedError, match=r"photos holds no retina: neither train_images/ with train\.csv"):
        add("retina", tmp_path / "photos")
    root = aptos(tmp_path / "aptos", [0, 5])
    with pytest.raises(PromptFedError, match=r'train\.csv, line 3: the grade is "5"; expected 0 to 4'):
        add("retina", root)
    (root / "train.csv").write_text("id_code,diagnosis\na000,0\na900,1\n")
    with pytest.raises(PromptFedError, match=r"1 of 2 photographs of .*train\.csv are not here, such as .*a900\.png"):
        add("retina", root)
    (root / "train.csv").write_text("id_code,diagnosis\n")
    with pytest.raises(PromptFedError, match=r"train\.csv lists no photographs"):
        add("retina", root)
    (root / "train.csv").unlink()
    with pytest.raises(PromptFedError, match=r"There is no file .*train\.csv"):
        add("retina", root)


def test_grades_of_the_second_site(tmp_path: Path) -> None:
    root = deepdrid(tmp_path / "drid")
    top = root / "regular_fundus_images"
    table = top / TRAINING / f"{TRAINING}.csv"
    right = table.read_text()
    table.write_text(right.replace("0_r1.jpg,1,,1", "0_r1.jpg,1,1,"))  # under the other eye, as in eleven rows
    add("retina", root)
    table.write_text(right.replace("0_r1.jpg,1,,1", "0_r1.jpg,1,,"))
    with pytest.raises(PromptFedError, match=r"line 4 has 0 grades in left_eye_DR_Level and right_eye_DR_Level"):
        add("retina", root)
    table.write_text(right)
    (top / EVALUATION / SHEET).rename(tmp_path / SHEET)
    with pytest.raises(PromptFedError, match=r"lacks Challenge1_labels\.xlsx, the grades of DeepDRiD.s test images"):
        add("retina", root)
    (top / EVALUATION / "Challenge1_labels.csv").write_text("image_id,DR_Levels\n3_l1,7\n")
    with pytest.raises(PromptFedError, match=r'Challenge1_labels\.csv, line 2: the grade is "7"'):
        add("retina", root)
    (top / EVALUATION / "Challenge1_labels.csv").write_text("image_id,DR_Levels\n3_l1,4\n")
    add("retina", root)
