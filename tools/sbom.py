"""Write a release's bill of materials in CycloneDX, from requirements/: sbom.py build/promptfed.cdx.json dist/*.whl.

It lists every package in every version that a lock names, with the hashes of its files and what needs it. What only an
extra needs is optional. The same locks and wheel give the same file. `--check` also validates it against CycloneDX's
schema; that needs cyclonedx-python-lib with its json-validation extra.
"""

import argparse
import hashlib
import json
import re
import sys
import uuid
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SPEC = "1.6"
ENTRY = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ;\\]+)[^\\\n]*\\\n"
    r"(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    r" +# via (?P<via>.*)$",
    re.M,
)


@dataclass
class Package:
    """A package in one version: the hashes of its files, the names of what needs it, and the locks it is in."""

    name: str
    version: str
    hashes: list[str]
    needed_by: set[str] = field(default_factory=set)
    locks: set[str] = field(default_factory=set)

    @property
    def purl(self) -> str:
        """Return what the package is called in bills of materials."""
        return f"pkg:pypi/{self.name}@{self.version}"


def read_locks(folder: Path) -> dict[str, Package]:
    """Return the packages of all locks by their purl."""
    found: dict[str, Package] = {}
    for path in sorted(folder.glob("*.lock")):
        for entry in ENTRY.finditer(path.read_text(encoding="utf-8")):
            hashes = re.findall("sha256:([0-9a-f]{64})", entry["hashes"])
            package = Package(entry["name"], entry["version"], hashes)
            package = found.setdefault(package.purl, package)
            package.locks.add(path.stem)
            package.needed_by |= {who.split(" ")[0] for who in entry["via"].split(", ")} - {"-c"}
    return dict(sorted(found.items()))


def component(package: Package) -> dict[str, Any]:
    """Return a package as a component."""
    hashes = [{"alg": "SHA-256", "content": one} for one in package.hashes]
    place = {"type": "distribution", "url": f"https://pypi.org/project/{package.name}/{package.version}/"}
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "scope": "required" if "core" in package.locks else "optional",
        "externalReferences": [place | {"hashes": hashes}],
        "properties": [{"name": "promptfed:lock", "value": lock} for lock in sorted(package.locks)],
    }


def bill(version: str, packages: dict[str, Package], files: list[Path]) -> dict[str, Any]:
    """Return the bill of materials of a version of PromptFed; `files` are its wheel and its source archive."""
    root = f"pkg:pypi/promptfed@{version}"
    references = [
        {
            "type": "distribution",
            "url": f"https://pypi.org/project/promptfed/{version}/#{path.name}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        }
        for path in files
    ]
    described: dict[str, Any] = {
        "type": "application",
        "bom-ref": root,
        "name": "promptfed",
        "version": version,
        "purl": root,
    }
    described |= {"licenses": [{"license": {"id": "Apache-2.0"}}], "externalReferences": references}
    components = [component(package) for package in packages.values()]
    needs: dict[str, list[str]] = {root: [], **{purl: [] for purl in packages}}
    for purl, package in packages.items():
        for who in [root, *packages]:
            if who.removeprefix("pkg:pypi/").partition("@")[0] in package.needed_by:
                needs[who].append(purl)
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": described},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in needs.items()],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {"$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json", "serialNumber": serial.urn, **content}


def problem(text: str) -> str:
    """Return what CycloneDX's own schema finds wrong with a bill of materials, or an empty text."""
    kind = import_module("cyclonedx.schema").SchemaVersion.V1_6
    found = import_module("cyclonedx.validation.json").JsonStrictValidator(kind).validate_str(text)
    return str(found) if found else ""


def main() -> None:
    """Write the file, and say how many packages it names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="*", help="the wheel and the source archive")
    parser.add_argument("--check", action="store_true", help="validate it against CycloneDX's schema")
    given = parser.parse_args()
    source = (ROOT / "src/promptfed/core/version.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "([^"]+)"$', source, re.M)
    packages = read_locks(ROOT / "requirements")
    text = json.dumps(bill(version, packages, given.files), indent=2) + "\n"
    if given.check and (wrong := problem(text)):
        sys.exit(f"The bill of materials is not valid: {wrong}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text, encoding="utf-8")
    print(f"{given.out}: {len(packages)} packages, {'valid' if given.check else 'not validated'}")


if __name__ == "__main__":
    main()
