import json

import pytest

from tests.view_builders import unpacked
from trajkit.safe.html import as_script_json, as_text, packed, source_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("<script>", "&lt;script&gt;"),
        ("a & 'b' \"c\"", "a &amp; &#x27;b&#x27; &quot;c&quot;"),
        ("\x1b[2J", "&#9243;[2J"),
        ("\u202e", "&#10214;U+202E&#10215;"),
        ("東", "&#26481;"),
    ],
)
def test_text_is_no_markup_and_ascii(text, expected):
    assert as_text(text) == expected


def test_json_in_a_script_cannot_end_it():
    value = {"a": "</script><!-- & \u2028 東"}
    text = as_script_json(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_packed_json_is_base64_and_comes_back():
    value = {"a": ["</script>", "東\u2028", None, 1.5]}
    assert unpacked(packed(value)) == value
    assert set(packed(value)) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    )


def test_a_source_is_named_as_policies_name_it():
    # echo -n 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert source_hash("alert(1)") == "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"
