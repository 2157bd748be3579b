"""What a release is made of: locked versions with their hashes, and no way for a file or an address to run code."""

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.scripts import load_script

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "promptfed"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SBOM = load_script("tools/sbom.py")
LOCKED = load_script("tools/lock.py").extras(PROJECT)


class Locked(NamedTuple):
    """A line of a lock: a package in one version, where that is needed, and the hashes of its files."""

    requirement: Requirement
    hashes: list[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return str(self.requirement.specifier).removeprefix("==")


@cache
def read_lock(name: str) -> list[Locked]:
    text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.strip().startswith("#")]
    parts = [line.split("--hash=") for line in lines]
    return [Locked(Requirement(first.strip()), [one.strip() for one in hashes]) for first, *hashes in parts]


def constraints() -> dict[str, set[str]]:
    """Return the versions that constraints.txt allows, by package."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        requirement = Requirement(line)
        found.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier)[2:])
    return found


def direct(name: str) -> list[Requirement]:
    """Return what PromptFed itself asks for with that extra."""
    wanted = PROJECT["dependencies"] + (EXTRAS[name] if name != "core" else [])
    return [Requirement(one) for one in wanted]


# -- locks ------------------------------------------------------------------------------------------------------------


def test_there_is_a_lock_for_the_package_and_for_every_extra_of_users() -> None:
    assert LOCKED[0] == "core"
    assert set(EXTRAS) - set(LOCKED) == {"docs", "dev"}
    assert sorted(path.name for path in (ROOT / "requirements").iterdir()) == sorted(f"{name}.lock" for name in LOCKED)


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_names_versions_with_sha256_hashes_and_nothing_else(name: str) -> None:
    first, _, rest = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8").partition("\n")
    assert first.endswith(f"pip install --require-hashes -r requirements/{name}.lock")
    version = r"[a-z0-9][a-z0-9.-]*==[0-9][\w.]*( ; [^\\#]+)? \\"
    line = rf"{version}|    --hash=sha256:[0-9a-f]{{64}}( \\)?|    # via [\w. (),-]+"
    assert [odd for odd in rest.splitlines() if not re.fullmatch(line, odd)] == []
    assert all(locked.hashes for locked in read_lock(name))


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_is_in_step_with_pyproject_and_constraints(name: str) -> None:
    locked = read_lock(name)
    for wanted in direct(name):
        versions = [one.version for one in locked if one.name == canonicalize_name(wanted.name)]
        assert versions, f"{wanted.name} is missing: make lock"
        assert all(wanted.specifier.contains(version) for version in versions), f"{wanted} is not met: make lock"
    allowed = constraints()
    assert [one for one in locked if one.name in allowed and one.version not in allowed[one.name]] == []


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_holds_all_that_its_packages_need_here(name: str) -> None:
    here = {one.name: one for one in read_lock(name) if not one.requirement.marker or one.requirement.marker.evaluate()}
    missing = [(one, need) for one in here for need in needs(one, here[one].version) if need not in here]
    assert missing == []


def needs(name: str, version: str) -> Iterator[str]:
    """Yield what an installed package asks for on this machine, if it is the locked version."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return
    if found.version.partition("+")[0] == version and "+" not in found.version:  # a build for CPUs needs less
        for one in map(Requirement, found.requires or []):
            if not one.marker or one.marker.evaluate({"extra": ""}):
                yield canonicalize_name(one.name)


# -- the bill of materials ---------------------------------------------------------------------------------------------


def test_the_bill_of_materials_names_every_locked_version_and_what_needs_it(tmp_path: Path) -> None:
    wheel = tmp_path / "promptfed-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"abc")
    bill = SBOM.bill("1.2.3", SBOM.read_locks(ROOT / "requirements"), [wheel])
    locked = {f"pkg:pypi/{one.name}@{one.version}": one for name in LOCKED for one in read_lock(name)}
    components = {one["purl"]: one for one in bill["components"]}
    assert set(components) == set(locked)
    for purl, component in components.items():
        hashes = {f"sha256:{one['content']}" for one in component["externalReferences"][0]["hashes"]}
        assert hashes == set(locked[purl].hashes)
    described = bill["metadata"]["component"]
    assert described["externalReferences"][0]["hashes"][0]["content"] == hashlib.sha256(b"abc").hexdigest()
    needed = {one["ref"]: set(one["dependsOn"]) for one in bill["dependencies"]}
    assert {purl.split("/")[1].split("@")[0] for purl in needed["pkg:pypi/promptfed@1.2.3"]} == {
        canonicalize_name(wanted.name) for name in LOCKED for wanted in direct(name)
    }
    reached: set[str] = set()
    border = {"pkg:pypi/promptfed@1.2.3"}
    while border := {purl for one in border for purl in needed[one]} - reached:
        reached |= border
    assert reached == set(components), "everything is there because something needs it"


def test_what_only_an_extra_needs_is_optional() -> None:
    bill = SBOM.bill("1.2.3", SBOM.read_locks(ROOT / "requirements"), [])
    scopes = {one["name"]: one["scope"] for one in bill["components"]}
    assert (scopes["torch"], scopes["numpy"], scopes["nvflare"], scopes["onnx"]) == (
        *["required"] * 2,
        *["optional"] * 2,
    )


def test_the_bill_of_materials_follows_the_schema() -> None:
    pytest.importorskip("cyclonedx.validation.json", reason="make sbom brings it")
    text = json.dumps(SBOM.bill("1.2.3", SBOM.read_locks(ROOT / "requirements"), []))
    assert SBOM.problem(text) == ""
    assert "library" in SBOM.problem(text.replace('"type": "library"', '"type": "thing"'))


# -- what source may not do -------------------------------------------------------------------------------------------

# Each use of what could run code that comes with data, by file, and why it is there.
KNOWN = {
    (
        "data/archives.py",
        "pickle.Unpickler",
    ): "CIFAR's official files are pickles: this one makes arrays, calls nothing",
    ("runs/checks.py", "pickle.dumps"): "a method's object goes through a pickle that is made in the same line",
    ("runs/checks.py", "pickle.loads"): "as above",
    ("core/group.py", "pickle.dumps"): "between the processes of one run, as torch.distributed itself does",
    ("core/group.py", "pickle.loads"): "as above; docs/clusters.md says that their network must be one you trust",
    ("runs/catalogue.py", "eval"): "declarations in the source of installed packages",
    (
        "analysis/picture_features.py",
        "torch.jit.load",
    ): "a network that the user names as a program; SECURITY.md says so",
}
FORBIDDEN = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle",
}  # fmt: skip
HARMLESS = {"pickle.UnpicklingError", "pickle.PicklingError"}
CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load"}


def dotted(node: ast.AST) -> str:
    """Return a.b.c of such an expression, else an empty text."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def given(call: ast.Call, name: str) -> object:
    """Return the constant that a call gives for a keyword; None if it gives none."""
    values = [one.value for one in call.keywords if one.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def dangers(text: str) -> set[str]:
    """Return what a source file uses that could run code from data."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN:
            found.add(f"from {node.module}")
        if isinstance(node, ast.Attribute) and dotted(node).split(".")[0] in FORBIDDEN:
            found |= {dotted(node)} - HARMLESS
        if isinstance(node, ast.Call):
            found |= call_dangers(node)
    return found


def call_dangers(call: ast.Call) -> set[str]:
    """Return what is wrong with a call."""
    name = dotted(call.func)
    found = {name} & CALLS
    if name == "torch.load" and given(call, "weights_only") is not True:
        found.add("torch.load without weights_only=True")
    if name in ("np.load", "numpy.load") and given(call, "allow_pickle") not in (None, False):
        found.add("np.load with allow_pickle")
    if given(call, "shell") is True or given(call, "trust_remote_code") is True:
        found.add("shell or trust_remote_code")
    return found


@pytest.mark.parametrize(
    ("text", "danger"),
    [
        ("import pickle\npickle.load(f)", "pickle.load"),
        ("import torch\ntorch.load(p)", "torch.load without weights_only=True"),
        ("import torch\ntorch.load(p, weights_only=False)", "torch.load without weights_only=True"),
        ("np.load(p, allow_pickle=True)", "np.load with allow_pickle"),
        ("yaml.load(x)", "yaml.load"),
        ("subprocess.run(x, shell=True)", "shell or trust_remote_code"),
        ("from joblib import load", "from joblib"),
        ("exec(x)", "exec"),
    ],
)
def test_the_search_finds_what_it_looks_for(text: str, danger: str) -> None:
    assert dangers(text) == {danger}


def test_nothing_in_the_package_can_run_code_from_data() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    found = {(path.relative_to(SOURCE).as_posix(), one) for path in files for one in dangers(path.read_text("utf-8"))}
    assert found == set(KNOWN)


def test_every_address_in_the_package_is_https_or_this_machine() -> None:
    """No download without encryption; names of XML vocabularies and examples of a form look like addresses too."""
    texts = {path: path.read_text("utf-8", "ignore") for path in SOURCE.rglob("*") if path.suffix in TEXTS}
    found = {url for text in texts.values() for url in re.findall(r"http://[^\s\"'`)<>]+", text)}
    known = r"http://(localhost|127\.0\.0\.1|www\.w3\.org/|(\w+:\w+@)?HOST)"
    assert {url for url in found if not re.match(known, url)} == set()


TEXTS = {".py", ".js", ".html", ".css", ".j2", ".toml", ".txt", ".svg"}
