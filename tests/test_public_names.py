"""What `import promptfed` offers, and how little it costs."""

import subprocess
import sys

import pytest

import promptfed
from support.command import environment


def test_names_are_sorted() -> None:
    assert promptfed.__all__ == sorted(promptfed.__all__)
    assert len(set(promptfed.__all__)) == len(promptfed.__all__)


@pytest.mark.parametrize("name", promptfed.__all__)
def test_every_name_resolves(name: str) -> None:
    found = getattr(promptfed, name)
    assert found is not None
    assert getattr(found, "__module__", "promptfed").split(".")[0] in ("promptfed", "builtins", "types")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        _ = promptfed.Trainer


def test_the_version_is_a_version() -> None:
    assert [part.isdigit() for part in promptfed.__version__.split(".")] == [True, True, True]


def test_importing_the_package_and_its_light_parts_does_not_import_torch() -> None:
    code = (
        "import sys, promptfed; assert 'torch' not in sys.modules, 'promptfed'\n"
        "import promptfed.results; assert 'torch' not in sys.modules, 'results'\n"
        "import promptfed.results.report; assert 'torch' not in sys.modules, 'report'\n"
        "import promptfed.papers; assert 'torch' not in sys.modules, 'papers'\n"
        "import promptfed.results.folder.record; assert 'torch' not in sys.modules, 'record'\n"
        "import promptfed.cli; assert 'torch' not in sys.modules, 'cli'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
