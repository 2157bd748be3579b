"""Sentences with a place for a pseudo-word. A template's number is its place here, so new ones go to the end.

The lists are those of textual inversion (Gal et al. ICLR 2023) in the short form the diffusers library made usual,
sentences that occur twice left out.
"""

from typing import Literal

TemplateKind = Literal["object", "style"]

OBJECT = (
    "a photo of a {}",
    "a rendering of a {}",
    "a cropped photo of the {}",
    "the photo of a {}",
    "a photo of a clean {}",
    "a photo of a dirty {}",
    "a dark photo of the {}",
    "a photo of my {}",
    "a photo of the cool {}",
    "a close-up photo of a {}",
    "a bright photo of the {}",
    "a cropped photo of a {}",
    "a photo of the {}",
    "a good photo of the {}",
    "a photo of one {}",
    "a close-up photo of the {}",
    "a rendition of the {}",
    "a photo of the clean {}",
    "a rendition of a {}",
    "a photo of a nice {}",
    "a good photo of a {}",
    "a photo of the nice {}",
    "a photo of the small {}",
    "a photo of the weird {}",
    "a photo of the large {}",
    "a photo of a cool {}",
    "a photo of a small {}",
)
STYLE = (
    "a painting in the style of {}",
    "a rendering in the style of {}",
    "a cropped painting in the style of {}",
    "the painting in the style of {}",
    "a clean painting in the style of {}",
    "a dirty painting in the style of {}",
    "a dark painting in the style of {}",
    "a picture in the style of {}",
    "a cool painting in the style of {}",
    "a close-up painting in the style of {}",
    "a bright painting in the style of {}",
    "a good painting in the style of {}",
    "a rendition in the style of {}",
    "a nice painting in the style of {}",
    "a small painting in the style of {}",
    "a weird painting in the style of {}",
    "a large painting in the style of {}",
)
TEMPLATES: dict[TemplateKind, tuple[str, ...]] = {"object": OBJECT, "style": STYLE}


def templates(kind: TemplateKind, first: int = 0) -> tuple[str, ...]:
    """Return the templates of a kind, or only the `first` of them."""
    return TEMPLATES[kind][: first or None]
