"""What a template may do, and how far it may go."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from tests.template_builders import (
    CHATML,
    say,
)
from trajkit.errors import InputError, RefusedError
from trajkit.template import (
    Nulls,
    Setting,
    render_text,
    sandbox,
)


def test_a_template_s_own_error_is_told_without_acting(template):
    broken = template("{{ raise_exception('\x1b[2J no') }}")
    with pytest.raises(InputError) as caught:
        render_text(broken, say("a"))
    assert caught.value.code == "T106"
    assert "␛[2J no" in caught.value.message


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "R105"),
        ("{{ messages.append(1) }}", "R105"),
        ("{{ namespace(_x=1) }}", "R105"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "R105"),
        (
            "{% set x = [1] * 9999 %}{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}",
            "R105",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "R105",
        ),
        ("{{ 'a' * 4000000000 }}", "R105"),
        ("{{ 4000000000 * 'a' }}", "R105"),
        ("{{ 9 ** 99999 }}", "R105"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "R105"),
        ("{{ 1 / 0 }}", "T106"),
        ("{{ messages[7].content }}", "T106"),
        ("{{ messages[0].content + 1 }}", "T106"),
    ],
)
def test_a_template_that_goes_too_far_is_stopped(template, source, code, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_LOOPS", 100_000)
    with pytest.raises((InputError, RefusedError)) as caught:
        render_text(template(source), say("a"))
    assert caught.value.code == code


def test_the_size_of_a_text_has_a_limit(template, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_TEXT", 1000)
    with pytest.raises(RefusedError):
        render_text(template("{% for i in range(2000) %}x{% endfor %}"), say("a"))


def test_a_template_has_what_transformers_gives_it(template):
    source = (
        "{%- for m in messages -%}{%- if loop.index0 == 1 -%}{%- break -%}{%- endif -%}"
        "{{ m | tojson }} {{ m | tojson(indent=1) }} {{ dict(a=1) }}{%- endfor -%}"
    )
    text = render_text(template(source), say("é <b> '", "x"))
    message = {"role": "user", "content": "é <b> '"}
    plain = json.dumps(message, ensure_ascii=False)
    assert text == f"{plain} {json.dumps(message, ensure_ascii=False, indent=1)} {{'a': 1}}"


def test_the_clock_of_a_template_can_be_set(template):
    dated = template("{{ strftime_now('%d %b %Y') }}")
    now = datetime(2024, 7, 26)  # noqa: DTZ001 - as the template's own
    assert dated.tells_time
    assert render_text(dated, say("a"), Setting(now=now)) == "26 Jul 2024"
    assert len(render_text(dated, say("a"))) == len("26 Jul 2024")
    assert not template(CHATML).tells_time


def test_null_keys_are_dropped_and_reasoning_has_all_its_names(template):
    source = (
        "{% set m = messages[0] %}{{ 'content' in m }}{{ m.reasoning_content }}{{ m.thinking }};"
    )
    messages = [{"role": "assistant", "content": None, "reasoning": "r"}]
    assert render_text(template(source), messages) == "Falserr;"


def test_null_keys_can_be_kept_for_templates_that_ask_for_them(template):
    asking = template("{{ messages[0].content is none }}")
    messages = [{"role": "assistant", "content": None, "reasoning_content": None}]
    assert render_text(asking, messages, Setting(nulls=Nulls.KEPT)) == "True"
    with pytest.raises(InputError):
        render_text(template("{{ messages[0].content + 'x' }}"), messages)
