"""What surrounds the code: workflows, hooks, templates, the package's metadata and the tools of a release."""

import importlib.metadata
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import promptfed
from support.scripts import load_script

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SETTINGS = [*sorted(GITHUB.rglob("*.y*ml")), ROOT / ".pre-commit-config.yaml"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def steps(workflow: Path) -> list[dict[str, Any]]:
    """Return every step of every job."""
    return [step for job in read(workflow)["jobs"].values() for step in job.get("steps", [])]


# -- workflows, hooks and templates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SETTINGS, ids=name)
def test_every_settings_file_is_a_yaml_mapping(path: Path) -> None:
    assert isinstance(read(path), dict)
    assert path.suffix in (".yml", ".yaml")


def test_the_expected_workflows_and_forms_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "release"]
    assert [path.stem for path in FORMS] == ["bug", "feature", "method"]


def test_tests_run_on_the_python_versions_the_package_names() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [entry.removeprefix(prefix) for entry in PROJECT["classifiers"] if entry.startswith(prefix)]
    matrix = read(GITHUB / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix == {"python": [f"3.{minor}" for minor in named]}
    assert PROJECT["requires-python"] == f">=3.{named[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflows_have_few_rights_and_an_end(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 120


def test_only_publishing_may_write() -> None:
    rights = {
        f"{path.stem}.{key}": job["permissions"]
        for path in WORKFLOWS
        for key, job in read(path)["jobs"].items()
        if "permissions" in job
    }
    assert rights == {"release.pypi": {"id-token": "write"}, "release.github": {"contents": "write"}}


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_every_action_is_pinned_to_a_commit_and_says_its_version(path: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.+)", path.read_text(encoding="utf-8"))
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_no_script_of_a_workflow_has_words_of_others_in_it(path: Path) -> None:
    assert [step["run"] for step in steps(path) if "${{" in step.get("run", "")] == []


def test_every_make_target_that_ci_asks_for_exists() -> None:
    scripts = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    scripts.append((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    asked = {target for script in scripts for target in re.findall(r"^make ([a-z-]+)", script, re.M)}
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert asked >= {"check", "test", "try-wheel", "docs"}
    assert asked - made == set()


def test_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    assert re.findall(r"^([a-z-]+):.*  ## [a-z]", text, re.M) == phony.split()


@pytest.mark.parametrize("path", sorted((ROOT / ".ci").iterdir()), ids=name)
def test_ci_scripts_can_be_run(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_forms_ask_each_question_once(path: Path) -> None:
    asked = [part["id"] for part in read(path)["body"] if part["type"] != "markdown"]
    assert len(asked) == len(set(asked)) >= 3


def test_hooks_run_what_make_check_runs() -> None:
    (repo,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["id"]: hook for hook in repo["hooks"]}
    assert {"ruff-check", "ruff-format", "mypy", "end-of-file-fixer", "check-added-large-files"} <= set(hooks)
    skipped = next(
        step["env"]["SKIP"] for step in steps(GITHUB / "workflows" / "ci.yml") if "SKIP" in step.get("env", {})
    )
    assert skipped.split(",") == [key for key, hook in hooks.items() if hook["language"] == "system"]


# -- versions and releases -------------------------------------------------------------------------------------------


def test_the_installed_version_is_the_packages_own() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert importlib.metadata.version("promptfed") == promptfed.__version__


CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2030-02-03

### Added

- Two.

## [0.1.0] - 2030-01-02

- One.

[0.1.0]: https://example.org
"""


def test_release_notes_are_the_versions_own_section() -> None:
    notes = load_script("tools/release_notes.py").release_notes
    assert notes("v0.2.0", "0.2.0", CHANGELOG) == "### Added\n\n- Two."
    assert notes("v0.1.0", "0.1.0", CHANGELOG) == "- One."


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "sentence"),
    [
        ("v0.1.1", "0.1.0", CHANGELOG, "The tag v0.1.1 is not v0.1.0"),
        ("0.1.0", "0.1.0", CHANGELOG, "The tag 0.1.0 is not v0.1.0"),
        ("v0.3.0", "0.3.0", CHANGELOG, "exactly one heading of the form: ## [0.3.0] - YYYY-MM-DD"),
        ("v0.1.0", "0.1.0", CHANGELOG.replace("- One.", ""), "says nothing about 0.1.0"),
    ],
)
def test_a_release_that_does_not_agree_is_refused(tag: str, version: str, changelog: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_script("tools/release_notes.py").release_notes(tag, version, changelog)


def test_the_tool_reads_the_packages_version() -> None:
    source = (ROOT / "src" / "promptfed" / "core" / "version.py").read_text(encoding="utf-8")
    assert load_script("tools/release_notes.py").package_version(source) == promptfed.__version__


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
    }
