"""Print a release's section of the changelog, if tag, package and changelog agree: release_notes.py v0.1.0."""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>\d{4}-\d\d-\d\d)$", re.M)
NEXT = re.compile(r"^(?:## |\[[^\]]+\]: )", re.M)  # another version, or the links at the end


def package_version(source: str) -> str:
    """Return the version that core/version.py states."""
    (version,) = re.findall(r'^__version__ = "([^"]+)"$', source, re.M)
    return str(version)


def release_notes(tag: str, version: str, changelog: str) -> str:
    """Return the notes of a tag such as v0.1.0; raise ValueError where something does not agree."""
    if tag != f"v{version}":
        raise ValueError(f"The tag {tag} is not v{version}, the version in src/promptfed/core/version.py.")
    found = [heading for heading in HEADING.finditer(changelog) if heading["version"] == version]
    if len(found) != 1:
        raise ValueError(f"CHANGELOG.md needs exactly one heading of the form: ## [{version}] - YYYY-MM-DD")
    rest = changelog[found[0].end() :]
    end = NEXT.search(rest)
    notes = rest[: end.start() if end else None].strip()
    if not notes:
        raise ValueError(f"CHANGELOG.md says nothing about {version}.")
    return notes


def main() -> None:
    """Print the notes, or say in one sentence why there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", help="for example v0.1.0")
    tag: str = parser.parse_args().tag
    version = package_version((ROOT / "src/promptfed/core/version.py").read_text(encoding="utf-8"))
    try:
        print(release_notes(tag, version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
