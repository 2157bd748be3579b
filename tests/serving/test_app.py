"""The server's answers: as `promptfed predict`, within its limits, and only to whom they belong."""

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from promptfed.analysis import predict
from promptfed.serving import explain
from promptfed.serving.app import make_app
from promptfed.serving.limits import ServingLimits
from promptfed.serving.openapi import document
from promptfed.serving.recorder import HEADERS, KNOWN
from promptfed.serving.service import Service
from promptfed.serving.tokens import beside, hashed, new_token, write_hashes
from support.tiny_server import copied, picture, tiny_bundle, visit


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("app"))


def expected(bundle: Path, client: int, content: bytes, tmp_path: Path) -> list[dict[str, Any]]:
    """Return what `promptfed predict` says of a picture."""
    photo = tmp_path / "photo.png"
    photo.write_bytes(content)
    (answer,) = predict.predict(predict.load(bundle, client, "cpu"), [photo])
    return [{"class": name, "probability": pytest.approx(chance, abs=1e-5)} for name, chance in answer.classes]


def test_answers_are_those_of_predict(bundle: Path, tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        asked = [client.post(f"/v1/predict?client={n % 4}", content=picture(n, 8 + n)) for n in range(8)]
        return list(await asyncio.gather(*asked))

    for number, answer in enumerate(visit(bundle, work=work)):
        right = expected(bundle, number % 4, picture(number, 8 + number), tmp_path)
        assert answer.status_code == 200
        assert answer.json() == {"client": str(number % 4), "images": [{"classes": right}]}


def test_a_form_with_several_images_is_a_batch(bundle: Path, tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        files = [("image", (f"{n}.jpg", picture(n, kind=kind))) for n, kind in enumerate(("PNG", "BMP"))]
        return await client.post("/v1/predict?client=1&top=1", files=files)

    answer = visit(bundle, work=work).json()
    right = [expected(bundle, 1, picture(n), tmp_path)[:1] for n in (0, 1)]
    assert answer["images"] == [{"classes": one} for one in right]


def test_everything_wrong_gets_its_status_and_a_sentence(bundle: Path) -> None:
    limits = ServingLimits(body=4000, pixels=1000, images=2)
    big = io.BytesIO()
    Image.new("L", (50, 21)).save(big, "PNG")
    three = [("image", ("a", picture()))] * 3
    cases: list[tuple[int, str, str, dict[str, Any]]] = [
        (400, "POST", "/v1/predict", {"content": picture()}),
        (404, "POST", "/v1/predict?client=4", {"content": picture()}),
        (404, "POST", "/v1/predict?client=", {"content": picture()}),
        (400, "POST", "/v1/predict?client=1", {"content": b""}),
        (422, "POST", "/v1/predict?client=1", {"content": b"no picture"}),
        (413, "POST", "/v1/predict?client=1", {"content": big.getvalue()}),
        (413, "POST", "/v1/predict?client=1", {"content": bytes(4001)}),
        (413, "POST", "/v1/predict?client=1", {"files": three}),
        (415, "POST", "/v1/predict?client=1", {"content": b"{}", "headers": {"content-type": "application/json"}}),
        (400, "POST", "/v1/predict?client=1", {"content": b"x", "headers": {"content-type": "multipart/form-data"}}),
        (400, "POST", "/v1/predict?client=1&top=0", {"content": picture()}),
        (400, "POST", "/v1/predict?client=1&top=many", {"content": picture()}),
        (400, "POST", "/v1/explain?client=1&grid=9", {"content": picture()}),
        (403, "POST", "/v1/predict?client=1", {"content": picture(), "headers": {"origin": "http://else.org"}}),
        (400, "POST", "/v1/predict?client=1", {"content": picture(), "headers": {"origin": "http://["}}),
        (404, "GET", "/v2/predict", {}),
        (405, "GET", "/v1/predict", {}),
        (405, "DELETE", "/v1/clients", {}),
    ]

    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        return [await client.request(method, path, **more) for _, method, path, more in cases]

    answers = visit(bundle, work=work, limits=limits)
    assert [answer.status_code for answer in answers] == [status for status, *_ in cases]
    for answer in answers:
        (sentence,) = answer.json().values()
        assert sentence[0].isupper()
        assert sentence[-1] == "."
    assert answers[5].json()["error"] == "The image has 50 × 21 pixels; up to 1,000 in all are read."


def test_an_explanation_is_what_each_part_is_worth(bundle: Path) -> None:
    content = picture(3)

    async def work(client: httpx.AsyncClient, service: Service) -> tuple[Any, Any]:
        whole = await client.post("/v1/explain?client=2&grid=2", content=content)
        mean = [round(255 * part) for part in service.opened.bundles[0].about.mean]
        image = np.asarray(Image.open(io.BytesIO(content))).copy()
        image[4:, :4] = mean
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        part = await client.post("/v1/predict?client=2&top=9", content=stream.getvalue())
        return whole.json(), part.json()

    whole, part = visit(bundle, work=work)
    (left,) = (one["probability"] for one in part["images"][0]["classes"] if one["class"] == whole["class"])
    assert whole["grid"][1][0] == pytest.approx(whole["probability"] - left, abs=1e-5)
    assert [len(row) for row in whole["grid"]] == [2, 2]


def test_covering_paints_every_part_once() -> None:
    image = np.full((5, 7, 3), 9, np.uint8)
    made = explain.covered(image, 2, (1.0, 0.0, 0.0))
    assert (made[0] == 9).all()
    painted = (made[1:] == (255, 0, 0)).all(-1)
    assert (painted.sum(0) == 1).all()
    assert painted.sum((1, 2)).tolist() == [8, 6, 12, 9]


def test_what_there_is(bundle: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        await client.post("/v1/predict?client=1", content=picture())
        return [await client.get(path) for path in KNOWN if path not in ("/v1/predict", "/v1/explain", "/v1/reload")]

    answers = {answer.url.path: answer for answer in visit(bundle, work=work)}
    assert {answer.status_code for answer in answers.values()} == {200}
    found = answers["/v1/clients"].json()
    assert found["total"] == 4
    assert [one["client"] for one in found["clients"]] == ["0", "1", "2", "3"]
    assert answers["/v1/model"].json()["bundles"][0]["method"] == "pfedpt"
    assert answers["/openapi.json"].json() == document()
    assert set(document()["paths"]) == set(KNOWN) - {"/", "/app.js", "/app.css", "/icon.svg", "/openapi.json"}
    counted = answers["/metrics"].text
    for line in (
        'promptfed_requests_total{route="/v1/predict",status="200"} 1',
        'promptfed_batch_images_bucket{le="1"} 1',
        "promptfed_images_total 1",
        "promptfed_queue_images 0",
        'promptfed_request_seconds_count{route="/v1/predict"} 1',
    ):
        assert f"\n{line}\n" in counted
    for answer in answers.values():
        assert all(answer.headers[name.decode()] == value.decode() for name, value in HEADERS.items())


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_opens_its_own_row_alone(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    mine, operators, gone = new_token(), new_token(), new_token()
    write_hashes(beside(own), {hashed(mine): 2, hashed(operators): None, hashed(gone): 9})

    async def work(client: httpx.AsyncClient, service: Service) -> list[Any]:
        async def ask(path: str, token: str | None, method: str = "POST") -> tuple[int, Any]:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            content = picture() if method == "POST" else None
            answer = await client.request(method, path, content=content, headers=headers)
            return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else ""

        found = [
            await ask("/v1/predict?client=2", mine),
            await ask("/v1/predict", mine),
            await ask("/v1/predict?client=3", mine),
            await ask("/v1/predict?client=77", mine),
            await ask("/v1/predict?client=3", operators),
            await ask("/v1/predict", operators),
            await ask("/v1/predict", gone),
            await ask("/v1/predict?client=2", None),
            await ask("/v1/predict?client=2", mine[:-1]),
            await ask("/v1/predict?client=2", hashed(mine)),
            await ask("/v1/clients", mine, "GET"),
            await ask("/metrics", mine, "GET"),
            await ask("/metrics", operators, "GET"),
            await ask("/v1/reload", mine),
            await ask("/healthz", None, "GET"),
        ]
        write_hashes(beside(own), {hashed(operators): None})
        return [*found, await ask("/v1/predict?client=2", mine)]

    answers = visit(own, work=work)
    statuses = [status for status, _ in answers]
    assert statuses == [200, 200, 403, 403, 200, 400, 404, 401, 401, 401, 200, 403, 200, 403, 200, 401]
    assert answers[1][1]["client"] == "2"
    assert [one["client"] for one in answers[10][1]["clients"]] == ["2"]


# -- crowds -----------------------------------------------------------------------------------------------------------


def test_a_crowd_is_answered_in_batches_and_no_request_waits_for_a_timer(bundle: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> tuple[set[int], list[int]]:
        sizes: list[int] = []
        service.batcher.seen = sizes.append
        asked = [client.post(f"/v1/predict?client={n % 4}", content=picture(n)) for n in range(40)]
        return {answer.status_code for answer in await asyncio.gather(*asked)}, sizes

    statuses, sizes = visit(bundle, work=work, limits=ServingLimits(batch=16))
    assert statuses == {200}
    assert sum(sizes) == 40
    assert max(sizes) <= 16


def test_beyond_the_queue_the_answer_is_429_and_later_200(bundle: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> tuple[list[httpx.Response], httpx.Response, int]:
        asked = [client.post(f"/v1/predict?client={n % 4}", content=picture(n)) for n in range(40)]
        answers = list(await asyncio.gather(*asked))
        return answers, await client.post("/v1/predict?client=1", content=picture()), service.pending

    answers, later, pending = visit(bundle, work=work, limits=ServingLimits(queue=5))
    assert {answer.status_code for answer in answers} == {200, 429}
    assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 429} == {"1"}
    assert (later.status_code, pending) == (200, 0)


def test_a_late_answer_is_504_and_leaves_the_queue(bundle: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> tuple[int, int, int]:
        answer = await client.post("/v1/predict?client=1", content=picture())
        return answer.status_code, service.pending, service.metrics.images

    assert visit(bundle, work=work, limits=ServingLimits(deadline=0.0)) == (504, 0, 0)


def test_who_hangs_up_is_not_computed(bundle: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> tuple[int, int, int]:
        told = [{"type": "http.request", "body": picture()}, {"type": "http.disconnect"}]
        sent: list[Any] = []

        async def receive() -> Any:
            return told.pop(0) if told else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "query_string": b"client=1", "headers": []}
        await make_app(service)(scope, receive, send)
        return sent[0]["status"], service.pending, service.metrics.images

    assert visit(bundle, work=work) == (499, 0, 0)


def test_a_reload_takes_in_new_clients_and_drops_no_request(bundle: Path, tmp_path: Path) -> None:
    own = copied(bundle, tmp_path / "shops")
    larger = tiny_bundle(bundle.parent, "larger", clients=6)

    async def work(client: httpx.AsyncClient, service: Service) -> tuple[list[int], Any, Any]:
        before = await client.post("/v1/predict?client=5", content=picture())
        own.rename(tmp_path / "old")
        copied(larger, own)
        asked = [asyncio.create_task(client.post("/v1/predict?client=1", content=picture(n))) for n in range(30)]
        reloaded = await client.post("/v1/reload")
        after = await client.post("/v1/predict?client=5", content=picture())
        statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
        (own / "bundle.json").write_text("damaged")
        refused = await client.post("/v1/reload")
        still = await client.post("/v1/predict?client=5", content=picture())
        return [*statuses, still.status_code], (before.status_code, refused.status_code), (reloaded, after)

    statuses, (before, refused), (reloaded, after) = visit(own, work=work)
    assert set(statuses) == {200}
    assert (before, refused) == (404, 409)
    assert reloaded.json() == {"clients": 6}
    assert after.json()["client"] == "5"


def test_several_bundles_are_asked_by_name(bundle: Path, tmp_path: Path) -> None:
    other = copied(bundle, tmp_path / "other")

    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        asked = [client.post(f"/v1/predict?client={name}", content=picture()) for name in ("shops/1", "other/1", "1")]
        return list(await asyncio.gather(*asked))

    one, two, bare = visit(bundle, other, work=work)
    assert one.json()["images"] == two.json()["images"]
    assert bare.status_code == 404
