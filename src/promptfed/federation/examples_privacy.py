"""What one example's privacy has cost at each client, where a method hides single examples by noisy steps.

Two worlds are neighbours if one example is another. In a pass every example is in one batch, whose sum of gradients it
moves by at most 2 × the clip, so a pass is one Gaussian mechanism with half the noise multiplier: what other batches do
with its result costs nothing more. No advantage is taken of the order of examples being random.
"""

from collections.abc import Sequence

from promptfed.core.extensions import SpendsPrivacy
from promptfed.core.method import Method
from promptfed.federation.guards.accountant import epsilon
from promptfed.results.folder.record import Line


def spent_on_examples(method: Method, rounds: Sequence[Sequence[int]], clients: Sequence[int]) -> Line:
    """Return the ε of one example at each of `clients` after `rounds`, each a list of who took part; empty if none."""
    noise, delta, passes = _spends(method)
    if not noise:
        return {}
    each = [epsilon(noise, delta, passes * sum(client in one for one in rounds)) for client in clients]
    return {"epsilon": each, "delta": delta}


def hides_examples(method: Method) -> bool:
    """Say whether the method's own noise is to hide single examples."""
    return _spends(method)[0] > 0


def _spends(method: Method) -> tuple[float, float, int]:
    return method.spends() if isinstance(method, SpendsPrivacy) else (0.0, 0.0, 0)
