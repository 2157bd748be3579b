"""More than a thousand odd requests: each gets a fitting status and a sentence, nothing private is logged."""

import json
import logging
import random
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from promptfed.serving.limits import ServingLimits
from promptfed.serving.recorder import JsonLines
from promptfed.serving.service import Service
from promptfed.serving.tokens import beside, hashed, new_token, write_hashes
from support.tiny_server import copied, picture, tiny_bundle, visit

REQUESTS = 1200
SECRET = "holiday-in-rome"
STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429}


def bomb(width: int = 20_000, height: int = 20_000) -> bytes:
    """Return a small PNG file whose head promises very many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def content(draw: random.Random) -> bytes:
    """Return the bytes of an image, or what looks like one."""
    good = picture(draw.randrange(5), kind=draw.choice(["PNG", "BMP", "GIF", "JPEG", "WEBP", "TIFF"]))
    spoilt = bytearray(good)
    spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
    return draw.choice(
        [good, good, bytes(spoilt), good[: draw.randrange(len(good))], bomb(), b"", b"%!PS", SECRET.encode(),
         draw.randbytes(draw.randrange(300)), b"<svg xmlns='http://www.w3.org/2000/svg'/>", bytes(6000)]
    )  # fmt: skip


def body(draw: random.Random) -> dict[str, Any]:
    """Return a body with its headers."""
    kind = draw.choice(["raw", "form", "cut", "odd"])
    if kind == "form":
        files = [(draw.choice(["image", "x", ""]), (f"{SECRET}.jpg", content(draw))) for _ in range(draw.randrange(4))]
        return {"files": files, "data": {"note": SECRET} if draw.random() < 0.3 else None}
    if kind == "cut":
        whole = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\nabc\r\n--b--\r\n'
        boundary = draw.choice(["; boundary=b", "", "; boundary=", "; boundary=" + "b" * 300, "; boundary=é"])
        named = {"content-type": f"multipart/form-data{boundary}".encode("latin-1")}
        return {"content": whole[: draw.randrange(len(whole))], "headers": named}
    if kind == "odd":
        other = draw.choice(["text/plain", "application/json", "image/", "/", "image/png; q=é", "multipart/mixed"])
        return {"content": content(draw), "headers": {"content-type": other.encode("latin-1")}}
    return {"content": content(draw)}


def request(draw: random.Random, tokens: list[str]) -> tuple[str, str, dict[str, Any]]:
    """Return the method, the path and all else of a request."""
    method = draw.choice(["POST"] * 8 + ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"])
    path = draw.choice(
        ["/v1/predict"] * 5 + ["/v1/explain", "/v1/clients", "/v1/nothing", "/", f"/{SECRET}", "/%00%ff"]
    )
    query = {}
    if draw.random() < 0.8:
        query["client"] = draw.choice(["0", "1", "2", "3", "4", "-1", "0 ", "٣", "../0", "9" * 400, "", SECRET])
    if draw.random() < 0.2:
        name = draw.choice(["top", "grid", "limit", "offset"])
        query[name] = draw.choice(["1", "2", "0", "-3", "1e9", "9" * 30, "²", "NaN"])
    more = body(draw) if method == "POST" or draw.random() < 0.2 else {}
    headers = dict(more.pop("headers", {}))
    wrong = ["", "Bearer", "Bearer ", f"Bearer {SECRET}", "Basic YTpi", f"Bearer {tokens[0]}x", "Bearer é"]
    sent = draw.choice(wrong) if draw.random() < 0.2 else f"Bearer {draw.choice(tokens)}"
    headers["authorization"] = sent.encode("latin-1")
    if draw.random() < 0.1:
        headers[draw.choice(["content-length", "range", "expect", "origin", "cookie"])] = draw.choice(
            ["0", "x", SECRET]
        )
    return method, path, {"params": query, "headers": headers, **more}


def test_a_thousand_odd_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = copied(tiny_bundle(tmp_path, "made"), tmp_path / "shops")
    tokens = [new_token(), new_token(), new_token()]
    write_hashes(beside(own), {hashed(tokens[0]): None, hashed(tokens[1]): 1, hashed(tokens[2]): 77})
    draw, seen = random.Random(0), Counter[int]()
    caplog.set_level(logging.INFO, "promptfed.serving")

    async def work(client: httpx.AsyncClient, service: Service) -> int:
        for number in range(REQUESTS):
            method, path, more = request(draw, tokens)
            answer = await client.request(method, path, **more)
            seen[answer.status_code] += 1
            assert answer.status_code in STATUSES, (number, method, path, answer.text)
            if answer.status_code >= 400 and method != "HEAD":
                (sentence,) = answer.json().values()
                assert sentence[0].isupper(), sentence
                assert sentence[-1] == ".", sentence
                assert SECRET not in sentence
        right = {"authorization": f"Bearer {tokens[1]}"}
        assert (await client.post("/v1/predict", content=picture(), headers=right)).status_code == 200
        assert service.held == 0
        assert len(service.batcher.queue) == 0
        return sum(service.metrics.requests.values())

    limits = ServingLimits(body=5000, pixels=10_000, images=2)
    assert visit(own, work=work, limits=limits) == REQUESTS + 1
    assert {200, 400, 401, 403, 404, 405, 413, 415, 422} <= set(seen), seen
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "promptfed.serving"]
    assert len(lines) == REQUESTS + 1
    assert {json.loads(line)["event"] for line in lines} == {"request"}, "and no failure"
    for private in (SECRET, str(tmp_path), *tokens, *(hashed(token) for token in tokens)):
        assert private not in "".join(lines)
