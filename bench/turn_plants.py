"""Causes in frame, templates and history, planted; and edits that have no cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from bench.world import OTHER_ENDS, Plant, World, encode, exact

from trajkit.drift.findings import UNEXPLAINED
from trajkit.records import ids_array


def bos(world: World) -> Iterator[Plant]:
    """The begin-of-text id is doubled, missing or put in."""
    if not world.frame.bos:
        return
    talk = world.talk(world.texts[0])
    spans = tuple(talk.actions)
    first, rest = talk.ids[:1], talk.ids[1:]
    routes = ("pair", "chain")
    for cause, mine, other, move in (
        ("bos-duplicated", talk.ids, first + talk.ids, 0),
        ("bos-duplicated", first + talk.ids, talk.ids, 1),
        ("bos-dropped", talk.ids, rest, 0),
        ("bos-added", rest, talk.ids, -1),
    ):
        moved = tuple((a + move, b + move) for a, b in spans)
        yield Plant(cause=cause, recorded=mine, other=other, actions=moved, routes=routes)


def ends(world: World) -> Iterator[Plant]:
    """The end of the last turn is swapped, dropped or added."""
    closing = encode(world.tokenizer, world.frame.closing)
    talk, open_talk = world.talk(world.texts[0]), world.talk(world.texts[0], end=False)
    spans, open_spans = tuple(talk.actions), tuple(open_talk.actions)
    more = encode(world.tokenizer, world.frame.between + world.turn("user", "And then?"))
    yield Plant(cause="eos-dropped", recorded=talk.ids, other=open_talk.ids, actions=spans)
    for behind in ([], encode(world.tokenizer, world.frame.between), more):
        yield Plant(
            cause="eos-added",
            recorded=open_talk.ids,
            other=open_talk.ids + closing + behind,
            actions=open_spans,
            facts={"finish_reason": "length"},
            routes=("pair", "chain"),
        )
    swapped = OTHER_ENDS.get(world.frame.closing)
    if swapped is not None:
        other = open_talk.ids + encode(world.tokenizer, swapped)
        for behind in ([], more):
            yield Plant(
                cause="eos-swapped",
                recorded=other,
                other=talk.ids + behind,
                actions=spans,
                routes=("pair", "chain"),
            )


def reasoning(world: World) -> Iterator[Plant]:
    """Reasoning is stripped from a turn, or an empty block put into it."""
    opened = "<think>\nThe user wants a place.\nI know one.\n</think>\n\n"
    empty = "<think>\n\n</think>\n\n"
    answer = "It is Gozo."
    more = encode(world.tokenizer, world.frame.between + world.turn("user", "And where is that?"))
    plain, thought = world.talk(answer), world.talk(opened + answer)
    blank = world.talk(empty + answer)
    if world.frame.opening.startswith("<|start|>"):  # gpt-oss
        frame = world.frame
        said = f"<|channel|>final<|message|>{answer}"
        analysis = f"<|channel|>analysis<|message|>Greet.<|end|><|start|>assistant{said}"
        bare = replace(world, frame=replace(frame, opening="<|start|>{role}"))
        plain, thought = bare.talk(said), bare.talk(analysis)
    for behind in ([], more):
        yield Plant(
            cause="reasoning-stripped",
            recorded=thought.ids,
            other=plain.ids + behind,
            actions=tuple(thought.actions),
            routes=("pair", "chain"),
        )
    if world.frame.opening.startswith("<|start|>") or world.tokenizer.prepends_space:
        return
    for behind in ([], more):
        yield Plant(
            cause="reasoning-injected",
            recorded=plain.ids,
            other=blank.ids + behind,
            actions=tuple(plain.actions),
            routes=("pair", "chain"),
        )
    start, end = plain.actions[-1]
    block = encode(world.tokenizer, empty)
    yield Plant(
        cause="generation-prompt-mismatch",
        recorded=plain.ids[:start] + block + plain.ids[start:],
        other=plain.ids,
        actions=(*plain.actions[:-1], (start + len(block), end + len(block))),
    )


def system_prompt(world: World) -> Iterator[Plant]:
    """A template puts its system prompt in."""
    if world.frame.system is None:
        return
    system = encode(world.tokenizer, world.turn("system", "You are a helpful assistant."))
    talk = world.talk(world.texts[1])
    n = len(encode(world.tokenizer, world.frame.bos))
    added = talk.ids[:n] + system + talk.ids[n:]
    moved = tuple((a + len(system), b + len(system)) for a, b in talk.actions)
    yield Plant(
        cause="default-system-prompt", recorded=talk.ids, other=added, actions=tuple(talk.actions)
    )
    yield Plant(cause="default-system-prompt", recorded=added, other=talk.ids, actions=moved)


def dates(world: World) -> Iterator[Plant]:
    """The template reads the clock."""
    for old, new in (
        ("Current date: 2025-08-05", "Current date: 2026-11-30"),
        ("Today Date: 26 Jul 2024", "Today Date: 30 Nov 2026"),
        ("Current date: 2025-08-05", "Current date: 2025-08-06"),
    ):
        rest = world.talk(world.texts[0]).ids
        start = encode(world.tokenizer, world.turn("user", f"Be brief.\n{old}\n\nReasoning: low"))
        other = encode(world.tokenizer, world.turn("user", f"Be brief.\n{new}\n\nReasoning: low"))
        yield Plant(cause="dynamic-template-value", recorded=start + rest, other=other + rest)


CALL = {
    "name": "find_flight",
    "arguments": {"to": "Malmö <M>", "from": "Oslo", "max": 3, "direct": True, "via": None},
}


def calls(world: World) -> Iterator[Plant]:
    """A tool call is printed again."""
    dense = json.dumps(CALL, separators=(",", ":"), ensure_ascii=False)
    for again in (
        json.dumps(CALL, ensure_ascii=False),
        json.dumps(CALL, separators=(",", ":")),
        json.dumps(CALL, sort_keys=True, ensure_ascii=False),
        json.dumps(CALL, indent=2, ensure_ascii=False),
        json.dumps({**CALL, "arguments": json.dumps(CALL["arguments"], ensure_ascii=False)}),
        str(CALL),
    ):
        wrapped = "<tool_call>\n{}\n</tool_call>"
        mine, theirs = world.talk(wrapped.format(dense)), world.talk(wrapped.format(again))
        yield Plant(
            cause="tool-call-reserialisation",
            recorded=mine.ids,
            other=theirs.ids,
            actions=tuple(mine.actions),
            routes=("pair", "chain"),
        )
    if world.frame.closing == "<|eot_id|>":
        mine, theirs = world.talk(dense), world.talk(json.dumps(CALL, ensure_ascii=False))
        yield Plant(
            cause="tool-call-reserialisation",
            recorded=mine.ids,
            other=theirs.ids,
            actions=tuple(mine.actions),
        )
    xml = "<tool_call>\n<function=f>\n<parameter=flag>\n{}\n</parameter>\n</function>\n</tool_call>"
    for old, new in (("false", "False"), ("null", "None"), ('["a", true]', "['a', True]")):
        mine, theirs = world.talk(xml.format(old)), world.talk(xml.format(new))
        yield Plant(
            cause="tool-call-reserialisation",
            recorded=mine.ids,
            other=theirs.ids,
            actions=tuple(mine.actions),
        )


def observations(world: World) -> Iterator[Plant]:
    """A result is escaped."""
    for raw, escaped in (
        ('line1\nline "2"', json.dumps('line1\nline "2"')),
        ("caf\u00e9\tau lait\n", json.dumps("caf\u00e9\tau lait\n")),
        ("if a < b && c:", "if a &lt; b &amp;&amp; c:"),
    ):
        head = world.talk(world.texts[0])
        closing = encode(world.tokenizer, world.frame.between)
        tail = encode(world.tokenizer, world.opening("assistant"))
        result = encode(world.tokenizer, world.turn(world.frame.tool, raw))
        other = encode(world.tokenizer, world.turn(world.frame.tool, escaped))
        if raw.strip() not in world.tokenizer.text(ids_array(result)):
            continue
        yield Plant(
            cause="observation-escaped",
            recorded=head.ids + closing + result + tail,
            other=head.ids + closing + other + tail,
            actions=tuple(head.actions),
        )


def space(world: World) -> Iterator[Plant]:
    """White space at the edges of messages, or between turns, is gone."""
    if world.frame.system is None and world.frame.policy == "assistant":
        return  # these frames have no edge of a message that ids show
    more = encode(world.tokenizer, world.frame.between + world.turn("user", "ok"))
    for text in (" Hi there! \n\n", "A plan:\n- look\n\n", "  spaced"):
        mine, theirs = world.talk(text), world.talk(text.strip())
        for behind in ([], more):
            yield Plant(
                cause="template-whitespace-trim",
                recorded=mine.ids,
                other=theirs.ids + behind,
                actions=tuple(mine.actions),
                routes=("pair", "chain"),
            )
    if world.frame.between:
        talk = world.talk(world.texts[0], n_turns=3)
        newline = encode(world.tokenizer, "\n")
        end = encode(world.tokenizer, world.frame.closing)
        bare = [
            i
            for at, i in enumerate(talk.ids)
            if not ([i] == newline and talk.ids[at - 1 : at] == end)
        ]
        yield Plant(
            cause="turn-separator", recorded=talk.ids, other=bare, actions=tuple(talk.actions)
        )


def history(world: World) -> Iterator[Plant]:
    """Earlier turns are gone, or summarised."""
    if world.frame.policy == "assistant" and world.frame.system is None:
        return
    talk = world.talk(world.texts[0], n_turns=4)
    first_end = talk.actions[0][1] + len(encode(world.tokenizer, world.frame.between))
    window = talk.ids[:first_end] + talk.ids[talk.actions[1][1] :]
    yield Plant(
        cause="history-rewritten", recorded=talk.ids, other=window, actions=tuple(talk.actions)
    )
    summary = encode(world.tokenizer, world.turn("user", "Summary: we talked of boats and towns."))
    behind = talk.ids[talk.actions[2][1] + len(encode(world.tokenizer, world.frame.between)) :]
    yield Plant(
        cause="history-rewritten",
        recorded=talk.ids,
        other=talk.ids[:first_end] + summary + behind,
        actions=tuple(talk.actions),
    )


def versions(world: World) -> Iterator[Plant]:
    """Templates, libraries, revisions and vocabularies differ."""
    tokenizer, frame = world.tokenizer, world.frame
    answer = world.talk("<think>\nGreet them.\n</think>\n\nHello.")
    plain = world.talk("Hello.")
    if frame.opening.startswith("<|im_start|>"):
        yield Plant(
            cause="library-version",
            recorded=plain.ids,
            other=answer.ids,
            actions=tuple(plain.actions),
            facts={
                "message": {"role": "assistant", "reasoning": "Greet them.", "content": "Hello."}
            },
        )
    held = [i for i, name in tokenizer.control.items() if re.search("place|reserved|unused", name)]
    if len(held) > 1:
        front = encode(tokenizer, "I wonder.")
        text, newer = front + exact(tokenizer, "<think>"), [*front, held[1]]
        yield Plant(cause="tokenizer-revision", recorded=text, other=newer)
        yield Plant(cause="tokenizer-revision", recorded=newer, other=text)
    if frame.system is not None:
        turns = frame.bos + world.turn("user", "Find it.") + world.turn("assistant", "Done.")
        recorded = encode(tokenizer, turns)
        spelt: list[int] = []
        for token_id in recorded:
            name = tokenizer.control.get(token_id)
            spelt += [token_id] if name is None else exact(tokenizer, name)
        yield Plant(cause="vocabulary-mismatch", recorded=recorded, other=spelt)
    if "<｜tool▁calls▁end｜>" in tokenizer.control.values():
        old = "<｜User｜>hi<｜Assistant｜>x<｜tool▁call▁end｜><｜tool▁outputs▁begin｜>ok"
        new = old.replace(
            "<｜tool▁outputs▁begin｜>", "<｜tool▁calls▁end｜><｜tool▁outputs▁begin｜>"
        )
        a, b = encode(tokenizer, new), encode(tokenizer, old)
        yield Plant(cause="template-version", recorded=a, other=b)
        yield Plant(cause="template-version", recorded=b, other=a)


def cut(world: World) -> Iterator[Plant]:
    """The list is cut to a limit."""
    talk = world.talk(world.texts[0], n_turns=3)
    spans = tuple(talk.actions)
    n = talk.actions[-1][0] + 3
    yield Plant(cause="truncation", recorded=talk.ids, other=talk.ids[:n], actions=spans)
    yield Plant(cause="truncation", recorded=talk.ids, other=talk.ids[11:], actions=spans)


FLAG = '<tool_call>\n{{"name": "f", "arguments": {{"a": {}}}}}\n</tool_call>'


OTHER_WORDS = (
    (FLAG.format("1"), FLAG.format("2")),
    (FLAG.format("1"), FLAG.format("true")),
    (FLAG.format('"x y"'), FLAG.format('"x  y"')),
    (FLAG.format('"x"'), FLAG.format('"x", "b": 1')),
    ("<think>\nLook at the map.\n</think>\n\nGo.", "<think>\nLook at a map.\n</think>\n\nGo."),
    ("<think>\nLook.\n</think>\n\nGo north.", "Go south."),
    ("Go north, then wait for him.", "Stay."),
    ("It was built in 1999-01-02 by hand.", "It was built in 2001-03-04 by hand."),
    ("a b c", "a  b c"),
    ("def f(x):\n    return x", "def f(x):\n  return x"),
    ("x\ty", "x    y"),
    ("I am in. You are out.", "I am in.You are out."),
    ("Tom &amp; Ann", "Tom and Ann"),
    ("caf\u00e9 noir", "cafe noir"),
    ("no\u00a0break", "no break"),
    ("UPPER case", "upper case"),
    ("The end", "The end of it"),
)
"""What no cause explains: other words, other values, other spaces inside a message."""


def nothing(world: World) -> Iterator[Plant]:
    """Ids are replaced, put in, taken out or moved at random, or values are changed."""
    tokenizer, rng = world.tokenizer, world.rng
    plain = [i for i in range(300, min(tokenizer.n_vocab, 30000)) if i not in tokenizer.control]
    for number in range(80):
        talk = world.talk(world.texts[number % len(world.texts)], n_turns=3)
        at, n = rng.randrange(1, len(talk.ids) - 1), rng.randrange(0, 4)
        new = [rng.choice(plain) for _ in range(rng.randrange(0 if n else 1, 4))]
        if number % 4 == 1:  # a stretch from elsewhere
            start = rng.randrange(len(talk.ids))
            new = talk.ids[start : start + rng.randrange(2, 12)]
        spans = tuple(talk.actions) if number % 3 else ()
        other = talk.ids[:at] + new + talk.ids[at + n :]
        is_frame = set(talk.ids[at : at + n] + new) & set(tokenizer.control)
        if not is_frame and tokenizer.text(ids_array(talk.ids[at : at + n])).strip():
            yield Plant(cause=UNEXPLAINED, recorded=talk.ids, other=other, actions=spans)
    for old, new_text in OTHER_WORDS:
        mine, theirs = world.talk(old), world.talk(new_text)
        yield Plant(
            cause=UNEXPLAINED,
            recorded=mine.ids,
            other=theirs.ids,
            actions=tuple(mine.actions),
            routes=("pair", "chain"),
        )


TURN_PLANTERS: tuple[Callable[[World], Iterator[Plant]], ...] = (
    *(bos, ends, reasoning, system_prompt, dates, calls, observations, space, history),
    *(versions, cut, nothing),
)
