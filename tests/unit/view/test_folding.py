from trajkit.view.folding import folded, width_of


def test_wide_characters_take_two_cells():
    assert [width_of(text) for text in ("abc", "東京", "␛␊", "⟦E6⟧")] == [3, 4, 2, 4]


def test_text_is_cut_between_words_where_that_wastes_little():
    assert folded("one two three four", 10) == ["one two ", "three four"]
    assert folded("a" * 25, 10) == ["a" * 10, "a" * 10, "a" * 5]


def test_a_sign_moves_to_the_next_row_rather_than_being_cut():
    assert folded("abcde ⟪<|im_end|>⟫", 14) == ["abcde ", "⟪<|im_end|>⟫"]


def test_wide_text_is_cut_between_characters():
    assert folded("東" * 5, 5) == ["東東", "東東", "東"]
