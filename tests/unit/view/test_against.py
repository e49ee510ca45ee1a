import re

from tests.builders import make_trajectory
from tests.tokenizer_builders import metaspace
from tests.view_builders import TOKENIZER, encoded
from trajkit.tokenizer import Tokenizer
from trajkit.view.against import compared
from trajkit.view.beneath import with_beneath
from trajkit.view.model import Line, rows, view_of
from trajkit.view.redact import Redaction, redacted
from trajkit.view.terminal import Face, annotated, comparison_head


def drawn(view, comparison, face=Face()):  # noqa: B008 - frozen
    found = with_beneath(view, rows(view, TOKENIZER), TOKENIZER, comparison=comparison)
    return [line for line in annotated(found, face) if "──" not in line[:2]]


def test_both_sides_stand_under_the_text_byte_by_byte():
    ids = [*encoded("search"), *encoded("Tokyo", control=False)]
    view = view_of(make_trajectory([([5], ids)]))
    comparison = compared(view, TOKENIZER, TOKENIZER)
    assert encoded("searchTokyo") == [*encoded("search"), *encoded("Tokyo")]
    n = len(encoded("Tokyo"))
    lines = [line for line in drawn(view, comparison) if not line.startswith("·")]
    assert lines[:2] == ["▌       1 searchTokyo", "▌  record └─────└└└└└"]
    assert lines[2].startswith("▌ against └─────└")
    assert lines[2].count("└") == 1 + n
    assert set(lines[3][10:16]) == {" "}
    assert "≠" in lines[3]
    assert (comparison.n_recorded, comparison.n_other) == (7, 2 + n)
    assert comparison.n_borders == 5
    assert comparison.n_common == n


def test_the_same_tokenizer_finds_no_difference_in_its_own_ids():
    view = view_of(make_trajectory([(encoded("How many people?\n"), encoded("<think>14"))]))
    comparison = compared(view, TOKENIZER, TOKENIZER)
    assert comparison.n_same_ids == comparison.n_recorded == comparison.n_other == view.n_tokens
    assert comparison.n_common == comparison.n_borders
    assert not any("≠" in line or "≈" in line for line in drawn(view, comparison))


def test_another_vocabulary_differs_in_borders_and_its_space_in_front_does_not_count():
    other = Tokenizer(metaspace(prefix=True), "meta")
    view = view_of(make_trajectory([([5], encoded("a b"))]))
    comparison = compared(view, TOKENIZER, other)
    assert comparison.n_left_out == {}
    assert comparison.n_recorded == view.n_tokens


def test_tokens_inside_one_character_are_one_sign():
    view = view_of(make_trajectory([([5], encoded("東", control=False))]))
    lines = drawn(view, compared(view, TOKENIZER, TOKENIZER))
    at = lines.index("▌       1 東")
    assert lines[at + 1] == "▌  record +─"


def test_what_cannot_be_compared_is_counted_and_has_no_strip():
    half = encoded("東", control=False)[:2]
    view = view_of(
        make_trajectory([(half, encoded("Tokyo")), ([*half, *encoded("Tokyo"), 9], [10])])
    )
    hidden = redacted(view, TOKENIZER, Redaction(patterns=(re.compile("Tok"),)))
    comparison = compared(hidden, TOKENIZER, TOKENIZER)
    n = len(encoded("Tokyo"))
    assert comparison.n_left_out == {"no text by itself": 2, "not to be shown": n}
    lines = drawn(hidden, comparison)
    assert sum("record" in line for line in lines) == 2
    (head, *_) = comparison_head(comparison, Face(width=400))
    assert "left out 2: no text by itself" in head


def test_a_terminal_without_unicode_gets_other_signs():
    view = view_of(make_trajectory([([5], encoded("Tokyo", control=False))]))
    comparison = compared(view, TOKENIZER, TOKENIZER)
    lines = drawn(view, comparison, Face(ascii=True))
    assert "A| record |||||" in lines
    assert all(line.isascii() for line in lines)
    assert all(line.isascii() for line in comparison_head(comparison, Face(ascii=True)))


def test_a_line_knows_its_place_in_the_stretch():
    view = view_of(make_trajectory([(encoded("Tokyo\nsearch"), [5])]))
    comparison = compared(view, TOKENIZER, TOKENIZER)
    second = next(
        row for row in rows(view, TOKENIZER) if isinstance(row, Line) and row.text == "search"
    )
    strips = dict(comparison.strips(second, view.sequences[0].token_ids))
    assert [first for _, first, _ in strips["record"]] == ["└", *"─────"]
    assert [text for text, _, _ in strips["against"]] == list("search")
