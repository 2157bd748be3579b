"""Every method keeps every promise, in every variant; a failure names the method and the promise."""

import pytest

from promptfed.checks import PROMISES, check_method
from promptfed.config import methods
from promptfed.method import Method
from promptfed.methods.fedavg import FedAvg
from promptfed.methods.local_only import Local
from promptfed.methods.pfedpt import PFedPT

# fewer epochs than the defaults: the promises are the same, the suite is faster
VARIANTS: dict[str, Method] = {
    "fedavg": FedAvg(lr=0.05, epochs=1, batch=8),
    "fedavg with momentum and decay": FedAvg(lr=0.02, epochs=2, batch=8, momentum=0.9, weight_decay=0.01),
    "fedavg without short batches": FedAvg(lr=0.05, epochs=1, batch=8, drop_last=True),
    "local": Local(lr=0.05, epochs=1, batch=8),
    "local with momentum and decay": Local(lr=0.02, epochs=2, batch=8, momentum=0.9, weight_decay=0.01),
    "pfedpt": PFedPT(lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt frame": PFedPT(prompt="frame", size=1, lr=0.05, epochs=1, prompt_epochs=2, batch=16),
    "pfedpt patch": PFedPT(prompt="patch", size=3, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt random patch": PFedPT(prompt="random-patch", size=3, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt tokens": PFedPT(prompt="tokens", size=2, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt joint": PFedPT(joint=True, lr=0.05, epochs=2, batch=8),
    "pfedpt without momentum": PFedPT(prompt_momentum=0.0, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
    "pfedpt without short batches": PFedPT(drop_last=True, lr=0.05, epochs=1, prompt_epochs=1, batch=8),
}


def test_no_method_is_left_out() -> None:
    own = {kind for kind in methods().values() if kind.__module__.startswith("promptfed.")}
    assert {type(method) for method in VARIANTS.values()} == own


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_promise(variant: str, promise: str) -> None:
    check_method(VARIANTS[variant], only=promise)
