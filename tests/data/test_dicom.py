"""A user's own DICOM files: layouts, labels, windows, frames, patients, and what messages must not repeat."""

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset as Tags
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data.dicom import list_files
from promptfed.data.dicom_pixels import open_slice, read_window, windowed
from promptfed.data.inspecting import inspect
from promptfed.runs import config
from support.command import promptfed, sentence

SECRET = "MUSTERMANN"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "scans"


def put(path: Path, pixels: object = None, bits: int = 12, **tags: Any) -> Path:
    """Write a small grey image, [H, W] or [frames, H, W]; other tags by name."""
    levels: NDArray[Any] = np.array([[0, 1], [2, 3]] if pixels is None else pixels)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID("1.2.840.10008.5.1.4.1.1.7"), generate_uid()
    made = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    made.PatientName, made.PatientID = SECRET, f"{SECRET}-1"
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.PixelRepresentation, made.BitsStored, made.HighBit = 0, bits, bits - 1
    made.BitsAllocated = 8 if bits <= 8 else 16
    if levels.ndim == 3:
        made.NumberOfFrames = len(levels)
    made.Rows, made.Columns = levels.shape[-2:]
    for name, value in tags.items():
        setattr(made, name, value)
    kind = ("i" if made.PixelRepresentation else "u") + str(made.BitsAllocated // 8)
    content = levels.astype(f"<{kind}").tobytes()
    made.PixelData = content + b"\0" * (len(content) % 2)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def greys(path: Path, window: str = "file", frame: Any = "middle") -> list[list[int]]:
    seen = np.asarray(open_slice(path, read_window(window), frame, path.parent))
    assert (seen == seen[..., :1]).all()
    return [[int(level) for level in row] for row in seen[..., 0]]


def clinic(root: Path, people: int = 10, site: str = "") -> Path:
    """Write two images of each person; the class is the parity of the person."""
    for person in range(people):
        for n in range(2):
            path = root / site / ("benign", "malignant")[person % 2] / f"{SECRET}_{person}" / f"{n}.dcm"
            tags: dict[str, Any] = {"PatientID": f"{SECRET}-{person}", "StudyInstanceUID": f"1.2.{person}.{n}"}
            put(path, [[0, person], [n, 15]], InstitutionName=("North", "South")[person % 4 // 2], **tags)
    return root


# -- pixels -------------------------------------------------------------------------------------------------------


def test_without_a_window_the_images_own_range_is_shown(tmp_path: Path) -> None:
    assert greys(put(tmp_path / "a.dcm", [[100, 151], [202, 355]])) == [[0, 51], [102, 255]]
    assert greys(put(tmp_path / "a.dcm", [[7, 7], [7, 7]])) == [[0, 0], [0, 0]]
    padded = put(tmp_path / "a.dcm", [[0, 100], [151, 355]], PixelPaddingValue=0)
    assert greys(padded) == [[0, 0], [51, 255]]


@pytest.mark.parametrize(
    ("bits", "levels"), [(8, [0, 51, 102, 255]), (12, [0, 819, 1638, 4095]), (16, [0, 13107, 26214, 65535])]
)
def test_the_full_range_of_8_12_and_16_bits(tmp_path: Path, bits: int, levels: list[int]) -> None:
    path = put(tmp_path / "a.dcm", np.array(levels).reshape(2, 2), bits)
    assert greys(path, "full") == [[0, 51], [102, 255]]


def test_8_bits_are_taken_as_they_are(tmp_path: Path) -> None:
    assert greys(put(tmp_path / "a.dcm", [[10, 20], [30, 40]], 8)) == [[10, 20], [30, 40]]


def test_rescaling_and_windows(tmp_path: Path) -> None:
    # stored 0, 1124, 1064, 4000 are -1024, 100, 40, 2976 Hounsfield units
    tags: dict[str, Any] = {
        "RescaleSlope": 1,
        "RescaleIntercept": -1024,
        "WindowCenter": [40, 400],
        "WindowWidth": [400, 2000],
    }
    path = put(tmp_path / "a.dcm", [[0, 1124], [1064, 4000]], **tags)
    # (100 - 39.5) / 399 + 0.5 = 0.6516 and 0.5 / 399 + 0.5 = 0.5013
    assert greys(path) == greys(path, "40/400") == [[0, 166], [128, 255]]
    assert greys(path, "-600/1500") == [[55, 247], [236, 255]]
    # from -1024 to 3071
    assert greys(path, "full") == [[0, 70], [66, 249]]
    signed = put(
        tmp_path / "b.dcm", [[-2048, -1], [0, 2047]], PixelRepresentation=1, RescaleSlope=2, RescaleIntercept=0
    )
    assert greys(signed, "full") == [[0, 127], [128, 255]]


def test_the_other_window_functions() -> None:
    values = np.array([0.0, 50.0, 75.0, 100.0])
    assert windowed(values, 50, 100, "LINEAR_EXACT").tolist() == [0, 0.5, 0.75, 1]
    assert windowed(values, 50, 100, "SIGMOID").round(4).tolist() == [0.1192, 0.5, 0.7311, 0.8808]
    assert windowed(values, 75, 1).tolist() == [0, 0, 1, 1]


def test_a_lookup_table_takes_precedence_over_a_window(tmp_path: Path) -> None:
    table = Tags()
    table.LUTDescriptor, table.LUTData = [4, 0, 8], [0, 200, 100, 255]
    table["LUTDescriptor"].VR, table["LUTData"].VR = "US", "US"
    path = put(tmp_path / "a.dcm", [[0, 1], [2, 3]], VOILUTSequence=[table], WindowCenter=1, WindowWidth=2)
    assert greys(path) == [[0, 200], [100, 255]]


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    path = put(tmp_path / "a.dcm", [[0, 51], [102, 255]], 8, PhotometricInterpretation="MONOCHROME1")
    assert greys(path) == [[255, 204], [153, 0]]


def test_of_several_frames_the_middle_or_the_first(tmp_path: Path) -> None:
    frames = np.full((3, 2, 2), [[[10]], [[20]], [[30]]])
    path = put(tmp_path / "a.dcm", frames, 8)
    assert (greys(path)[0][0], greys(path, frame="first")[0][0]) == (20, 10)


def test_an_enhanced_file_has_a_window_for_each_frame(tmp_path: Path) -> None:
    def item(name: str, **tags: float) -> Tags:
        inner, outer = Tags(), Tags()
        for key, value in tags.items():
            setattr(inner, key, value)
        setattr(outer, name, [inner])
        return outer

    frames = [item("FrameVOILUTSequence", WindowCenter=center, WindowWidth=256) for center in (0, 128, 500)]
    shared = item("PixelValueTransformationSequence", RescaleSlope=2, RescaleIntercept=0)
    path = put(
        tmp_path / "a.dcm",
        np.full((3, 2, 2), [[0, 50], [100, 200]]),
        SharedFunctionalGroupsSequence=[shared],
        PerFrameFunctionalGroupsSequence=frames,
    )
    assert greys(path) == [[0, 100], [200, 255]]


@pytest.mark.parametrize(
    ("name", "corner"),
    [
        ("SC_rgb_rle_2frame.dcm", [0, 255, 255]),  # the middle one of two is the second, inverted
        ("SC_ybr_full_422_uncompressed.dcm", [254, 0, 0]),
        ("SC_rgb_jpeg_dcmtk.dcm", [254, 0, 0]),
        ("examples_palette.dcm", [37, 62, 94]),
    ],
)
def test_colours(name: str, corner: list[int]) -> None:
    path = Path(str(get_testdata_file(name, download=False)))
    assert np.asarray(open_slice(path, "file", "middle", path.parent))[0, 0].tolist() == corner


@pytest.mark.parametrize("text", ["", "files", "40", "40/", "40/0", "nan/400", "40/inf"])
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(PromptFedError, match="is no window; write file, full, or CENTER/WIDTH"):
        read_window(text)


# -- layouts ------------------------------------------------------------------------------------------------------


def test_class_folders_and_whole_patients(root: Path) -> None:
    (clinic(root) / "benign" / "notes.txt").write_text("ignored")
    (root / "benign" / f"{SECRET}_0" / "0.dcm").rename(root / "benign" / f"{SECRET}_0" / "IM000")  # no suffix
    data = open_dataset(f"dicom:{root}", size=2)
    assert (data.name, data.classes, data.domain_names) == ("scans", ("benign", "malignant"), ("scans",))
    assert np.bincount(data.labels).tolist() == [10, 10]
    assert data.patients is not None
    assert len(set(data.patients.tolist())) == 10
    assert data.test.sum() == 4  # one of five patients of each class
    assert not set(data.patients[data.test].tolist()) & set(data.patients[~data.test].tolist())
    assert len(set(open_dataset(f"dicom:{root}", size=2, group="study").patients.tolist())) == 20  # type: ignore[union-attr]


def test_sites_by_folder_or_institution(root: Path) -> None:
    for site in ("east", "west"):
        clinic(root, 4, site)
    assert open_dataset(f"dicom:{root}", size=2, site="folder", test_fraction=0.5).domain_names == ("east", "west")
    data = open_dataset(f"dicom:{root}", size=2, site="institution", test_fraction=0)
    assert (data.domain_names, data.classes) == (("North", "South"), ("east", "west"))
    recipe = config.load_one("fedavg", [f"data.name=dicom:{root}", "data.site=folder"])
    assert (recipe.partition["name"], recipe.clients) == ("domain", 2)


def test_folders_train_and_test(root: Path) -> None:
    put(root / "train" / "a" / "0.dcm", PatientID="1")
    put(root / "test" / "a" / "0.dcm", PatientID="2")
    assert open_dataset(f"dicom:{root}", size=2).test.tolist() == [True, False]
    put(root / "train" / "a" / "1.dcm", PatientID="2")
    with pytest.raises(PromptFedError, match=r"1 of 2 patients have images in more than one split"):
        open_dataset(f"dicom:{root}", size=2)


@pytest.mark.parametrize("key", ["file", "patient", "study"])
def test_a_list_of_labels(root: Path, key: str, caplog: pytest.LogCaptureFixture) -> None:
    clinic(root, 4)
    lines = []
    for person in range(3):
        known = {
            "file": [f"./{('benign', 'malignant')[person % 2]}/{SECRET}_{person}/{n}.dcm" for n in range(2)],
            "patient": [f"{SECRET}-{person}"],
            "study": [f"1.2.{person}.{n}" for n in range(2)],
        }[key]
        lines += [f"{value},{('no', 'no', 'yes')[person]},{('test', 'train', 'train')[person]}" for value in known]
    (root / "labels.csv").write_text("\n".join([f"{key},Label,split", *lines]))
    with caplog.at_level(logging.WARNING, "promptfed"):
        data = open_dataset(f"dicom:{root}", size=2, labels="labels.csv")
    assert (len(data), data.classes, data.test.sum()) == (6, ("no", "yes"), 2)
    assert "2 images in" in caplog.text
    assert "not in the list of labels" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label\nx", "{}/l.csv needs, beside label, exactly one of the columns file, patient, study."),
        (
            "patient,study,label\na,b,c",
            "{}/l.csv needs, beside label, exactly one of the columns file, patient, study.",
        ),
        ("patient,label\nMUSTERMANN,", "{}/l.csv, line 2 has no label; fill in every row."),
        ("patient,label\nMUSTERMANN,a\nMUSTERMANN,a", "{}/l.csv, line 3: this patient is already listed above."),
        ("patient,label,split\nMUSTERMANN,a,x", "{}/l.csv, line 2 has an unknown split; write train, val or test."),
        ("patient,label\nMUSTERMANN,a", "l.csv lists none of the 1 images in {}."),
    ],
)
def test_lists_that_make_no_sense(root: Path, text: str, said: str) -> None:
    put(root / "a.dcm")
    (root / "l.csv").write_text(text)
    with pytest.raises(PromptFedError) as refused:
        open_dataset(f"dicom:{root}", labels="l.csv")
    assert str(refused.value) == said.format(root)


def test_files_that_hold_no_picture_are_left_out(root: Path) -> None:
    clinic(root, 4)
    report = Path(str(get_testdata_file("test-SR.dcm", download=False)))
    (root / "benign" / "report.dcm").write_bytes(report.read_bytes())
    assert len(open_dataset(f"dicom:{root}", size=2, test_fraction=0.5)) == 8


# -- what is refused, and what is not said ---------------------------------------------------------------------------


def test_nothing_that_is_said_or_kept_names_a_patient(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = clinic(root) / "benign" / f"{SECRET}_0" / "1.dcm"
    broken.write_bytes(broken.read_bytes()[:-3])
    with caplog.at_level(logging.DEBUG), pytest.raises(PromptFedError) as refused:
        open_dataset(f"dicom:{root}", size=2)
    said = str(refused.value)
    assert said.startswith(f"file 2 of 20 in {root} cannot be read as an image (its pixels are incomplete or damaged")
    assert list_files(root)[1] == broken
    out = tmp_path / "run"
    ran = promptfed(
        "run",
        "fedavg",
        f"data.name=dicom:{root}",
        "data.skip_corrupt=true",
        "rounds=1",
        "data.size=32",
        "--out",
        str(out),
    )
    assert ran.code == 0, ran
    looked = promptfed("data", "inspect", f"dicom:{root}")
    assert looked.code == 0, looked
    assert "file 2 of 20" in " ".join(looked.out.split())
    kept = b"".join(path.read_bytes() for path in [*out.rglob("*"), *(tmp_path / "home").rglob("*")] if path.is_file())
    for text in (
        said,
        caplog.text,
        ran.out,
        ran.err,
        looked.out,
        looked.err,
        *capfd.readouterr(),
        kept.decode("latin-1"),
    ):
        assert SECRET not in text


def test_a_missing_decoder_is_named_even_where_files_may_be_skipped(root: Path) -> None:
    clinic(root, 4)
    path = Path(str(get_testdata_file("MR_small_jpeg_ls_lossless.dcm", download=False)))
    (root / "benign" / "x.dcm").write_bytes(path.read_bytes())
    with pytest.raises(PromptFedError) as refused:
        open_dataset(f"dicom:{root}", skip_corrupt=True)
    assert str(refused.value) == (
        f"Images in {root} are compressed as JPEG-LS Lossless Image Compression, and a decoder for that is missing: "
        'pip install "pylibjpeg[all]".'
    )
    (why,) = inspect(f"dicom:{root}").broken.values()
    assert "JPEG-LS" in why


def test_one_patient_cannot_be_divided(root: Path) -> None:
    for n in range(4):
        put(root / "ab"[n % 2] / f"{n}.dcm", StudyInstanceUID=f"1.2.{n}")
    with pytest.raises(PromptFedError, match=r"No patient of .*scans can be set aside for testing"):
        open_dataset(f"dicom:{root}")
    assert open_dataset(f"dicom:{root}", group="study", test_fraction=0.5).test.sum() == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["data.site=folder"],
            "file 1 of 2 in {} is not in the layout site/class/…; put it into such a folder, or list the",
        ),
        (["data.window=wide"], 'data.window="wide" is no window'),
        (["data.group=person"], "data.group"),
    ],
)
def test_mistakes_are_sentences(root: Path, words: list[str], said: str) -> None:
    for n in range(2):
        put(root / "a" / f"{SECRET}{n}.dcm", PatientID=str(n))
    text = sentence(promptfed("run", "fedavg", f"data.name=dicom:{root}", *words))
    assert said.format(root) in text
    assert SECRET not in text


def test_an_empty_folder_and_a_missing_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PromptFedError, match="There is no folder"):
        open_dataset(f"dicom:{root}")
    root.mkdir()
    with pytest.raises(PromptFedError, match="holds no DICOM images"):
        open_dataset(f"dicom:{root}")
    put(root / "a" / "0.dcm")
    monkeypatch.setitem(sys.modules, "pydicom.pixels", None)
    with pytest.raises(
        PromptFedError, match=r'dicom:PATH needs the \[medical\] extra: pip install "promptfed\[medical\]"'
    ):
        open_dataset(f"dicom:{root}")
    assert pydicom.__version__
