"""How much memory a process may use: the machine's, or less where its control groups say so."""

import math
from pathlib import Path

import pytest

from promptfed.core import memory


def group(root: Path, path: str, file: str, content: str) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(content)


@pytest.mark.parametrize(
    ("own", "limit"),
    [
        ("0::/\n", math.inf),
        ("0::/outer\n", 8e9),
        ("0::/outer/inner\n", 8e9),
        ("0::/outer/tight\n", 2e9),
        ("4:cpu:/tight\n3:memory:/old\n0::/\n", 5e9),
        ("4:cpu,memory:/old\n", 5e9),
        ("nonsense\n", math.inf),
    ],
)
def test_the_least_limit_of_all_control_groups_around_a_process_counts(own: str, limit: float, tmp_path: Path) -> None:
    group(tmp_path, "outer", "memory.max", "8000000000\n")
    group(tmp_path, "outer/inner", "memory.max", "max\n")
    group(tmp_path, "outer/tight", "memory.max", "2000000000\n")
    group(tmp_path, "memory/old", "memory.limit_in_bytes", "5000000000\n")
    (tmp_path / "cgroup").write_text(own)
    assert memory.container_bytes(tmp_path, tmp_path / "cgroup") == limit


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert memory.container_bytes(tmp_path, tmp_path / "nowhere") == math.inf


def test_more_than_there_is_is_refused_with_both_sizes() -> None:
    memory.require(1e9, there=1e9)
    with pytest.raises(MemoryError, match=r"at least 1,234\.5 GB, and there are 2\.0 GB") as refused:
        memory.require(1234.5e9, "method.batch", there=2e9)
    assert isinstance(refused.value, memory.ShortOfMemoryError)
    assert refused.value.keys == ("method.batch",)
    assert 0 < memory.machine_bytes() < math.inf
