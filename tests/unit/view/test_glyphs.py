import pytest

from trajkit.view.glyphs import show_bytes, show_control, show_empty


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        (b"plain text", "plain text"),
        (b"line\n", "line␊"),
        (b"a\tb\r\x1b[2J\x00\x7f", "a␉b␍␛[2J␀␡"),
        ("A\u202eB\u200b".encode(), "A⟦U+202E⟧B⟦U+200B⟧"),
        ("4\u00a0€\u3000".encode(), "4⟦U+00A0⟧€⟦U+3000⟧"),
        ("\u2800".encode(), "⟦U+2800⟧"),
        ("🙂 日本".encode(), "🙂 日本"),
    ],
)
def test_what_acts_or_is_not_seen_is_shown(data, shown):
    assert show_bytes(data) == shown


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a b", "a b"),
        (b"a  b", "a␣␣b"),
        (b" a ", "␣a␣"),
        (b"end \n", "end␣␊"),
        (b"   ", "␣␣␣"),
    ],
)
def test_spaces_that_would_not_be_seen_are_shown(data, shown):
    assert show_bytes(data) == shown


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\xe6\x97", "⟦E6 97⟧"),
        (b"a\xffb", "a⟦FF⟧b"),
        ("日".encode()[:2] + b"!", "⟦E6 97⟧!"),
        (b"\xed\xa0\x80", "⟦ED A0 80⟧"),  # half a surrogate pair is no character in UTF-8
        ("\ufffd".encode(), "\ufffd"),  # a real one
    ],
)
def test_bytes_that_are_no_character_are_hex(data, shown):
    assert show_bytes(data) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("␊", "⟦U+240A⟧"),
        ("␣", "⟦U+2423⟧"),
        ("⟦E6 97⟧", "⟦U+27E6⟧E6 97⟦U+27E7⟧"),
        ("⟪<|im_end|>⟫", "⟦U+27EA⟧<|im_end|>⟦U+27EB⟧"),
    ],
)
def test_text_that_looks_like_a_sign_is_not_taken_for_one(text, shown):
    assert show_bytes(text.encode()) == shown


def test_control_ids_have_brackets_and_empty_ids_a_number():
    assert show_control("<|im_end|>") == "⟪<|im_end|>⟫"
    assert show_control("a\x1b⟫") == "⟪a␛⟦U+27EB⟧⟫"
    assert show_empty(7) == "⟦id 7⟧"
