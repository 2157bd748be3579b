"""Stand-ins for wandb, trackio and mlflow, which write down every call and nothing else."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Calls = list[tuple[Any, ...]]


@dataclass
class Recorder:
    """Calls, and what is to fail."""

    calls: Calls = field(default_factory=list)
    step: int = 0  # of wandb's resumed run
    offline: bool = False
    history: list[int] = field(default_factory=list)  # of mlflow's resumed run
    broken: str = ""  # the call that fails

    def note(self, name: str, *words: Any) -> None:
        self.calls.append((name, *words))
        if name == self.broken:
            raise ConnectionError("no network")

    def named(self, name: str) -> Calls:
        return [call[1:] for call in self.calls if call[0] == name]


class _Summary(dict[str, Any]):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def update(self, values: Any) -> None:  # type: ignore[override]
        self.recorder.note("summary", dict(values))


def _put(monkeypatch: pytest.MonkeyPatch, name: str, **parts: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(parts)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put a wandb in place; its runs are called abc123."""
    recorder = Recorder()

    def init(**words: Any) -> Any:
        recorder.note("init", words)
        return SimpleNamespace(
            id="abc123",
            project=words["project"],
            offline=recorder.offline,
            step=recorder.step,
            log=lambda values, step: recorder.note("log", step, values),
            summary=_Summary(recorder),
            finish=lambda exit_code=0: recorder.note("finish", exit_code),
        )

    _put(monkeypatch, "wandb", init=init, Settings=lambda **words: words)
    return recorder


def fake_trackio(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put a trackio in place."""
    recorder = Recorder()

    def init(
        *, project: str, name: str, config: Any, resume: str, auto_log_gpu: bool | None = None, **more: Any
    ) -> Any:
        words = {"project": project, "name": name, "config": config, "resume": resume, "auto_log_gpu": auto_log_gpu}
        recorder.note("init", words | more)
        return SimpleNamespace(
            log=lambda values, step: recorder.note("log", step, values), finish=lambda: recorder.note("finish")
        )

    _put(monkeypatch, "trackio", init=init)
    return recorder


def fake_mlflow(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Put an mlflow in place; its experiments are called 7 and its runs r1."""
    recorder = Recorder()

    class MlflowClient:
        def get_experiment_by_name(self, name: str) -> None:
            recorder.note("get_experiment_by_name", name)

        def create_experiment(self, name: str) -> str:
            recorder.note("create_experiment", name)
            return "7"

        def create_run(self, experiment_id: str, *, run_name: str) -> Any:
            recorder.note("create_run", experiment_id, run_name)
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def update_run(self, run_id: str, *, status: str) -> None:
            recorder.note("update_run", run_id, status)

        def get_metric_history(self, run_id: str, key: str) -> list[Any]:
            recorder.note("get_metric_history", run_id, key)
            return [SimpleNamespace(step=step) for step in recorder.history]

        def log_batch(self, run_id: str, *, metrics: Any = (), params: Any = ()) -> None:
            recorder.note(
                "log_batch", run_id, {m.key: (m.value, m.step) for m in metrics}, {p.key: p.value for p in params}
            )

        def set_terminated(self, run_id: str, *, status: str) -> None:
            recorder.note("set_terminated", run_id, status)

    _put(monkeypatch, "mlflow", MlflowClient=MlflowClient)
    _put(
        monkeypatch,
        "mlflow.entities",
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    return recorder
