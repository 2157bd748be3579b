"""Templates keep their numbers."""

import pytest

from promptfed.core.prompts.templates import OBJECT, STYLE, TEMPLATES, templates


@pytest.mark.parametrize("listed", TEMPLATES.values(), ids=TEMPLATES)
def test_every_template_has_one_place_for_the_word_and_occurs_once(listed: tuple[str, ...]) -> None:
    assert all(template.count("{}") == 1 for template in listed)
    assert len(set(listed)) == len(listed)


def test_numbers_are_stable() -> None:
    assert (len(OBJECT), len(STYLE)) == (27, 17)
    assert [OBJECT[0], OBJECT[9], OBJECT[26]] == [
        "a photo of a {}",
        "a close-up photo of a {}",
        "a photo of a small {}",
    ]
    assert [STYLE[0], STYLE[7], STYLE[16]] == [
        "a painting in the style of {}",
        "a picture in the style of {}",
        "a large painting in the style of {}",
    ]


def test_the_first_templates() -> None:
    assert templates("object") == OBJECT
    assert templates("object", 10) == OBJECT[:10]
    assert templates("style", 99) == STYLE
