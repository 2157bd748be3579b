"""Certificates that end, new ones for old and new keys, and sites that are out: without any process."""

import datetime
import json
import shutil
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from nvflare.lighter.utils import Identity, generate_cert, serialize_cert
from typer.testing import CliRunner

from promptfed.cli.sites import app
from promptfed.core.errors import PromptFedError
from promptfed.sites import certificates
from promptfed.sites.certificates import renew, require_valid, revoke, validities
from promptfed.sites.flare_port import Peer, refusal
from promptfed.sites.kits import RENEWAL, expiry, newest, read_kit, take_renewal
from promptfed.sites.oversight import Oversight, read_audits
from promptfed.sites.provisioning import provision
from promptfed.sites.revocations import Revocations, key_digest
from promptfed.sites.settings import Federation, read_federation

DAY = datetime.timedelta(days=1)
CERT = Path("ca") / "care" / "state" / "cert.json"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two federations of the same names."""
    folder = tmp_path_factory.mktemp("federations")
    (folder / "fed.toml").write_text('name = "care"\nsites = ["north", "south"]\n')
    for name in ("federation", "other"):
        provision(folder / "fed.toml", folder / name)
    return folder


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    return Path(shutil.copytree(sound / "federation", tmp_path / "federation"))


@pytest.fixture
def federation(home: Path) -> Federation:
    return read_federation(home / "fed.toml")


def age(home: Path, party: str, days: float) -> None:
    """Let a party's certificate, or the authority's own, end in so many days."""
    path = home / CERT
    state = json.loads(path.read_text())
    root = certificates._key(state["root_pri_key"])
    subject = {"authority": "care", "coordinator": "localhost"}.get(party, party)
    key = root if party == "authority" else certificates._key(state[party]["pri_key"])
    begin, end = certificates.now() - 400 * DAY, certificates.now() + days * DAY
    made = generate_cert(
        Identity(subject), Identity("care"), root, key.public_key(), not_valid_before=begin, not_valid_after=end,
        ca=party == "authority",
    )  # fmt: skip
    text = serialize_cert(made).decode()
    if party == "authority":
        state["root_cert"] = text
        for kit in ("coordinator", "admin"):
            (home / "kits" / kit / "startup" / "rootCA.pem").write_text(text)
    else:
        state[party]["cert"] = text
    path.write_text(json.dumps(state))


def said(*words: str) -> str:
    """Run a command and return what it says."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.exception
    return " ".join(done.output.split())


def test_the_authority_outlives_what_it_signs(home: Path, federation: Federation) -> None:
    ends = {one.party: one.ends for one in validities(home, federation)}
    assert ends.keys() == {"authority", "coordinator", "admin", "north", "south"}
    assert ends["authority"] > certificates.now() + 3600 * DAY
    assert ends["north"] < certificates.now() + 361 * DAY


def test_a_renewal_holds_no_key_and_fits_the_kit(home: Path, federation: Federation, tmp_path: Path) -> None:
    old = read_kit(home / "kits" / "north.zip")
    age(home, "north", 5)
    made = renew(home, federation, ["north"])
    assert made == {"north": home / "kits" / "north.renewal.zip"}
    assert stat.S_IMODE(made["north"].stat().st_mode) == 0o600
    with zipfile.ZipFile(made["north"]) as archive:
        assert sorted(archive.namelist()) == ["north/client.crt", "north/rootCA.pem", "north/site.json"]
        assert b"PRIVATE" not in b"".join(archive.read(name) for name in archive.namelist())
    kit = take_renewal(made["north"], old, tmp_path)
    assert (kit.key, kit.site) == (old.key, "north")
    assert kit.certificate != old.certificate
    assert newest(old, tmp_path) == kit  # at every later join
    assert stat.S_IMODE((tmp_path / RENEWAL).stat().st_mode) == 0o600


def test_renewing_everyone_renews_the_coordinator_too(home: Path, federation: Federation) -> None:
    startup = home / "kits" / "coordinator" / "startup"
    before = (startup / "server.crt").read_bytes()
    made = renew(home, federation, [])
    assert set(made) == {"north", "south"}
    server = x509.load_pem_x509_certificate((startup / "server.crt").read_bytes())
    assert (startup / "server.crt").read_bytes() != before
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    admin = x509.load_pem_x509_certificate((home / "kits" / "admin" / "startup" / "client.crt").read_bytes())
    (role,) = admin.subject.get_attributes_for_oid(x509.NameOID.UNSTRUCTURED_NAME)
    assert role.value == "project_admin"


def test_an_authority_that_ends_first_is_renewed_with_its_key(
    home: Path, federation: Federation, tmp_path: Path
) -> None:
    old = read_kit(home / "kits" / "north.zip")
    age(home, "authority", 20)
    made = renew(home, federation, ["north"])
    kit = take_renewal(made["north"], old, tmp_path)
    assert kit.authority != old.authority
    assert expiry(kit) > certificates.now() + 359 * DAY
    (root,) = [one for one in validities(home, federation) if one.party == "authority"]
    assert root.ends > certificates.now() + 3600 * DAY
    # sites that still have the old one trust what it signs, and the other way round
    newer, older = (x509.load_pem_x509_certificate(one) for one in (kit.authority, old.authority))
    x509.load_pem_x509_certificate(kit.certificate).verify_directly_issued_by(older)
    x509.load_pem_x509_certificate(old.certificate).verify_directly_issued_by(newer)


def test_a_foreign_renewal_is_refused(home: Path, federation: Federation, sound: Path, tmp_path: Path) -> None:
    north = read_kit(home / "kits" / "north.zip")
    made = renew(home, federation, [])
    with pytest.raises(PromptFedError, match="is a renewal for south of care, not for north of care"):
        take_renewal(made["south"], north, tmp_path)
    with pytest.raises(PromptFedError, match="is a whole kit; join with it in place of the old one"):
        take_renewal(home / "kits" / "north.zip", north, tmp_path)
    with pytest.raises(PromptFedError, match="does not exist"):
        take_renewal(tmp_path / "nothing.zip", north, tmp_path)
    foreign = renew(sound / "other", federation, ["north"])["north"]
    with pytest.raises(PromptFedError, match="is of another authority than the kit"):
        take_renewal(foreign, north, tmp_path)
    with pytest.raises(PromptFedError, match="does not fit its certificate"):
        take_renewal(made["north"], replace(north, key=read_kit(home / "kits" / "south.zip").key), tmp_path)
    assert not (tmp_path / RENEWAL).exists()


def test_what_ends_soon_is_said_thirty_days_before(home: Path, federation: Federation) -> None:
    age(home, "north", 29.5)
    age(home, "south", 31)
    text = said("status", "--federation", str(home))
    assert "The certificate of north ends in 29 days" in text
    assert "renew it with: promptfed sites renew north" in text
    assert "certificate of south" not in text
    age(home, "south", -1)
    assert "The certificate of south has expired on" in said("status", "--federation", str(home))


def test_an_expired_certificate_is_a_sentence(home: Path, federation: Federation, tmp_path: Path) -> None:
    renewal = renew(home, federation, ["north"])["north"]
    age(home, "north", -2)
    certificates._hand_out(
        home, federation, json.loads((home / CERT).read_text()), "north", home / "kits" / "north.zip"
    )
    words = ["join", str(home / "kits" / "north.zip"), "--data", "fashion-shops", "--home", str(tmp_path / "state")]
    failed = CliRunner().invoke(app, words)
    assert "has expired on" in str(failed.exception)
    assert "promptfed sites renew north" in str(failed.exception)
    assert not renewal.exists()  # a new kit makes it useless
    fresh = renew(home, federation, ["north"])["north"]
    kit = take_renewal(fresh, read_kit(home / "kits" / "north.zip"), tmp_path)
    assert expiry(kit) > certificates.now()


def test_a_server_that_no_site_would_talk_to_does_not_start(home: Path, federation: Federation) -> None:
    require_valid(home, federation)
    age(home, "authority", -1)
    failed = CliRunner().invoke(app, ["start", "--federation", str(home)])
    assert "The certificate of authority has expired on" in str(failed.exception)
    assert str(failed.exception).endswith("renew it with: promptfed sites renew")
    renew(home, federation, [])
    require_valid(home, federation)


def test_a_revoked_site_is_out_until_it_has_a_new_key(home: Path, federation: Federation, tmp_path: Path) -> None:
    old = read_kit(home / "kits" / "north.zip")
    older = take_renewal(renew(home, federation, ["north"])["north"], old, tmp_path)
    known = Revocations(home / "revoked.json")
    peers = [_peer(kit.certificate) for kit in (old, older)]
    assert [refusal(peer, known.refresh()) for peer in peers] == ["", ""]
    assert said("revoke", "north", "--federation", str(home)) == "north is revoked."
    assert said("revoke", "north", "--federation", str(home)) == "north was revoked already."
    assert [refusal(peer, known.refresh()) for peer in peers] == ["its certificate is revoked"] * 2
    assert "north is revoked; it gets a new kit by: promptfed sites renew north" in said(
        "status", "--federation", str(home)
    )
    assert set(renew(home, federation, [])) == {"south"}  # everyone who is in
    made = renew(home, federation, ["north"])
    assert made == {"north": home / "kits" / "north.zip"}
    new = read_kit(made["north"])
    assert new.key != old.key
    assert refusal(_peer(new.certificate), known.refresh()) == ""
    assert [refusal(peer, known.refresh()) for peer in peers] == ["its certificate is revoked"] * 2
    assert newest(new, tmp_path) == new  # the renewal of the old key is of no use


def _peer(certificate: bytes) -> Peer:
    found = x509.load_pem_x509_certificate(certificate)
    return Peer("north", key_digest(found), found.not_valid_after_utc)


def test_an_expired_peer_is_cut_off(tmp_path: Path) -> None:
    known, ends = Revocations(tmp_path / "revoked.json"), certificates.now()
    assert refusal(Peer("north", "00", ends + DAY), known) == ""
    assert refusal(Peer("north", "00", ends - DAY), known) == "its certificate has expired"


def test_a_damaged_list_lets_nobody_in(home: Path, federation: Federation) -> None:
    (home / "revoked.json").write_text("{")
    with pytest.raises(PromptFedError, match="so who is revoked is unknown"):
        Oversight.of(home).revoked()
    with pytest.raises(PromptFedError, match="so who is revoked is unknown"):
        revoke(home, federation, "north")


def test_names_are_checked(home: Path, federation: Federation) -> None:
    with pytest.raises(PromptFedError, match='did you mean "north"'):
        revoke(home, federation, "norht")
    with pytest.raises(PromptFedError, match='did you mean "coordinator"'):
        renew(home, federation, ["coordinater"])
    (home / CERT).unlink()
    with pytest.raises(PromptFedError, match="only with it certificates can be made"):
        renew(home, federation, ["north"])
    assert {one.party for one in validities(home, federation)} == {"authority", "coordinator", "admin"}


def test_status_says_where_audit_logs_are_and_which_went_back(home: Path) -> None:
    oversight = Oversight.of(home)
    oversight.run = "run-1"
    for number, digit in ((7, "a"), (9, "b"), (3, "c")):
        oversight.note("north", {"audit": {"n": number, "hash": digit * 64}})
        oversight.keep()
    assert read_audits(home)["north"]["back"] == [9]
    text = said("status", "--federation", str(home))
    assert f"north's audit log was at record 3:{'c' * 64} in run-1" in text
    assert "it has gone back, from record 9: ask the site's owner why" in text


@pytest.mark.parametrize(
    "told", [None, 3, {}, {"n": "1", "hash": "a" * 64}, {"n": 1, "hash": "x"}, {"n": 0}, {"n": 2**60}]
)
def test_a_false_place_in_an_audit_log_is_ignored(told: object) -> None:
    oversight = Oversight()
    oversight.note("north", {"audit": told})
    assert oversight.marks == {}
