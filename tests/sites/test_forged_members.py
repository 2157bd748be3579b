"""A coordinator that plays the other sites itself, to hear one site's answer: it can sign for none of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from promptfed.core.errors import PromptFedError
from promptfed.federation.guards import secure
from promptfed.sites import coordinator
from promptfed.sites.identity import MEMBERS, OWN, STARTUP, load_identity
from promptfed.sites.settings import Federation
from promptfed.sites.terms import FILE, Terms, read_terms
from support.certificates import certificate, write_certificates
from support.faults import away, ignore
from support.masked_session import SECURE, Curious
from support.three_sites import NAMES, begin, exchange, lines

UNSIGNED = 'the keys of "south" are not signed by that site'


def refusal(curious: Curious) -> str:
    """Hand the keys on, and see that the site refuses, and goes no further."""
    answer = curious.shares()
    assert answer.tree == {}
    for later in (curious.open(), curious.fit()):
        assert later.tree == {}
        assert "out of turn" in later.head["error"]
    assert curious.error("confirm", survivors=[0, 1, 2]) == "it names unknown clients"
    return str(answer.head["error"])


def test_keys_that_nobody_has_signed_are_refused(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.begin()
    error = curious.error("shares", curious.told(0, 1, 2), members=[0, 1, 2])
    assert error == "the keys of the other sites are not signed"
    curious.begin()
    curious.claims[1] = None
    assert refusal(curious) == "it does not prove who it is"


def test_a_coordinator_cannot_put_its_own_keys_in_place_of_the_others(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.begin()
    curious.others = {client: secure.fresh(client) for client in (1, 2)}  # after the true sites have signed theirs
    curious.keys |= {client: secure.public(own) for client, own in curious.others.items()}
    assert refusal(curious) == UNSIGNED


def test_signatures_of_another_authoritys_certificates_are_refused(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.signers[1] = load_identity(write_certificates(tmp_path / "forged", "south", "coordinator"), "south")
    curious.begin()
    assert refusal(curious) == UNSIGNED


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.signers[1] = replace(curious.signers[1], certificate=certificate("south", days=-1))
    curious.begin()
    assert refusal(curious) == 'the certificate of "south" is not for it, or has expired'


def test_one_site_cannot_be_several_nor_another(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.signers[2] = curious.signers[1]
    curious.begin()
    assert refusal(curious) == "one site takes part as several"
    curious.signers[2] = replace(curious.signers[1], site="west")  # with the certificate of south
    curious.begin()
    assert refusal(curious) == 'the certificate of "west" is not for it, or has expired'


def test_a_certificate_vouches_for_one_signing_key(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.signers[1] = replace(curious.signers[1], signing=Ed25519PrivateKey.generate())
    curious.begin()
    assert refusal(curious) == UNSIGNED


def test_a_signature_is_good_for_one_session(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.begin()
    before = dict(curious.claims)
    assert "error" not in curious.shares().head
    curious.begin()  # another session under the same name has the same statements of the others
    curious.claims = before | {0: curious.claims[0]}
    assert "error" not in curious.shares().head
    answer = curious.ask("keys", session="another")
    identities = [answer.head["identity"], before[1], before[2]]
    data = bytes(answer.tree["keys"].tolist())
    curious.keys[0] = secure.Keys(data[:32], data[32:])
    error = curious.error("shares", curious.told(0, 1, 2), members=[0, 1, 2], identities=identities, session="another")
    assert error == UNSIGNED


def test_who_makes_the_kits_still_cannot_pass_for_a_site_that_was_met_before(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    again = Curious(tmp_path)
    again.signers[1] = load_identity(write_certificates(tmp_path / "second kit", "south"), "south")
    again.begin()
    assert refusal(again) == 'the key of "south" is not the one it had before'
    assert (tmp_path / "home" / "north" / MEMBERS).read_text().count('"') == 12  # three names, three keys


def test_nor_for_one_whose_key_the_owner_has_listed(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    home = tmp_path / "home" / "north"
    keys = {site: load_identity(tmp_path / "home" / site, site).key for site in ("south", "west")}
    listed = "".join(f'{site} = "{key}"\n' for site, key in keys.items())
    (home / FILE).write_text(f"[members]\n{listed}")
    assert read_terms(home / FILE).members == keys
    curious.begin()
    assert "error" not in curious.shares().head
    stranger = Curious(tmp_path)
    (home / FILE).write_text(f"[members]\n{listed}".replace(keys["south"], "0" * 64))
    stranger.begin()
    assert refusal(stranger) == 'its owner\'s terms do not list "south" with this key'


def test_a_sum_of_too_few_sites_is_refused(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    (tmp_path / "home" / "north" / FILE).write_text("")
    assert Terms().min_members == 3
    curious.begin()
    answer = curious.shares(0, 1)
    assert answer.head["error"] == "its owner's terms ask for 3 sites in a sum, and these are 2"
    curious.begin()
    curious.shares()
    assert curious.error("open", curious.sealed(0, 1), members=[0, 1]) == "an answer is hidden among 3 sites or more"
    curious.session()
    error = curious.error("confirm", survivors=[0, 1])
    assert error == "masks are opened only for 3 answers or more, this site's among them"


def test_the_run_says_that_too_few_sites_were_left(tmp_path: Path) -> None:
    federation = Federation(NAMES, min_sites=2, patience_seconds=0.1)
    out, _ = begin(tmp_path, "fedavg", SECURE, federation=federation)
    sites = exchange(tmp_path, away({"west": {1}}), terms="min_members = 3\n")
    with pytest.raises(
        PromptFedError, match=r"Round 2 could not be summed .* its owner's terms ask for 3 sites in a sum"
    ):
        coordinator.conduct(out, federation, sites, ignore)
    assert [line["clients"] for line in lines(out)] == [[0, 1, 2]]


def test_sites_that_were_told_different_lists_open_nothing(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    own = curious.confirm(0, 1, 2)
    masks = curious.worker._masks
    assert masks is not None
    other = masks._list().replace(b"[0, 1, 2]", b"[0, 1]")
    assert other != masks._list()
    signed = {"0": own.head["confirmed"], "1": curious.signers[1].confirm(other), "2": None}
    answer = curious.ask("reveal", confirmed=signed)
    assert answer.head["error"] == "fewer than 2 sites have signed the list of those who have answered"
    assert answer.tree == {}
    assert "out of turn" in curious.error("reveal", confirmed=signed)


@pytest.mark.parametrize("signed", [None, [], {}, {"1": "zz"}, {"1": "00" * 64}, {"1": 5, "2": {}}], ids=str)
def test_a_list_that_the_others_have_not_signed_opens_nothing(signed: object, tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    curious.session()
    curious.confirm(0, 1, 2)
    assert "have signed the list" in curious.error("reveal", confirmed=signed)


def test_a_site_without_a_certificate_masks_nothing(tmp_path: Path) -> None:
    curious = Curious(tmp_path)
    startup = tmp_path / "home" / "north" / STARTUP
    (startup / "client.crt").unlink()
    assert curious.error("keys") == "it has no certificate, with which it would prove to other sites who it is"


def test_the_signing_key_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    home = write_certificates(tmp_path, "north")
    first = load_identity(home, "north")
    assert load_identity(home, "north").key == first.key
    assert (home / OWN).stat().st_mode & 0o777 == 0o600
    assert len(first.key) == 64


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[members]\nsouth = 'abc'", r"members\.south in .* is not a key of 64 hexadecimal digits"),
        ("members = 3", r"members in .* is not a table"),
        ("min_members = 1", "min_members"),
    ],
)
def test_members_that_would_protect_nobody_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(PromptFedError, match=sentence):
        read_terms(tmp_path / FILE)
