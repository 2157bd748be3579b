"""The images are built, and do what they are for: as a user without rights, in a file system that is read-only."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.containers import Builder, Image, first_process, require_builder, stop
from support.loopback import free_ports, promptfed, until
from support.tiny_server import picture, tiny_bundle

PATIENCE = 300.0
NOBODY_ELSE = {"Uid": "10001", "CapEff": "0000000000000000"}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    require_builder()
    made = Builder(tmp_path_factory.mktemp("images"))
    made.make_base()
    yield made
    made.buildah("rm", "--all")
    made.buildah("rmi", "--all", "--force")


def status(started: "subprocess.Popen[bytes]") -> dict[str, str]:
    """Return as whom the first process inside runs, and with which capabilities."""
    lines = Path(f"/proc/{first_process(started)}/status").read_text().splitlines()
    return {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if key in NOBODY_ELSE}


def own(folder: Path, image: Image) -> Path:
    """Give a folder and all in it to the image's user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, int(image.user), int(image.user))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_of_serve_answers(builder: Builder, tmp_path: Path) -> None:
    image, log = builder.build("examples/serving/Dockerfile", "promptfed-serve"), tmp_path / "log"
    (tmp_path / "bundles").mkdir()
    bundle = tiny_bundle(tmp_path / "bundles")
    token = promptfed("token", bundle, "--client", "1", cwd=tmp_path).stdout.strip()
    own(tmp_path / "bundles", image)
    (port,) = free_ports(1)
    words = ["/bundles/shops", "--host", "0.0.0.0", "--port", str(port)]
    started = image.start(words, [(tmp_path / "bundles", "/bundles", "ro")], log)
    try:
        until(lambda: "Serving 4 clients" in log.read_text() or started.poll() is not None, PATIENCE)
        assert started.poll() is None, log.read_text()
        assert status(started) == NOBODY_ELSE
        kind, *check = image.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        check[-1] = check[-1].replace(":8000/", f":{port}/")
        assert (done := image.execute(started, *check)).returncode == 0, done.stderr
        sent = {"Content-Type": "image/png", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/predict?client=1", picture(), sent)
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert sum(one["probability"] for one in answer["images"][0]["classes"]) <= 1.0001
        assert "Read-only file system" in image.execute(started, "touch", "/opt/x").stderr
    finally:
        code = stop(started)
    assert code == 0, log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_of_sites_is_a_coordinator_and_a_site(builder: Builder, tmp_path: Path) -> None:
    image = builder.build("examples/sites/Dockerfile", "promptfed-sites")
    folder, log = own(make_folders(tmp_path), image), tmp_path / "log"
    home = [(folder / "federation", "/federation", "rw"), (folder / "fed.toml", "/fed.toml", "ro")]
    init = image.start(["init", "/fed.toml", "--out", "/federation"], home, log)
    assert init.wait(PATIENCE) == 0, log.read_text()
    (folder / "federation" / "kits" / "street.zip").rename(folder / "kit" / "kit.zip")
    place = [
        (folder / "kit", "/kit", "ro"),
        (folder / "photographs", "/data", "ro"),
        (folder / "state", "/state", "rw"),
    ]
    server, started = image.start(["start", "--federation", "/federation"], home, log), []
    try:
        started.append(server)
        healthy(image, server, "/federation", log)
        doctor = ["doctor", "/kit/kit.zip", "--data", "/data", "--home", "/state"]
        assert image.start(doctor, place, log).wait(PATIENCE) == 0, log.read_text()
        site = image.start(["join", "/kit/kit.zip", "--data", "/data", "--home", "/state"], place, log)
        started.append(site)
        until(lambda: "its log is /state/site.log" in log.read_text() or site.poll() is not None, PATIENCE)
        healthy(image, site, "/state", log)
        assert status(server) == status(site) == NOBODY_ELSE
        words = ["fedavg", "rounds=1", "device=cpu", "backbone.channels=[4, 4]", "backbone.hidden=[8]"]
        ran = image.execute(server, "promptfed", "sites", "run", *words, "--federation", "/federation")
        assert ran.returncode == 0, ran.stdout + ran.stderr + log.read_text()
    finally:
        codes = [stop(one) for one in reversed(started)]
    assert codes == [0, 0], log.read_text()
    assert list((folder / "state" / "runs").glob("*/model.safetensors"))


def make_folders(folder: Path) -> Path:
    """Make what the compose files mount: folders for the coordinator and the site, photographs, and a fed.toml."""
    port, admin_port = free_ports(2)
    made = folder / "mounted"
    for name in ("federation", "kit", "state", "photographs/dark", "photographs/light"):
        (made / name).mkdir(parents=True, mode=0o700)
    (made / "fed.toml").write_text(f'sites = ["street"]\nport = {port}\nadmin_port = {admin_port}\n')
    for number in range(40):
        (made / "photographs" / ("dark", "light")[number % 2] / f"{number}.png").write_bytes(picture(number, 16))
    return made


def healthy(image: Image, started: "subprocess.Popen[bytes]", folder: str, log: Path) -> None:
    """Wait for the health check of the compose file to be content."""
    done = image.execute(started, "promptfed", "sites", "health", "--wait", str(PATIENCE / 2), folder)
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()
