"""A user's own photographs: layouts, odd files, corrupt files, the split and the cache."""

import logging
import os
import struct
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from promptfed.core.errors import PromptFedError
from promptfed.data import open_dataset
from promptfed.data import photos as module
from promptfed.data.folder import scan
from promptfed.data.photos import decode, open_rgb
from promptfed.data.split import stratified


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPTFED_HOME", str(tmp_path / "home"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "pets"


def put(path: Path, level: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (level, 0, 0)).save(path)
    return path


def test_classes_in_folders(root: Path) -> None:
    for n, name in enumerate(("dog/b.PNG", "cat/a.bmp", "dog/a.webp", "cat/c.JPEG", "cat/b.jpg")):
        put(root / name, 10 * n)
    (root / "cat" / "notes.txt").write_text("ignored")
    (root / ".hidden").mkdir()
    data = open_dataset(f"folder:{root}", size=4, test_fraction=0)
    assert data.images.shape == (5, 4, 4, 3)
    assert data.classes == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.images[[0, 4], 0, 0].tolist() == [[10, 0, 0], [0, 0, 0]]
    assert not data.test.any()
    assert (data.name, data.domain_names, set(data.domains.tolist())) == ("pets", ("pets",), {0})


def test_test_images_that_cannot_be_read_are_not_replaced(root: Path) -> None:
    for name in ("train/a/0.png", "train/a/1.png", "val/a/2.png"):
        put(root / name)
    (root / "test" / "a").mkdir(parents=True)
    (root / "test" / "a" / "3.png").write_bytes(b"no image")
    with pytest.raises(PromptFedError, match=r"No test image of .*pets can be read"):
        open_dataset(f"folder:{root}", size=4, skip_corrupt=True)


@pytest.mark.parametrize("torn", [b"", b"torn", b"[]"])
@pytest.mark.parametrize("file", ["labels.npy", "images.npy", "names.json"])
def test_a_kept_copy_that_is_damaged_is_made_again(root: Path, tmp_path: Path, file: str, torn: bytes) -> None:
    put(root / "cat" / "a.png", 7)
    first = open_dataset(f"folder:{root}", size=4, test_fraction=0)
    (kept,) = (tmp_path / "home").rglob(file)
    kept.write_bytes(torn)
    again = open_dataset(f"folder:{root}", size=4, test_fraction=0)
    assert np.array_equal(first.images, again.images)
    assert again.classes == ("cat",)


def test_domains_of_classes_in_folders(root: Path) -> None:
    for domain, classes in {"sketch": "ab", "photo": "bc"}.items():
        for name in classes:
            put(root / domain / name / "0.png")
    data = open_dataset(f"folder:{root}")
    assert data.classes == ("a", "b", "c")
    assert data.domain_names == ("photo", "sketch")
    assert data.domains.tolist() == [0, 0, 1, 1]
    assert data.labels.tolist() == [1, 2, 0, 1]


@pytest.mark.parametrize("domain", ["", "web"])
def test_folders_train_and_test_are_the_official_split(root: Path, domain: str) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for n in range(count):
            put(root / split / domain / "cat" / f"{n}.png")
    data = open_dataset(f"folder:{root}", test_fraction=0.5)
    assert data.test.tolist() == [False, False, False, True, True]
    assert data.domain_names == (domain or "pets",)


def test_val_stands_in_for_test_where_there_is_none(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train/cat/0.png", "train/cat/1.png", "val/cat/0.png", "more/cat/0.png"):
        put(root / name)
    with caplog.at_level(logging.WARNING, "promptfed"):
        assert [photo.test for photo in scan(root)] == [False, False, True]
    assert f"{root / 'more'} is left out" in caplog.text


def test_train_val_and_test_are_the_official_splits(root: Path) -> None:
    for n, name in enumerate(("train/cat/0.png", "train/cat/1.png", "val/cat/0.png", "test/cat/0.png")):
        put(root / name, 10 * n)
    data = open_dataset(f"folder:{root}")
    assert data.val is not None
    assert data.images[data.val, 0, 0, 0].tolist() == [20]
    assert data.images[data.test, 0, 0, 0].tolist() == [30]


def test_a_class_only_in_test_is_an_error(root: Path) -> None:
    put(root / "train" / "cat" / "0.png")
    put(root / "test" / "dog" / "0.png")
    with pytest.raises(PromptFedError, match=r'Class "dog" of .* has no training images'):
        scan(root)


def test_an_empty_class_folder_is_named(root: Path) -> None:
    put(root / "cat" / "0.png")
    (root / "dog").mkdir()
    with pytest.raises(PromptFedError, match=r"The class folder .*dog holds no images"):
        scan(root)


@pytest.mark.parametrize(
    ("name", "said"), [("a.HEIC", "; convert its photographs to JPEG."), ("a.dcm", "; for DICOM files write dicom:{}.")]
)
def test_files_of_other_kinds_are_explained(root: Path, name: str, said: str) -> None:
    (root / "dog").mkdir(parents=True)
    (root / "dog" / name).touch()
    with pytest.raises(PromptFedError) as refused:
        scan(root)
    assert str(refused.value).endswith(f"){said.format(root)}")
    with pytest.raises(
        PromptFedError, match=r"pets is a folder, not a CSV file; for folders of photographs write folder:"
    ):
        open_dataset(f"csv:{root}")


def test_an_empty_class_folder_of_a_domain_is_named(root: Path) -> None:
    put(root / "web" / "cat" / "0.png")
    (root / "web" / "dog").mkdir()
    with pytest.raises(PromptFedError, match=r"The class folder .*web.dog holds no images"):
        scan(root)


def test_an_empty_site_is_no_mixture_of_layouts(root: Path) -> None:
    put(root / "web" / "cat" / "0.png")
    (root / "camera").mkdir()
    with pytest.raises(PromptFedError, match=r"camera holds no photographs and no folders of classes; fill it"):
        scan(root)


def test_mixed_layouts_are_an_error(root: Path) -> None:
    put(root / "cat" / "0.png")
    put(root / "web" / "dog" / "0.png")
    with pytest.raises(PromptFedError, match="mixes two layouts"):
        scan(root)


def test_no_folder_and_no_classes_are_errors(root: Path) -> None:
    with pytest.raises(PromptFedError, match="There is no folder"):
        open_dataset(f"folder:{root}")
    put(root / "0.png")
    with pytest.raises(PromptFedError, match="holds no folders"):
        open_dataset(f"folder:{root}")


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 40, [40, 40, 40]),
        ("1", 1, [255, 255, 255]),
        ("LA", (40, 0), [255, 255, 255]),
        ("RGBA", (40, 0, 0, 0), [255, 255, 255]),
        ("RGBA", (40, 0, 0, 255), [40, 0, 0]),
        ("I;16", 40 * 256, [40, 40, 40]),
    ],
)
def test_every_kind_of_pixel_becomes_rgb(
    tmp_path: Path, mode: str, colour: int | tuple[int, ...], expected: list[int]
) -> None:
    Image.new(mode, (5, 5), colour).save(tmp_path / "a.png")
    assert decode(tmp_path / "a.png", 3)[1, 1].tolist() == expected


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 40, [40, 40, 40]),
        ("RGB", (40, 50, 60), [40, 50, 60]),
        ("RGBA", (40, 0, 0, 0), [255, 255, 255]),
        ("I;16", 40 * 256 + 255, [40, 40, 40]),
        ("I;16B", 40 * 256, [40, 40, 40]),
        ("I", 40 * 256, [40, 40, 40]),
        ("CMYK", (0, 0, 0, 255), [0, 0, 0]),
    ],
)
def test_tiff_files_of_every_kind(
    tmp_path: Path, mode: str, colour: int | tuple[int, ...], expected: list[int]
) -> None:
    Image.new(mode, (5, 5), colour).save(tmp_path / "a.tiff")
    assert decode(tmp_path / "a.tiff", 3)[1, 1].tolist() == expected


@pytest.mark.parametrize(("mode", "white", "level"), [("I;16", 65535, 0), ("I;16", 0, 255), ("I;16", 40 * 256, 215)])
def test_a_grey_tiff_whose_zero_is_white(tmp_path: Path, mode: str, white: int, level: int) -> None:
    Image.new(mode, (5, 5), white).save(tmp_path / "a.tif", tiffinfo={262: 0})
    with Image.open(tmp_path / "a.tif") as opened:
        assert opened.getexif()[262] == 0
    assert decode(tmp_path / "a.tif", 3)[1, 1].tolist() == [level] * 3


@pytest.mark.parametrize(("mode", "colour", "why"), [("F", 0.5, "floating-point"), ("I", 70000, "beyond 0 … 65535")])
def test_pixels_without_a_known_range_are_refused(root: Path, mode: str, colour: float, why: str) -> None:
    put(root / "cat" / "0.png")
    Image.new(mode, (5, 5), colour).save(root / "cat" / "1.tif")
    with pytest.raises(PromptFedError, match=rf"1\.tif cannot be read as an image \(.*{why}"):
        open_dataset(f"folder:{root}")


def test_a_tiff_of_12_bits_fills_the_range(tmp_path: Path) -> None:
    pixels = bytes([0x80, 0x0F, 0xFF])  # 2048 and 4095
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 122), (277, 1), (278, 1), (279, 3)]
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries
    (tmp_path / "a.tif").write_bytes(head.ljust(122, b"\0") + pixels)
    assert np.asarray(open_rgb(tmp_path / "a.tif")).tolist() == [[[128] * 3, [255] * 3]]


@pytest.mark.parametrize(
    ("kind", "pixel", "expected"),
    [(0, [40 * 256 + 7], [40, 40, 40]), (2, [2560, 5120, 65535], [10, 20, 255]), (4, [40 * 256, 0], [255, 255, 255])],
)
def test_png_files_of_16_bits(tmp_path: Path, kind: int, pixel: list[int], expected: list[int]) -> None:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head, row = struct.pack(">IIBBBBB", 1, 1, 16, kind, 0, 0, 0), b"\0" + struct.pack(f">{len(pixel)}H", *pixel)
    whole = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + whole)
    assert decode(tmp_path / "a.png", 1)[0, 0].tolist() == expected


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_of_an_animation_the_first_frame_counts(root: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (4, 4), (level, 0, 0)) for level in (0, 255, 255)]
    (root / "cat").mkdir(parents=True)
    frames[0].save(root / "cat" / f"a.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    data = open_dataset(f"folder:{root}", size=4, test_fraction=0)
    assert data.images[0, 0, 0].tolist() == [0, 0, 0]


def test_a_jpeg_in_printing_colours(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    assert decode(tmp_path / "a.jpg", 1)[0, 0].tolist() == [255, 0, 0]


def test_a_16_bit_photograph_is_turned_upright_too(tmp_path: Path) -> None:
    levels = np.array([[0, 0], [65535, 65535]], np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.fromarray(levels).save(tmp_path / "a.png", exif=exif)
    assert decode(tmp_path / "a.png", 2)[:, 0, 0].tolist() == [255, 0]


def test_tiff_files_count(root: Path) -> None:
    for n, name in enumerate(("cat/a.tif", "cat/b.TIFF", "cat/c.png")):
        put(root / name, 10 * n)
    data = open_dataset(f"folder:{root}", size=4, test_fraction=0)
    assert data.images[:, 0, 0, 0].tolist() == [0, 10, 20]


def test_palette_images_with_a_transparent_entry(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "solid.png")
    image.save(tmp_path / "clear.png", transparency=1)
    assert decode(tmp_path / "solid.png", 4)[0, 0].tolist() == [10, 20, 30]
    assert decode(tmp_path / "clear.png", 4)[0, 0].tolist() == [255, 255, 255]


def test_a_photograph_taken_sideways_is_turned_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 8))
    image.paste((255, 255, 255), (0, 0, 8, 4))  # white on top as stored
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    image.save(tmp_path / "a.png", exif=exif)
    assert decode(tmp_path / "a.png", 8)[[0, 7], 4, 0].tolist() == [0, 255]


def test_a_corrupt_image_is_named(root: Path) -> None:
    put(root / "cat" / "0.png")
    bad = put(root / "cat" / "1.png")
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(PromptFedError, match=r"1\.png cannot be read .*set data\.skip_corrupt=true to leave it out"):
        open_dataset(f"folder:{root}")


def test_corrupt_images_may_be_left_out_and_are_counted(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(3):
        put(root / "cat" / f"{n}.png", 10 * n)
    (root / "cat" / "1.png").write_bytes(b"not an image")
    with caplog.at_level(logging.WARNING, "promptfed"):
        data = open_dataset(f"folder:{root}", skip_corrupt=True)
    assert data.images[:, 0, 0, 0].tolist() == [0, 20]
    assert f"1 of 3 images in {root} is corrupt and was left out" in caplog.text
    with pytest.raises(PromptFedError, match=r"1\.png"):
        open_dataset(f"folder:{root}", skip_corrupt=False)


def test_a_class_of_corrupt_images_only_is_an_error(root: Path) -> None:
    put(root / "cat" / "0.png")
    put(root / "dog" / "0.png").write_bytes(b"not an image")
    with pytest.raises(PromptFedError, match=r'Class "dog" .* has no readable training image left'):
        open_dataset(f"folder:{root}", skip_corrupt=True)


def test_the_second_load_decodes_nothing_until_a_file_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: Counter[str] = Counter()

    def counting(path: Path) -> object:
        decoded[path.name] += 1
        return open_rgb(path)

    monkeypatch.setattr(module, "open_rgb", counting)
    for n in range(3):
        put(root / "cat" / f"{n}.png", n)
    first = open_dataset(f"folder:{root}")
    again = open_dataset(f"folder:{root}")
    assert (first.images == again.images).all()
    assert decoded == {"0.png": 1, "1.png": 1, "2.png": 1}
    open_dataset(f"folder:{root}", size=16)
    assert decoded["1.png"] == 2
    put(root / "cat" / "1.png", 77)
    os.utime(root / "cat" / "1.png", ns=(1, 1))
    assert open_dataset(f"folder:{root}").images[1, 0, 0, 0] == 77


@given(
    groups=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=60),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_the_split_is_stratified_and_leaves_something_to_train_on(
    groups: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    domains, labels = np.array(groups, np.int64).T
    test = stratified(labels, domains, fraction, seed)
    assert (test == stratified(labels, domains, fraction, seed)).all()
    for domain, label in set(groups):
        mine = test[(domains == domain) & (labels == label)]
        assert int(mine.sum()) == min(int(len(mine) * fraction + 0.5), len(mine) - 1)


def test_another_seed_tests_on_other_images() -> None:
    labels = np.repeat(np.arange(2), 50)
    one, two = (stratified(labels, labels * 0, 0.2, seed) for seed in (0, 1))
    assert one.sum() == two.sum() == 20
    assert (one != two).any()


def test_decoded_copies_are_their_owners_alone(root: Path, tmp_path: Path) -> None:
    put(root / "cat" / "a.png", 7)
    open_dataset(f"folder:{root}", size=4, test_fraction=0)
    (kept,) = (tmp_path / "home" / "folders").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700


def test_a_pipe_among_photographs_is_not_waited_for(root: Path) -> None:
    put(root / "cat" / "a.png")
    os.mkfifo(root / "cat" / "x.png")
    with pytest.raises(PromptFedError, match=r"x\.png cannot be read as an image \(it is not a regular file\)"):
        open_dataset(f"folder:{root}", size=4)
    assert len(open_dataset(f"folder:{root}", size=4, skip_corrupt=True, test_fraction=0)) == 1


def test_names_of_photographs_need_not_be_utf_8(root: Path) -> None:
    put(root / "cat" / "a.png")
    (root / "cat" / "a.png").rename(root / "cat" / os.fsdecode(b"\xff\xfe.png"))
    assert len(open_dataset(f"folder:{root}", size=4, test_fraction=0)) == 1


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\x1b[2Jb", b"a\nb"])
def test_classes_whose_names_cannot_be_shown_are_refused(name: bytes, root: Path) -> None:
    put(root / "cat" / "a.png")
    (root / "cat").rename(root / os.fsdecode(name))
    with pytest.raises(PromptFedError, match=r"Class '[ -~]+' of pets cannot be shown; rename it"):
        open_dataset(f"folder:{root}", size=4, test_fraction=0)
