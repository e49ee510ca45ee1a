import pytest
import tokenizers

from tests.builders import make_step, make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.records import Trajectory
from trajkit.tokenizer import Tokenizer
from trajkit.view.cells import cells_of, with_ids
from trajkit.view.model import Line, rows, view_of


def cells(ids, tokenizer=TOKENIZER):
    """Return (text, first token, end) of each cell of each line that ids are shown as."""
    step = make_step(prompt_delta=ids, action_tokens=[])
    view = view_of(Trajectory(trajectory_id="t", steps=(step,)))
    return [
        [(cell.text, cell.start, cell.end) for cell in cells_of(row, found, tokenizer)]
        for row, found in with_ids(view, rows(view, tokenizer))
        if isinstance(row, Line)
    ]


def words(*spelt):
    """Return a tokenizer whose ids spell what is given, in byte-level letters."""
    vocabulary = {word: token_id for token_id, word in enumerate(spelt)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=spelt[0]))
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend, "words")


def test_every_token_is_a_cell():
    ids = encoded("search Tokyo\nTokyo")
    assert cells(ids) == [
        [("search", 0, 1), (" Tokyo", 1, 2), ("␊", 2, 3)],
        [("Tokyo", 3, 4)],
    ]


def test_control_ids_are_cells_by_themselves():
    assert cells([*encoded("Tokyo"), 2, *encoded("\n")]) == [
        [("Tokyo", 0, 1), ("⟪<|im_end|>⟫", 1, 2), ("␊", 2, 3)]
    ]


def test_tokens_that_share_a_character_are_one_cell():
    spread = encoded("a東b", control=False)
    assert cells(spread) == [[("a", 0, 1), ("東", 1, 4), ("b", 4, 5)]]


def test_bytes_that_are_no_character_are_one_cell_however_many_ids_they_have():
    broken = encoded("東", control=False)[:2]
    assert cells([*encoded("a"), *broken, *encoded("b")]) == [
        [("a", 0, 1), ("⟦E6 9D⟧", 1, 3), ("b", 3, 4)]
    ]


def test_hidden_characters_and_our_own_signs_count_as_the_bytes_they_are():
    ids = encoded("\u202e⟪x", control=False)
    assert cells(ids) == [[("⟦U+202E⟧", 0, 3), ("⟦U+27EA⟧", 3, 6), ("x", 6, 7)]]


def test_a_token_with_a_newline_inside_stands_on_both_lines():
    assert cells([0, 1, 0], words("a", "bĊc")) == [
        [("a", 0, 1), ("b␊", 1, 2)],
        [("c", 1, 2), ("a", 2, 3)],
    ]


def test_a_token_over_three_lines_stands_on_each():
    assert cells([0, 1, 0], words("a", "ĊbĊc")) == [
        [("a", 0, 1), ("␊", 1, 2)],
        [("b␊", 1, 2)],
        [("c", 1, 2), ("a", 2, 3)],
    ]


def test_an_id_that_spells_nothing_is_a_cell():
    assert cells([1, 0, 1], words("a", "")) == [[("⟦id 1⟧", 0, 1), ("a", 1, 2), ("⟦id 1⟧", 2, 3)]]


def test_without_a_tokenizer_every_id_is_a_cell():
    (line,) = cells([5, 49151, 1234567], None)
    assert [(text.strip(), start, end) for text, start, end in line] == [
        ("5", 0, 1),
        ("49151", 1, 2),
        ("1234567", 2, 3),
    ]


def test_a_line_without_tokens_is_one_cell():
    step = make_step(action_text="said")
    view = view_of(Trajectory(trajectory_id="t", steps=(step,)))
    (_, (line, ids)) = with_ids(view, rows(view, None))
    assert isinstance(line, Line)
    (cell,) = cells_of(line, ids, TOKENIZER)
    assert (cell.text, cell.n_tokens, len(ids)) == ("said", 0, 0)


@pytest.mark.parametrize("index", [0, 1])
def test_rows_know_the_ids_of_their_own_sequence(index):
    view = view_of(make_trajectory([([5, 6], [7]), ([5, 8], [9])]))
    found = with_ids(view, rows(view, TOKENIZER, lambda step: step == index))
    (ids,) = {tuple(ids.tolist()) for row, ids in found if isinstance(row, Line)}
    assert ids == [(5, 6, 7), (5, 8, 9)][index]
