import unicodedata

import pytest

from trajkit.safe.text import shorten, shown_bytes, visible


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("A\x1b[2J\x1b[H", "A␛[2J␛[H"),
        ("\x1b]8;;http://evil\x1b\\B\x1b]8;;\x1b\\", "␛]8;;http://evil␛\\B␛]8;;␛\\"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("good\rEVIL", "good␍EVIL"),
        ("safe\x08\x08", "safe␈␈"),
        ("\x00\x7f\x9b2J", "␀␡⟦U+009B⟧2J"),
        ("a\tb\nc", "a␉b␊c"),
        ("A\u202eBCD\u202c", "A⟦U+202E⟧BCD⟦U+202C⟧"),
        ("\u2066x\U000e0041", "⟦U+2066⟧x⟦U+E0041⟧"),
        ("zero\u200bwidth\ufeff\u00ad\u200d", "zero⟦U+200B⟧width⟦U+FEFF⟧⟦U+00AD⟧⟦U+200D⟧"),
        ("line\u2028paragraph\u2029next\u0085", "line⟦U+2028⟧paragraph⟦U+2029⟧next⟦U+0085⟧"),
        ("half \ud800 pair", "half ⟦U+D800⟧ pair"),
        ("private \ue000, unassigned \u0378", "private ⟦U+E000⟧, unassigned ⟦U+0378⟧"),
    ],
)
def test_what_acts_or_hides_is_shown(hostile, shown):
    assert visible(hostile) == shown


@pytest.mark.parametrize("blank", ["\u034f", "\u115f", "\u3164", "\U000e0100", "\ufe00", "\u180b"])
def test_letters_and_marks_that_take_no_room_are_shown(blank):
    assert visible(f"a{blank}b") == f"a⟦U+{ord(blank):04X}⟧b"
    assert visible(f"日{blank}本\n") == f"日⟦U+{ord(blank):04X}⟧本␊"


@pytest.mark.parametrize(
    "plain",
    [
        "",
        "plain ASCII ~!",
        "日本語",
        "Ünïcödé",
        "❤️",
        "non-breaking\u00a0space",
        "全角\u3000",
        "e\u0301",
    ],
)
def test_plain_text_of_any_script_stays_as_it_is(plain):
    assert visible(plain) == plain
    assert visible(f"{plain}\n", keep_newlines=True) == f"{plain}\n"


def test_only_newlines_can_be_kept():
    text = "one\ntwo\r\n日\x1b\u2028\n"
    assert visible(text, keep_newlines=True) == "one\ntwo␍\n日␛⟦U+2028⟧\n"
    assert visible("\n\x1b\n", keep_newlines=True) == "\n␛\n"


def test_every_code_point_comes_out_visible():
    for start in range(0, 0x110000, 0x1000):
        shown = visible("".join(map(chr, range(start, start + 0x1000))))
        found = {unicodedata.category(character) for character in shown}
        assert not found & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}, hex(start)


def test_shorten_leaves_what_fits():
    assert shorten("12345", 5) == "12345"
    assert shorten("", 5) == ""
    assert shorten("a\nb", 3) == "a␊b"


def test_shorten_cuts_to_the_limit_and_says_so():
    assert shorten("123456", 5) == "1234…"
    assert shorten("\u202e" * 100, 10) == "⟦U+202E⟧⟦…"
    assert shorten("123", 1) == "…"
    assert shorten("123", 0) == ""


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "0 MB"), (499_000, "0 MB"), (1_500_000, "2 MB"), (2_540_000_000, "2.5 GB")]
)
def test_bytes_as_a_person_reads_them(n: int, shown: str) -> None:
    assert shown_bytes(n) == shown
