import struct
import sys

import pytest

from tests.builders import make_trajectory
from tests.view_builders import TOKENIZER, encoded, unmarked
from trajkit.errors import UsageProblem
from trajkit.view import png
from trajkit.view.model import rows, view_of
from trajkit.view.png import png_of
from trajkit.view.svg import svg_of


def drawing(text, width=80):
    view = view_of(make_trajectory([(encoded(text, control=False), [5])]))
    return svg_of([("t", unmarked(rows(view, TOKENIZER)))], width)


def size_of(picture):
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", picture[16:24])


def test_a_picture_shows_the_text_at_twice_the_size():
    svg = drawing("Tokyo\n")
    picture, n_boxes = png_of(svg)
    other, _ = png_of(drawing("tokyo\n"))
    width, height = size_of(picture)
    assert f'width="{width // 2}" height="{height // 2}"' in svg
    assert picture != other
    assert n_boxes == 0


def test_characters_no_font_has_are_counted_and_pictures_of_controls_are_not():
    _, n_boxes = png_of(drawing("\n\t\x1b\U0001fae8\U0001fae8"))
    assert n_boxes <= 1
    assert png_of(drawing("\n\t\x1b"))[1] == 0


def test_without_a_font_there_is_no_picture(monkeypatch):
    monkeypatch.setattr(
        png, "_PROBE", '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    )
    with pytest.raises(UsageProblem, match="no font") as caught:
        png_of(drawing("a"))
    assert caught.value.code == "U105"
    assert "apt-get" in str(caught.value.hint)


def test_without_resvg_the_hint_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageProblem, match="resvg") as caught:
        png_of(drawing("a"))
    assert (caught.value.code, caught.value.hint) == ("U105", "pip install 'trajkit[png]'")


def test_a_picture_nobody_could_open_is_refused():
    with pytest.raises(UsageProblem, match="too large") as caught:
        png_of(drawing("a\n" * 500))
    assert caught.value.code == "U103"
