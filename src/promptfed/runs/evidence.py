"""Our own measurements that advice rests on. Each is in a committed table of docs/results, and a test compares them."""

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Measured:
    """An accuracy in percent: where it is kept, and the page that explains it."""

    percent: float
    table: str  # a folder of docs/results
    column: str
    row: str
    page: str  # in docs/results
    measure: str = "mean"  # or one of the measures beside it
    tuned: bool = False  # with the rate that did best on validation images; else with the table's own

    def __str__(self) -> str:
        return f"{self.percent:.2f} %"


def _people(percent: float, row: str) -> Measured:
    return Measured(percent, "pfedvpt-personal", "people", row, "pfedvpt.md", tuned=True)


def _office(percent: float, row: str) -> Measured:
    return Measured(percent, "pfedvpt-personal", "office", row, "pfedvpt.md", tuned=True)


def _dermoscopic(percent: float, row: str) -> Measured:
    return Measured(percent, "pfedvpt-dermoscopic", "dermoscopic", row, "pfedvpt.md", tuned=True)


def _cifar100(percent: float, row: str) -> Measured:
    return Measured(percent, "pfedpg-cifar100-0.01", "c100-disjoint", row, "pfedpg.md")


def _cifar10(percent: float, row: str) -> Measured:
    return Measured(percent, "pfedpg-cifar10-0.01", "c10-disjoint", row, "pfedpg.md")


def _lit(percent: float, row: str) -> Measured:
    return Measured(percent, "fedapt-office", "office", row, "fedapt.md", tuned=row != "clip-zs")


def _shops(percent: float, row: str) -> Measured:
    return Measured(percent, "fedapt-shops-t1", "shops", row, "fedapt.md")


def _hidden(percent: float, row: str, column: str = "eps8") -> Measured:
    return Measured(percent, "field-shops-privacy", column, row, "field.md", tuned=True)


def _joining(percent: float, row: str) -> Measured:
    return Measured(percent, "field-shops-newcomers", "five", row, "field.md", tuned=True)


def _novel(percent: float, row: str) -> Measured:
    return Measured(percent, "field-shops-novel", "shops", row, "field.md", "novel", tuned=row != "clip-zs")


EVIDENCE = MappingProxyType(
    {
        # twenty people with twenty photographs each, of five of ten classes; the package's own network
        "people/alone": _people(81.37, "head-probe"),
        "people/fedavg": _people(80.80, "fedavg"),
        "people/head": _people(82.66, "vit-tuning"),
        "people/shares": _people(89.73, "prior"),
        "people/prompt": _people(88.21, "shared"),
        # four cameras with all of ten classes; DINOv2 ViT-S/14 at 224 pixels
        "office/alone": _office(95.03, "head-probe"),
        "office/fedavg": _office(87.59, "fedavg"),
        "office/head": _office(97.05, "vit-tuning"),
        "office/shares": _office(97.67, "prior"),
        "office/prompt": _office(96.65, "shared"),
        # three sites with 1,144 to 2,708 photographs of three classes; DINOv2 ViT-S/14 at 112 pixels
        "dermoscopic/pfedpg": _dermoscopic(81.33, "pfedpg"),
        "dermoscopic/prompt": _dermoscopic(80.83, "singleset-vpt"),
        "dermoscopic/alone": _dermoscopic(79.18, "head-probe"),
        "dermoscopic/fedavg": _dermoscopic(77.41, "fedavg"),
        "dermoscopic/head": _dermoscopic(77.15, "vit-tuning"),
        "dermoscopic/shares": _dermoscopic(75.98, "prior"),
        # people and Office at rate 0.1
        "people/rate": Measured(89.66, "pfedvpt-personal", "people", "prior", "pfedvpt.md"),
        "office/rate": Measured(97.72, "pfedvpt-personal", "office", "prior", "pfedvpt.md"),
        # every class at one client only; DINOv2 ViT-S/14 at 98 pixels, one seed
        "cifar10/alone": _cifar10(98.17, "head-probe"),
        "cifar10/fedvpt": _cifar10(56.63, "fedvpt"),
        "cifar10/pfedpg": _cifar10(98.14, "pfedpg-adam"),
        "cifar100/alone": _cifar100(88.98, "head-probe"),
        "cifar100/fedvpt": _cifar100(88.72, "fedvpt"),
        "cifar100/pfedpg": _cifar100(89.54, "pfedpg-adam"),
        # the same cameras; a dual encoder of our own, LiT
        "lit/zero-shot": _lit(28.18, "clip-zs"),
        "lit/whole": _lit(86.63, "vit-full"),
        "lit/head": _lit(95.63, "vit-tuning"),
        "lit/promptfl": _lit(95.37, "promptfl"),
        "lit/fedclip": _lit(96.59, "fedclip"),
        "lit/fedapt": _lit(95.33, "fedapt"),
        # four shops with 1,500 photographs each, one of them in a style that is new to the package's dual encoder
        "shops/zero-shot": _shops(57.45, "clip-zs"),
        "shops/whole": _shops(75.82, "vit-full"),
        "shops/head": _shops(63.30, "vit-tuning"),
        "shops/promptfl": _shops(58.93, "promptfl"),
        "shops/fedapt": _shops(61.45, "fedapt"),
        # five classes that training never names, with the same dual encoder
        "novel/zero-shot": _novel(72.30, "clip-zs"),
        "novel/promptfl": _novel(65.30, "promptfl"),
        "novel/promptfolio": _novel(61.48, "promptfolio"),
        "novel/fedkgcoop": _novel(72.30, "fedkgcoop"),
        # two of twenty clients come after the last round; the package's CLIP
        "joining/shares": _joining(85.02, "class-shares"),
        "joining/alone": _joining(78.83, "head-probe"),
        "joining/pfedpg": _joining(75.36, "pfedpg"),
        # twenty clients, the package's CLIP; each hidden by noise at ε = 8, or by none
        "hidden/none": _hidden(77.28, "class-shares", "none"),
        "hidden/shares": _hidden(62.99, "class-shares"),
        "hidden/alone": _hidden(71.11, "head-probe"),
        "hidden/promptfl": _hidden(57.46, "promptfl"),
        "hidden/promptfl-none": _hidden(58.50, "promptfl", "none"),
    }
)
SENT = MappingProxyType({"people/shares": 1610, "people/fedavg": 1_876_010})  # numbers a client sends in a round
