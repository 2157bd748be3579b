"""On which images a client's own model may be tested besides the client's own.

own-names   these, and of the classes only those it trains on are named
neighbour   the other clients' test images
base        its own and the others': all test images of the classes that training names
novel       test images of classes that training never names, told apart by their names alone
"""

from promptfed.core.errors import choice

OWN_NAMES, NEIGHBOUR, BASE, NOVEL = "own-names", "neighbour", "base", "novel"
SETS = (OWN_NAMES, NEIGHBOUR, BASE, NOVEL)


def sets_of(text: str) -> tuple[str, ...]:
    """Return the sets of evaluate.sets, which "+" joins; an unknown one is refused."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split("+"))) if text else ()
    for name in found:
        if name not in SETS:
            raise choice("set in evaluate.sets", name, SETS)
    return found
