"""Guards, by the keys of a recipe's [guards] table: privacy switches and robust aggregation.

Their order is fixed. On the client: clip, then noise if it is local. On the server: a robust rule or the secure sum,
then noise if it is central.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from promptfed.core import options, tree
from promptfed.core.errors import PromptFedError
from promptfed.core.method import Method
from promptfed.core.tree import Tree
from promptfed.federation.guard_options import GuardOptions
from promptfed.federation.guards.accountant import Accountant, require_accountant
from promptfed.federation.guards.clip import Clip
from promptfed.federation.guards.guard import Guard, Handed
from promptfed.federation.guards.noise import CentralNoise, LocalNoise
from promptfed.federation.guards.robust import Krum, Median, NormBound, TrimmedMean, trimmed
from promptfed.federation.guards.secure import SecureSum, require_cryptography

GUARDS: dict[str, type[Guard]] = {
    kind.name: kind for kind in (Clip, TrimmedMean, Median, Krum, NormBound, SecureSum)
} | {"local-noise": LocalNoise, "central-noise": CentralNoise}


@dataclass(frozen=True)
class Guards:
    """The guards of a run, in their order, and the accountant of its noise."""

    guards: tuple[Guard, ...] = ()
    accountant: Accountant | None = None

    def __call__(self, round: int, clients: Tensor, down: Tree, up: Tree, weights: Tensor) -> Handed:  # noqa: A002
        """Return (clients, up, weights) as the method is to see them; a method that sends nothing needs no guard."""
        for guard in self.guards if up else ():
            clients, up, weights = guard(round, clients, down, up, weights)
        return clients, up, weights

    def protect(self, round: int, client: Tensor, down: Tree, up: Tree, weight: Tensor) -> Handed:  # noqa: A002
        """Do on one site, whose tensors have no leading C, what stands on the client's side."""
        return self.of("client")(round, client, down, up, weight)

    def of(self, side: Literal["client", "server"]) -> "Guards":
        """Return the guards of one side alone."""
        return Guards(tuple(guard for guard in self.guards if guard.side == side))

    def traffic(self, up: Tree, clients: int) -> tuple[int, int]:
        """Return the bytes (down, up) of all clients that come on top of `up` [C, ...] as it is."""
        secure = next((guard for guard in self.guards if isinstance(guard, SecureSum)), None)
        if secure is None or not up:
            return 0, 0
        down, sent = secure.traffic(tree.floats(up) // clients, clients)
        return down * clients, sent * clients - tree.nbytes(up)

    def privacy(self, before: Iterable[Sequence[int]], clients: Sequence[int]) -> dict[str, Any]:
        """Return the ε of a round's clients, and δ; `before` says who took part earlier. Empty without noise."""
        if self.accountant is None:
            return {}
        spent = self.accountant.spent([*before, clients], clients)
        return {"epsilon": spent, "delta": self.accountant.delta}


def build(
    table: Mapping[str, Any], method: Method, seed: int, founders: int, per_round: int, *, secret_draw: bool = True
) -> Guards:
    """Return the guards of a recipe's table; `per_round` of the `founders` take part in a round.

    Where every client knows the seed, as over sites, the draw is not secret, and ε is not lowered by it.
    """
    keys = options.make(GuardOptions, table, "guards")
    noise = (keys.clip, keys.noise, seed, keys.entropy)
    local, central = (bool(keys.noise) and keys.place == place for place in ("local", "central"))
    chain: list[Guard] = []
    if keys.clip:
        chain.append(Clip(keys.clip, even=bool(keys.noise)))
    if local:
        chain.append(LocalNoise(*noise))
    if keys.robust != "mean":
        chain.append(_robust(keys))
    if keys.secure:
        chain.append(SecureSum(keys.threshold))
    if central:
        chain.append(CentralNoise(*noise))
    accountant = Accountant(keys.noise, keys.delta, keys.budget, keys.place, founders, per_round, secret_draw)
    return Guards(tuple(chain), accountant if keys.noise else None)


def _robust(keys: GuardOptions) -> Guard:
    made: dict[str, Guard] = {
        "trimmed-mean": TrimmedMean(keys.trim),
        "median": Median(),
        "krum": Krum(keys.byzantine, keys.keep),
        "norm-bound": NormBound(keys.bound),
    }
    return made[keys.robust]


def check(table: Mapping[str, Any], method: Method, present: int) -> None:
    """Refuse switches that do not go together, or not with the method, or not with `present` clients in a round."""
    keys = options.make(GuardOptions, table, "guards")
    if keys.noise:
        require_accountant()
    if keys.secure:
        require_cryptography()
    if keys.noise and not keys.clip:
        raise PromptFedError("guards.noise is in units of guards.clip, which bounds what it hides; set guards.clip.")
    if keys.budget and not keys.noise:
        raise PromptFedError("guards.budget limits what noise lets through; set guards.noise, or leave the budget out.")
    if keys.secure and keys.robust != "mean":
        raise PromptFedError(f"guards.robust={keys.robust} compares the answers that guards.secure hides; choose one.")
    if keys.noise and keys.place == "central" and keys.robust != "mean":
        raise PromptFedError(
            f"Central noise is accounted for a mean, not for guards.robust={keys.robust}; set guards.place=local."
        )
    _check_method(keys, method)
    _check_number(keys, present)


OTHERS = "guards.clip, local noise, or robust=krum or norm-bound"  # what leaves every client its own answer


def _check_method(keys: GuardOptions, method: Method) -> None:
    """Refuse to leave only the mean to a method that needs every client's own answer, or other zeros than were sent."""
    if method.traits.marks_nothing and (keys.clip or keys.robust == "norm-bound"):
        switch = "guards.clip" if keys.clip else "guards.robust=norm-bound"
        raise PromptFedError(
            f'{switch} changes what clients send, and to method {method.name} rows of zeros mean "none"; '
            "use guards.robust=krum, or a method without such rows."
        )
    if not method.traits.needs_rows:
        return
    switches = {
        "guards.secure": keys.secure,
        "guards.place=central": bool(keys.noise) and keys.place == "central",
        f"guards.robust={keys.robust}": keys.robust in ("trimmed-mean", "median"),
    }
    for switch, on in switches.items():
        if on:
            raise PromptFedError(
                f"{switch} leaves only the mean of what clients send, and method {method.name} needs each client's own "
                f"answer; use {'guards.robust=krum' if method.traits.marks_nothing else OTHERS}."
            )


def _check_number(keys: GuardOptions, present: int) -> None:
    """Refuse rules that say nothing about so few clients."""
    if keys.secure and present < 2:
        raise PromptFedError("guards.secure hides a client among others, and there is only one in a round.")
    if keys.robust == "trimmed-mean" and not trimmed(present, keys.trim):
        raise PromptFedError(f"guards.trim={keys.trim:g} trims none of the {present} clients in a round; raise it.")
    if keys.robust == "krum" and present < 2 * keys.byzantine + 3:
        raise PromptFedError(
            f"Krum with guards.byzantine={keys.byzantine} needs {2 * keys.byzantine + 3} clients in a round, "
            f"not {present}."
        )
    if keys.robust == "krum" and keys.keep > present:
        raise PromptFedError(f"guards.keep={keys.keep} is more than the {present} clients in a round.")
    if keys.robust == "krum" and keys.keep > present - keys.byzantine:
        raise PromptFedError(
            f"guards.keep={keys.keep} of {present} clients would keep some of the {keys.byzantine} poisoned ones."
        )
