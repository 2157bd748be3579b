"""What docs/operating.md says about a machine without internet, tried as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripts import load_script

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")


def documented(first: str) -> list[str]:
    """Return the words of the page's command that begins like this."""
    (line,) = re.findall(rf"^{re.escape(first)}.*$", PAGE, re.M)
    return shlex.split(line)


def test_the_page_and_the_tool_use_the_same_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, ran = load_script("tools/try_offline.py"), list[list[str]]()
    monkeypatch.setattr(tool.subprocess, "run", lambda command, **given: ran.append(command))
    monkeypatch.setattr(tool, "without_network", list)
    tool.gather(Path("promptfed.whl"), Path("wheelhouse"))
    tool.install(Path("wheelhouse"), tmp_path / "venv", "flare")
    (wheel,) = [command for command in ran if "wheel" in command]
    (install,) = [command for command in ran if "install" in command]
    assert set(documented("pip wheel")[:4]) <= {"pip", *wheel}
    assert set(documented("/opt/promptfed/bin/pip install --no-index")[1:5]) <= set(install)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_extra_works_without_a_network(tmp_path: Path) -> None:
    made = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(made, check=True)
    (wheel,) = tmp_path.glob("promptfed-*.whl")
    script = [sys.executable, str(ROOT / "tools" / "try_offline.py"), str(wheel)]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("promptfed")]
    assert said == [f"promptfed{extra} works offline." for extra in ("", "[flare]", "[serve]")]
