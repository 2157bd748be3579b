"""Bundles: they answer as the run does, hold nothing else, and notice damage."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from promptfed.analysis.bundle import contents
from promptfed.analysis.bundle.contents import open_bundle, read_client, read_row
from promptfed.analysis.bundle.forgetting import forget
from promptfed.analysis.bundle.making import make_bundle
from promptfed.core.errors import PromptFedError
from promptfed.runs import config, runner
from promptfed.runs.finished import open_run
from promptfed.sites import coordinator
from promptfed.sites.settings import Federation
from promptfed.sites.worker import Worker
from support.bundles import CLIENTS, FAST, FROZEN, SMALL, answers, fails, noise, train
from support.command import environment, promptfed, sentence
from support.loopback import promptfed as command
from support.sites_in_threads import Threads
from support.tiny_runs import tiny, write_images


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    write_images(folder / "small.npz")
    write_images(folder / "large.npz", count=48, side=32)
    return folder


@pytest.fixture(scope="module")
def run(base: Path) -> Path:
    return train(base, "pfedpt")


@pytest.fixture(scope="module")
def made(run: Path, base: Path) -> Path:
    make_bundle(run, base / "made", "cpu")
    return base / "made"


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"


# -- the same answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SMALL, "moon+pt", *FROZEN])
def test_a_bundle_answers_as_the_run_to_the_last_bit(base: Path, name: str) -> None:
    folder, out = train(base, name), base / f"{name}.bundle"
    make_bundle(folder, out, "cpu")
    for client in range(CLIENTS):
        for count in (1, 7):
            assert torch.equal(answers(out, client, count), answers(folder, client, count))
    names = open_bundle(out).order
    assert not [one for one in names if one.startswith(("velocity.", "last.", "bank.", "toward."))]
    assert "context" not in names or name == "fed-cocoop"  # its text features are computed already


def test_what_all_clients_have_in_common_is_stored_once(base: Path, made: Path) -> None:
    with safe_open(made / contents.SHARED, "pt") as shared, safe_open(made / contents.CLIENTS, "pt") as rows:
        assert "head.weight" in shared.keys()  # noqa: SIM118
        assert sorted(rows.keys()) == ["prompt.down", "prompt.left", "prompt.right", "prompt.up"]
        assert {rows.get_slice(name).get_shape()[0] for name in rows.keys()} == {CLIENTS}  # noqa: SIM118


def test_bundle_json_says_what_it_is_and_nothing_of_the_images(run: Path, made: Path, base: Path) -> None:
    about = json.loads((made / contents.ABOUT).read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert (about["format"], about["method"]["name"], about["round"]) == (1, "pfedpt", 2)
    assert [one["accuracy"] for one in about["clients"].values()] == summary["accuracy"]["per_client"]
    recalls = [one["metrics"]["balanced_accuracy"] for one in about["clients"].values()]
    assert recalls == summary["metrics"]["balanced_accuracy"]["per_client"]
    assert [one["facts"] for one in about["clients"].values()] == [{"client": client} for client in range(CLIENTS)]
    assert about["classes"] == ["0", "1", "2", "3"]
    assert str(base) not in (made / contents.ABOUT).read_text()
    assert sorted(path.name for path in made.iterdir()) == [contents.ABOUT, contents.CLIENTS, contents.SHARED]


def test_a_bundle_needs_neither_the_run_nor_its_images(base: Path, tmp_path: Path) -> None:
    images = write_images(tmp_path / "gone.npz")
    ran = runner.run("fedbabu", out=tmp_path / "run", overrides=(*tiny(images), *FAST))
    make_bundle(ran.folder, tmp_path / "made", "cpu")
    before = answers(ran.folder, 1)
    shutil.rmtree(ran.folder)
    images.unlink()
    assert torch.equal(answers(tmp_path / "made", 1), before)


def test_one_clients_row_is_read_without_the_others(own: Path) -> None:
    bundle, path = open_bundle(own), own / contents.CLIENTS
    content, row = bytearray(path.read_bytes()), read_row(own, bundle, 3)
    place = content.index(contents.raw(row["prompt.up"]))
    content[place] ^= 1
    path.write_bytes(content)
    assert "is damaged" in fails(own, 3)
    assert read_client(own, bundle, 2).keys() == set(bundle.order)


# -- writing ------------------------------------------------------------------------------------------------------


def test_a_bundle_is_written_whole_or_not_at_all(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("promptfed.analysis.bundle.making.write_about", full)
    with pytest.raises(OSError, match="No space"):
        make_bundle(run, tmp_path / "made", "cpu")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_bundled_gets_one_sentence(run: Path, made: Path, tmp_path: Path) -> None:
    def ask(*words: object) -> str:
        return sentence(promptfed("bundle", *words))

    assert "exists already; give another --out" in ask(run, "--out", made)
    assert "is a bundle already" in ask(made, "--out", tmp_path / "out")
    assert "There is no " in ask(tmp_path / "nowhere", "--out", tmp_path / "out")
    assert "has no model: neither bundle.json" in ask(tmp_path, "--out", tmp_path / "out")
    assert 'Unknown device "gpu"' in ask(run, "--out", tmp_path / "out", "--device", "gpu")
    assert not (tmp_path / "out").exists()


def test_a_backbone_with_other_weights_is_refused(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    bundle = make_bundle(train(base, "promptfl"), out, "cpu")
    assert len(bundle.fingerprint) == 64
    contents.write_about(out, replace(bundle, fingerprint="0" * 64))
    assert "The weights of embedded are not those" in fails(out)


# -- damage -------------------------------------------------------------------------------------------------------


def flips(folder: Path, count: int) -> Iterator[tuple[Path, bytes, bytes]]:
    """Yield files with one bit flipped, spread over all files of a folder."""
    draw, files = random.Random(0), sorted(folder.iterdir())
    for number in range(count):
        path = files[number % len(files)]
        content = bytearray(before := path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        yield path, before, bytes(content)


def test_a_flipped_bit_is_noticed_or_harmless(own: Path) -> None:
    right, said, files = answers(own, 1), [], set()
    for path, before, after in flips(own, 600):
        path.write_bytes(after)
        try:
            assert torch.equal(answers(own, 1), right)
            assert path.name == contents.CLIENTS  # a bit of another client's row
        except PromptFedError as error:
            said.append((str(path), str(error)))
        files.add(path.name)
        path.write_bytes(before)
    assert files == {contents.ABOUT, contents.SHARED, contents.CLIENTS}
    assert len(said) > 400
    assert [error for path, error in said if path not in error] == []
    assert torch.equal(answers(own, 1), right)


def test_forgetting_checks_every_bit_of_the_rows(own: Path) -> None:
    for path, before, after in flips(own, 150):
        if path.name != contents.SHARED:
            path.write_bytes(after)
            with pytest.raises(PromptFedError, match=r"is damaged|has format"):
                forget(own, 0)
            path.write_bytes(before)
    assert list(open_bundle(own).clients) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", [contents.ABOUT, contents.SHARED, contents.CLIENTS])
def test_a_missing_or_shortened_file_gets_one_sentence(own: Path, name: str, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(noise(1, (8, 8))[0]).save(photo)
    path = own / name
    for content in (path.read_bytes()[:-1], path.read_bytes()[:20], b"", path.read_bytes() + b" "):
        path.write_bytes(content)
        assert "is damaged" in sentence(promptfed("predict", own, photo, "--client", 0))
    path.unlink()
    said = sentence(promptfed("predict", own, photo, "--client", 0))
    assert ("has no model: neither bundle.json" if name == contents.ABOUT else f"{path} is missing") in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is damaged"),
        ("{}", "has format None"),
        ('{"format": 2}', "has format 2; this version of PromptFed reads format 1"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 1, "sha256": "0"}', "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("no json", "is damaged"),
    ],
)
def test_a_foreign_bundle_json_gets_one_sentence(own: Path, text: str, said: str) -> None:
    (own / contents.ABOUT).write_text(text)
    assert said in fails(own)
    assert said in sentence(promptfed("forget", own, "--client", 0))


@pytest.mark.real_processes
def test_the_command_takes_no_bundle_that_was_changed(own: Path, tmp_path: Path) -> None:
    Image.fromarray(noise(1, (8, 8))[0]).save(tmp_path / "photo.png")
    shared = (own / contents.SHARED).read_bytes()
    (own / contents.SHARED).write_bytes(shared[:-1] + bytes([shared[-1] ^ 1]))
    changed = command("predict", own, tmp_path / "photo.png", "--client", 0, cwd=tmp_path)
    (own / contents.ABOUT).write_text('{"format": 2}')
    foreign = command("predict", own, tmp_path / "photo.png", "--client", 0, cwd=tmp_path)
    for done, said in ((changed, "is damaged"), (foreign, "has format 2")):
        assert (done.returncode, done.stdout) == (2, "")
        assert said in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_a_sealed_bundle_json_that_describes_no_bundle_is_refused(own: Path) -> None:
    about = json.loads((own / contents.ABOUT).read_text())
    del about["sha256"]
    outside = about | {"rows": about["rows"] | {"name": "../clients.safetensors"}}
    for wrong in ({"format": 1}, outside, about | {"more": 1}, about | {"shape": 3}, about | {"clients": {"a": {}}}):
        (own / contents.ABOUT).write_text(contents._sealed(wrong))
        assert "is damaged" in fails(own)


# -- sites --------------------------------------------------------------------------------------------------------


def test_a_sites_bundle_has_its_row_alone(tmp_path: Path) -> None:
    federation = Federation(("north", "south"))
    files = {name: write_images(tmp_path / f"{name}.npz", count=24) for name in federation.sites}
    workers = {name: Worker(name, tmp_path / name, str(files[name]), "cpu") for name in federation.sites}
    words = [*tiny(files["north"]), "clients=2", "rounds=1", *FAST[:1], FAST[2]]
    coordinator.create(tmp_path / "run", config.load_one("pfedpt", words), federation)
    exchange = Threads({name: worker.answer for name, worker in workers.items()})
    coordinator.conduct(tmp_path / "run", federation, exchange, lambda line: None)
    (home,) = (tmp_path / "south" / "runs").iterdir()
    bundle = make_bundle(home, tmp_path / "made", "cpu")
    report = json.loads((home / "report.json").read_text())
    (client,) = bundle.clients.values()
    assert (client.name, client.accuracy, dict(client.facts)) == ("south", report["accuracy"], {"client": 1})
    assert torch.equal(answers(tmp_path / "made", None), answers(home, None))
    assert torch.equal(answers(tmp_path / "made", 1), answers(home, None))
    assert "has no client 0; it has 1." in fails(tmp_path / "made", 0)
    with pytest.raises(PromptFedError, match="the models are at the sites"):
        make_bundle(tmp_path / "run", tmp_path / "other", "cpu")


# -- the command --------------------------------------------------------------------------------------------------


def test_the_commands_answer_as_from_the_run(run: Path, tmp_path: Path) -> None:
    photo, out = tmp_path / "photo.png", tmp_path / "bundles" / "made"
    Image.fromarray(noise(1, open_run(run).sides)[0]).save(photo)
    assert promptfed("bundle", run, "--out", out).out == f"{out}: 4 clients of pfedpt, 8.44 kB\n"
    asked = [promptfed("predict", source, photo, "--client", 3, "--json") for source in (run, out)]
    assert [one.code for one in asked] == [0, 0]
    assert asked[0].out == asked[1].out
    assert f"choose one with --client: {', '.join(map(str, range(CLIENTS)))}." in sentence(
        promptfed("predict", out, photo)
    )


def test_opening_a_client_imports_nothing_for_training(made: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from promptfed.analysis import predict\n"
        "predict.load(Path(sys.argv[1]), 1, 'cpu')\n"
        "print(*sys.modules)"
    )
    opened = subprocess.run(
        [sys.executable, "-c", code, str(made)], capture_output=True, text=True, check=True, env=environment()
    )
    slow = {"torch._dynamo", "sympy", "pandas", "matplotlib", "sklearn", "transformers", "promptfed.results.report"}
    assert slow & set(opened.stdout.split()) == set()
