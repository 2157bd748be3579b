"""An export as its user has it: the code of its own README.md, run where PromptFed cannot be imported."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support.command import promptfed

WITHOUT = 'import sys\nsys.modules["promptfed"] = None\n'  # importing it fails, though it is installed
PRINT = "\nimport json\nprint(json.dumps([float(one) for one in probabilities]))\n"


def answer(folder: Path, photo: Path, more: str = "", **changes: str) -> list[float]:
    """Return what the code in README.md, and `more`, answers; `changes` are put in the place of words in the code."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text("utf-8"), re.M | re.S)
    code = code.replace("photo.jpg", str(photo))
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT + code + more + PRINT],
        cwd=folder,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def expected(source: Path, photo: Path, client: int) -> list[float]:
    """Return what `promptfed predict` answers, in the order of the classes, whose names are numbers."""
    done = promptfed("predict", source, photo, "--client", client, "--top", 99, "--device", "cpu", "--json")
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)
    return [one["probability"] for one in sorted(found["classes"], key=lambda one: int(one["class"]))]
