"""In which form a template takes messages."""

from __future__ import annotations

import pytest

from tests.template_builders import (
    CHATML,
    call,
    policy,
    user,
)
from trajkit.template import (
    Setting,
    habits_of,
    render_text,
    suited,
)

BRACED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ 'call:' + c.function.name + '{' }}"
    "{% set given = c.function.arguments %}{% if given is mapping %}"
    "{% for key, value in given | items %}{{ key }}:{{ value | tojson }}{% endfor %}"
    "{% else %}{{ given }}{% endif %}{{ '}' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
)
SPLICED = BRACED.replace("{{ 'call:' + c.function.name + '{' }}", "").replace("{{ '}' }}", "")
WRITTEN = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set given = c.function.arguments %}"
    "{{ given }}{% endfor %}{% endfor %}"
)
EITHER = WRITTEN.replace("{{ given }}", "{{ given if given is string else given | tojson }}")


@pytest.mark.parametrize(
    ("source", "text", "parsed"),
    [
        (BRACED, False, True),
        (SPLICED, False, True),
        (WRITTEN, True, False),
        (WRITTEN.replace("{{ given }}", "{{ given | tojson }}"), False, True),
        (EITHER, True, True),
        ("{{ messages | length }}", True, True),
    ],
)
def test_arguments_are_taken_as_text_only_where_the_text_stands_for_the_object(
    template, source, text, parsed
):
    habits = habits_of(template(source))
    assert (habits.text_arguments, habits.object_arguments) == (text, parsed)


@pytest.mark.parametrize(
    "arguments", ['{"q": 1, "q": 2}', '{"n": NaN}', '{"n": 1e999}', '{"q": "\\ud800"}', "[1]", "{"]
)
def test_arguments_that_are_no_strict_object_stay_the_text_they_are(template, arguments):
    habits = habits_of(template(BRACED))
    (message,) = suited([policy("", call("f", arguments))], habits)
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


JOINED = CHATML  # `+ m.content` is an error without content
ASKED = CHATML.replace("m.content", "('' if m.content is none else m.content)")
NAMED = CHATML.replace("m.content", "(m.content | string)")


@pytest.mark.parametrize("calls", [(), (call("f", {"q": 1}),)])
@pytest.mark.parametrize("source", [JOINED, ASKED, NAMED])
def test_a_message_without_content_is_given_as_an_empty_text_where_it_must(template, source, calls):
    made = template(source)
    habits = habits_of(made)
    setting = Setting(nulls=habits.nulls)
    without, empty = (suited([user("q"), policy(c, *calls)], habits) for c in (None, ""))
    assert render_text(made, without, setting) == render_text(made, empty, setting)
