"""Secure aggregation: the server learns the sum of what clients send, and nothing else (Bonawitz et al. CCS 2017).

Every pair of clients agrees on a mask that one adds and the other subtracts, so that masks cancel in the sum. A client
adds one more of its own, in case it was only slow and its pairs' masks were opened as if it had dropped out. Secrets
are shared among the clients (Shamir), so that any `threshold` of them can open the masks of those who are gone.

    client                                    server
    fresh, public        keys             →   all keys
    share                sealed shares    →   to whom they are for
    unseal, masked       masked numbers   →   who has answered
    reveal               opened shares    →   unmask: the sum

Numbers are 64-bit integers: fixed point with FRACTION bits behind the point, wrapping around at 2^64. The server is
trusted to follow the protocol, not to be blind; against one that lies about who has answered, the paper adds
signatures, which are not here. Keys and ciphers are those of the `cryptography` package.
"""

import contextlib
import math
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from promptfed.core import tree
from promptfed.core.errors import PromptFedError
from promptfed.core.tree import Tree
from promptfed.federation.guards.guard import Guard, Handed

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

FRACTION = 32  # bits behind the point
PRIME = 2**521 - 1  # the field of the shares; a secret has 256 bits
SHARE = 66  # bytes of a number of that field
NONCE, TAG = 12, 16  # bytes AES-GCM adds to a message


def require_cryptography() -> None:
    """Refuse secure aggregation without ciphers."""
    if find_spec("cryptography") is None:
        raise PromptFedError('guards.secure needs ciphers: pip install "promptfed[secure]".')


# -- messages of one client ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keys:
    """What everyone may know of a client."""

    sealing: bytes
    masking: bytes


@dataclass(frozen=True)
class Secrets:
    """What a client keeps to itself, fresh in every round: two X25519 private keys and the seed of its own mask."""

    client: int
    sealing: bytes
    masking: bytes
    seed: bytes


@dataclass(frozen=True)
class Held:
    """Shares of another client's secrets: of its masking key, and of the seed of its own mask."""

    masking: int
    seed: int


def fresh(client: int) -> Secrets:
    """Draw a client's secrets from the operating system."""
    return Secrets(client, os.urandom(32), os.urandom(32), os.urandom(32))


def public(own: Secrets) -> Keys:
    """Return the keys a client tells the others, by way of the server."""
    return Keys(_public(own.sealing), _public(own.masking))


def sound(keys: Keys) -> bool:
    """Say whether others can derive shared keys from these; a few points of the curve only serve attacks."""
    try:
        _agree(os.urandom(32), keys.sealing, "try")
        _agree(os.urandom(32), keys.masking, "try")
    except ValueError:
        return False
    return True


def share(own: Secrets, keys: Mapping[int, Keys], threshold: int) -> dict[int, bytes]:
    """Return a share of this client's secrets for everyone, sealed so that only its receiver can read it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    places = [client + 1 for client in keys]
    parts = zip(*(split(secret, places, threshold) for secret in (own.masking, own.seed)), strict=True)
    sealed = {}
    for (client, key), (masking, seed) in zip(keys.items(), parts, strict=True):
        nonce = os.urandom(NONCE)
        text = masking.to_bytes(SHARE, "big") + seed.to_bytes(SHARE, "big")
        cipher = AESGCM(_agree(own.sealing, key.sealing, "seal"))
        sealed[client] = nonce + cipher.encrypt(nonce, text, _route(own.client, client))
    return sealed


def masked(own: Secrets, keys: Mapping[int, Keys], values: Numbers) -> Numbers:
    """Return the client's numbers under its own mask and those it shares with everyone in `keys`, which has shared."""
    total = values + _stream(own.seed, len(values))
    for client, key in keys.items():
        if client != own.client:
            mask = _stream(_agree(own.masking, key.masking, "mask"), len(values))
            total = total + mask if own.client < client else total - mask
    return total


def unseal(own: Secrets, keys: Mapping[int, Keys], sealed: Mapping[int, bytes]) -> dict[int, Held]:
    """Return the shares that were sealed for this client, by whose they are; what does not open is left out."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    held = {}
    for client, text in sealed.items():
        cipher = AESGCM(_agree(own.sealing, keys[client].sealing, "seal"))
        with contextlib.suppress(InvalidTag):
            plain = cipher.decrypt(text[:NONCE], text[NONCE:], _route(client, own.client))
            held[client] = Held(int.from_bytes(plain[:SHARE], "big"), int.from_bytes(plain[SHARE:], "big"))
    return held


def reveal(held: Mapping[int, Held], survivors: Collection[int], threshold: int) -> dict[int, int]:
    """Return the shares this client holds: of the own mask of who answered, of the private key of who did not.

    Never both of the same client: together they would lay its numbers bare.
    """
    if len(survivors) < threshold:
        raise _too_few(len(survivors), threshold)
    return {client: one.seed if client in survivors else one.masking for client, one in held.items()}


# -- the server ---------------------------------------------------------------------------------------------------


def unmask(
    keys: Mapping[int, Keys],
    answers: Mapping[int, Numbers],
    opened: Mapping[int, Mapping[int, int]],
    threshold: int,
) -> Numbers:
    """Return the sum of the numbers behind `answers`; `keys` are of all who shared, `opened` what each has revealed."""
    if min(len(answers), len(opened)) < threshold:
        raise _too_few(min(len(answers), len(opened)), threshold)
    total: Numbers = np.sum(np.stack(list(answers.values())), axis=0, dtype=np.uint64)
    for client in keys:
        shares = {helper + 1: opened[helper][client] for helper in sorted(opened) if client in opened[helper]}
        if len(shares) < threshold:
            raise PromptFedError(
                f"Too few shares of client {client}'s secrets can be opened; the round is not counted."
            )
        secret = recover(dict(list(shares.items())[:threshold]))
        if client in answers:
            total = total - _stream(secret, len(total))
            continue
        if _public(secret) != keys[client].masking:
            raise PromptFedError(f"The shares of client {client}'s key do not fit together; the round is not counted.")
        for other in answers:
            mask = _stream(_agree(secret, keys[other].masking, "mask"), len(total))
            total = total - mask if other < client else total + mask
    return total


def needed(clients: int, threshold: float) -> int:
    """Return how many of the clients must stay to the end: more than the share `threshold`."""
    return min(clients, math.floor(clients * threshold + 1e-9) + 1)


def secure_sum(rows: Mapping[int, Numbers], threshold: int, dropped: Collection[int] = ()) -> Numbers:
    """Run the whole protocol in one process; those `dropped` have shared their secrets but never answer."""
    own = {client: fresh(client) for client in rows}
    keys = {client: public(secret) for client, secret in own.items()}
    sealed = {client: share(secret, keys, threshold) for client, secret in own.items()}
    answers = {client: masked(own[client], keys, row) for client, row in rows.items() if client not in dropped}
    held = {client: unseal(own[client], keys, {other: sealed[other][client] for other in keys}) for client in answers}
    opened = {client: reveal(shares, answers.keys(), threshold) for client, shares in held.items()}
    return unmask(keys, answers, opened, threshold)


@dataclass(frozen=True)
class SecureSum(Guard):
    """Hand over the weighted mean alone, computed under masks."""

    name: ClassVar[str] = "secure"
    side: ClassVar[Literal["client", "server"]] = "server"
    leaves: ClassVar[Literal["rows", "mean"]] = "mean"

    threshold: float = 0.5  # more than this share of the clients must stay to the end

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Sum weight × numbers, and the weights, as integers; divide afterwards."""
        who = clients.tolist()
        rows = encode(weighted(up, weights), len(who))
        total = decode(secure_sum(dict(zip(who, rows, strict=True)), needed(len(who), self.threshold)))
        return clients, *averaged(total, tree.rows(up, slice(1)))

    def traffic(self, numbers: int, clients: int) -> tuple[int, int]:
        """Return the bytes (down, up) of one client: what the protocol relays to it, and all that it sends."""
        sealed = (NONCE + 2 * SHARE + TAG) * (clients - 1)
        return 64 * (clients - 1) + sealed + 4 * clients, 64 + sealed + 8 * (numbers + 1) + SHARE * clients


# -- what is summed -----------------------------------------------------------------------------------------------


def weighted(up: Tree, weights: Tensor) -> Tensor:
    """Return a row [C, N + 1] of float64 numbers per client: weight × numbers of a tree [C, ...], and the weight."""
    wide = weights.to("cpu", torch.float64).unsqueeze(1)
    flat = torch.cat([value.to("cpu", torch.float64).reshape(len(weights), -1) for value in up.values()], 1)
    return torch.cat([flat * wide, wide], 1)


def averaged(total: Tensor, like: Tree) -> tuple[Tree, Tensor]:
    """Return the mean behind the sum [N + 1] of such rows, shaped as `like` [1, ...], and the sum of weights [1]."""
    parts = (total[:-1] / total[-1]).split([value.numel() for value in like.values()])
    mean = {name: part.reshape(like[name].shape).to(like[name]) for name, part in zip(like, parts, strict=True)}
    return mean, total[-1:].to(next(iter(like.values())))


# -- fixed point --------------------------------------------------------------------------------------------------


def encode(values: Tensor, clients: int) -> Numbers:
    """Return float64 numbers as fixed point; the sum of `clients` of them must fit as well."""
    most = 2.0 ** (63 - FRACTION) / clients
    if not bool((values.abs() < most).all()):
        raise PromptFedError(
            f"Secure aggregation of {clients} clients holds numbers below {most:.3g}, and one is larger or "
            "not a number; set guards.clip, or lower method.lr."
        )
    whole = (values * 2.0**FRACTION).round().to(torch.int64)
    return whole.numpy().view(np.uint64)


def decode(values: Numbers) -> Tensor:
    """Return fixed-point numbers as float64."""
    return torch.from_numpy(values.view(np.int64)).to(torch.float64) * 2.0**-FRACTION


# -- sharing a secret (Shamir 1979) -------------------------------------------------------------------------------


def split(secret: bytes, places: Sequence[int], threshold: int) -> list[int]:
    """Return the values at `places` of a random polynomial through the secret; any `threshold` of them determine it."""
    factors = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    values = []
    for place in places:
        value = 0
        for factor in reversed(factors):
            value = (value * place + factor) % PRIME
        values.append(value)
    return values


def recover(shares: Mapping[int, int]) -> bytes:
    """Return the secret from enough shares, by place."""
    factors = _lagrange(list(shares))
    secret = sum(factor * value for factor, value in zip(factors, shares.values(), strict=True)) % PRIME
    return (secret % 2**256).to_bytes(32, "big")  # shares that do not fit give some other secret, not an error


def _lagrange(places: Sequence[int]) -> list[int]:
    """Return what each place counts in the polynomial's value at zero."""
    factors = []
    for here in places:
        above = math.prod(other for other in places if other != here)
        below = math.prod(other - here for other in places if other != here)
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return factors


# -- ciphers ------------------------------------------------------------------------------------------------------


def _public(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agree(private: bytes, other: bytes, purpose: str) -> bytes:
    """Return the 256-bit key that two clients derive from each other's public keys."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    agreed = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))
    return HKDF(SHA256(), length=32, salt=None, info=f"promptfed {purpose}".encode()).derive(agreed)


def _stream(key: bytes, count: int) -> Numbers:
    """Return `count` pseudorandom 64-bit numbers: AES-256 in counter mode. No key is ever used for two messages."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    return np.frombuffer(Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * count)), np.dtype("<u8"))


def _route(sender: int, receiver: int) -> bytes:
    return f"{sender}>{receiver}".encode()


def _too_few(left: int, threshold: int) -> PromptFedError:
    return PromptFedError(
        f"Only {left} clients are left, and secure aggregation needs {threshold} to open the masks of those who are "
        "gone; the round is not counted."
    )
