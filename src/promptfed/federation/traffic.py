"""What a round sends, in numbers and bytes: the loop counts it, and a plan knows it beforehand."""

from collections.abc import Iterable

from promptfed.core import tree
from promptfed.core.tree import Tree
from promptfed.federation.guards import Guards


def count_traffic(down: Tree, up: Tree, count: int, first: int, once: Iterable[str], guards: Guards) -> dict[str, int]:
    """Count numbers per client and bytes of the whole round; `down` and `up` are [C, ...] with C = `count`.

    What a method sends `once` is in the bytes of a client's first round only; `first` clients have theirs now.
    """
    often = tree.drop(down, once)
    more_down, more_up = guards.traffic(up, count)
    return {
        "down_floats": tree.floats(often) // count,
        "up_floats": tree.floats(up) // count,
        "down_bytes": tree.nbytes(often) + tree.nbytes(tree.pick(down, once)) // count * first + more_down,
        "up_bytes": tree.nbytes(up) + more_up,
    }
