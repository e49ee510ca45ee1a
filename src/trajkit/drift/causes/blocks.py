"""Causes that put a block of text in or take one out: reasoning, system prompts, dates."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trajkit.drift.causes.window import (
    NEAR,
    Blocks,
    Evidence,
    Window,
    agrees_without,
    is_text_start,
    show,
    trimmed,
    window_of,
)
from trajkit.drift.difference import Difference, Side

_REASONING: tuple[tuple[bytes, bytes, bytes], ...] = (
    (b"<think>", b"</think>", b""),
    (b"[THINK]", b"[/THINK]", b""),
    (b"<reasoning>", b"</reasoning>", b""),
    (b"<thinking>", b"</thinking>", b""),
    (b"<|START_THINKING|>", b"<|END_THINKING|>", b""),
    (b"<|channel>thought", b"<channel|>", b""),
    (b"<|channel|>analysis<|message|>", b"<|end|>", b"<|start|>assistant"),
)
"""How the families mark reasoning: opened, closed, and what of the frame goes with it."""
_EMPTY_BLOCKS = (b"<think>\n\n</think>\n\n", b"<think></think>", b"<think>\n</think>\n")
_SYSTEM = re.compile(
    rb"(?:<\|im_start\|>system\n.*?<\|im_end\|>\n?"
    rb"|<\|start_header_id\|>system<\|end_header_id\|>\n\n.*?<\|eot_id\|>"
    rb"|<\|start\|>(?:system|developer)<\|message\|>.*?<\|end\|>"
    rb"|<\|system\|>\n?.*?(?:<\|end\|>|</s>)\n?"
    rb"|\[SYSTEM_PROMPT\].*?\[/SYSTEM_PROMPT\]"
    rb"|<<SYS>>\n.*?\n<</SYS>>\n\n)",
    re.DOTALL,
)
_DEFAULTS = (
    *("You are a helpful assistant", "You are Qwen, created by Alibaba Cloud"),
    *("You are a helpful AI assistant named SmolLM", "Cutting Knowledge Date"),
    *("You are ChatGPT, a large language model", "You are a helpful, respectful and honest"),
)
"""How system prompts begin that templates put in by themselves."""
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE = re.compile(
    rb"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?"
    rb"|\d{1,2} " + _MONTH + rb",? \d{4}|" + _MONTH + rb" \d{1,2},? \d{4}"
    rb"|\d{1,2}/\d{1,2}/\d{4}|\d\d:\d\d(?::\d\d)?"
)
_DATED = re.compile(rb"(?i)\b(?:date|time|today|now)\b[^\n]{0,24}$")
_CLOCK = ("strftime_now", "date_string", "datetime")
_OPENING = re.compile(
    rb"(?:\s|<\|?(?:im_start|start|start_header_id|end_header_id|channel|message|start_of_turn|turn)"
    rb"\|?>|<\xef\xbd\x9cAssistant\xef\xbd\x9c>|assistant|model|analysis|final|</?think>"
    rb"|\[/?THINK\]|</?reasoning>)+"
)
"""What a generation prompt is made of."""


def _reasoning(data: bytes) -> list[tuple[int, int]]:
    """Return the spans of whole reasoning blocks, white space behind them included, ascending."""
    found = []
    for opened, closed, frame in _REASONING:
        at = data.find(opened)
        while at >= 0:
            end = data.find(closed, at + len(opened))
            if end < 0:
                break  # nor has any later one an end
            end += len(closed)
            end += len(frame) if data.startswith(frame, end) else 0
            end += len(data[end : end + 16]) - len(data[end : end + 16].lstrip())
            found.append((at, end))
            at = data.find(opened, end)
    return sorted(found)


def _closed(data: bytes) -> list[tuple[int, int]]:
    """Return the spans of reasoning blocks without the white space behind them."""
    return [(a, a + len(data[a:b].rstrip())) for a, b in _reasoning(data)]


_WAYS: tuple[tuple[bytes, Blocks], ...] = (
    (b"", _reasoning),
    (b"", _closed),
    *((block, _reasoning) for block in _EMPTY_BLOCKS),
)
"""What may stand in a block's place, and how far a block goes."""


def _renders_prompt(difference: Difference) -> bool:
    """Return whether the messages hold no turn of the policy: a prompt is all that they make."""
    messages = difference.facts.get("messages")
    held = messages if isinstance(messages, list) else []
    roles = [message.get("role") for message in held if isinstance(message, dict)]
    return bool(roles) and "assistant" not in roles


def _is_empty(block: bytes) -> bool:
    """Return whether a block of reasoning holds none."""
    for opened, closed, _ in _REASONING:
        if block.startswith(opened):
            return not block[len(opened) :].split(closed)[0].strip()
    return False


def generation_prompt_mismatch(difference: Difference) -> Evidence | None:
    """Tell another opening of the turn right in front of an action."""
    start, end = difference.recorded.start, difference.recorded.end
    if (end == start and not _renders_prompt(difference)) or not any(
        a == end for a, _ in difference.action
    ):
        return None
    sides = trimmed(difference)
    if any(side and not _OPENING.fullmatch(side) for side in sides) or b"<" not in b"".join(sides):
        return None
    return {"recorded": show(sides[0]), "other": show(sides[1])}


def reasoning_stripped(difference: Difference) -> Evidence | None:
    """Tell reasoning that is gone from the other side, or emptied."""
    window = window_of(difference)
    for instead, blocks_in in _WAYS:
        blocks = agrees_without(window, blocks_in, instead)
        if blocks and not all(map(_is_empty, blocks)):
            n_bytes = sum(map(len, blocks))
            return {"n_blocks": len(blocks), "n_bytes": n_bytes, "block": show(blocks[0])}
    return None


def reasoning_injected(difference: Difference) -> Evidence | None:
    """Tell an empty reasoning block that only the other side has."""
    blocks = _put_in(difference)
    if not blocks or not all(map(_is_empty, blocks)) or _renders_prompt(difference):
        return None
    return {"n_blocks": len(blocks), "empty": True, "block": show(blocks[0])}


def _put_in(difference: Difference) -> list[bytes] | None:
    """Return the reasoning blocks that only the other side has, or that are empty on this one."""
    window = window_of(difference)
    for instead, blocks_in in _WAYS:
        if not window.ends:
            found = agrees_without(window.flipped(), blocks_in, instead)
        else:
            found = _put_in_last(window, blocks_in, instead)
        if found:
            return found
    return None


def _put_in_last(window: Window, blocks_in: Blocks, instead: bytes) -> list[bytes] | None:
    """Return the block of the recorded list's last turn that only the other side has.

    The other side may go on: what it has behind the recorded list's end does not count.
    """
    text = window.before + window.theirs + window.their_behind
    recorded = window.before + window.mine
    a, b = next(((a, b) for a, b in blocks_in(text) if b > len(window.before)), (0, 0))
    without = text[:a] + instead + text[b:]
    is_told = b > a and a <= len(recorded) and without.startswith(recorded)
    return [text[a:b]] if is_told and (window.mine or window.mine_behind) else None


def library_version(difference: Difference) -> Evidence | None:
    """Tell reasoning that only a library renders which reads the message's key of that name."""
    versions = difference.facts.get("versions")
    blocks = _put_in(difference)
    if not blocks or all(map(_is_empty, blocks)):
        return None
    for key, text in _reasoning_keys(difference):
        if text and any(text.strip().encode("utf-8", errors="replace") in one for one in blocks):
            return {"key": key, "block": show(blocks[0])} | (
                {"versions": list(versions)} if isinstance(versions, list | tuple) else {}
            )
    return None


def _reasoning_keys(difference: Difference) -> Iterator[tuple[str, str]]:
    one, several = difference.facts.get("message"), difference.facts.get("messages")
    for message in [one, *(several if isinstance(several, list) else ())]:
        value = message.get("reasoning") if isinstance(message, dict) else None
        if isinstance(value, str):
            yield "reasoning", value


def default_system_prompt(difference: Difference) -> Evidence | None:
    """Tell a system prompt that a template put in, and nobody logged."""
    mine, theirs = difference.recorded, difference.other
    if difference.action and mine.start >= min(a for a, _ in difference.action):
        return None
    window = window_of(difference)
    front = mine.start < 64 and window.before == mine.before(64)
    if not front or not theirs.start < 64:
        return None
    lead = b"".join(
        piece
        for token_id, piece in zip(mine.ids[:1].tolist(), mine.pieces[:1], strict=True)
        if is_text_start(difference, token_id)
    )

    def at_head(data: bytes) -> Iterator[tuple[int, int]]:
        match = _SYSTEM.match(data, len(lead))
        return iter([match.span()] if match else [])

    added = agrees_without(window.flipped(), at_head)
    if added and not _is_logged(difference, added[0]):
        return {"put_in_by": "other", "block": show(added[0], 160)}
    gone = agrees_without(window, at_head)
    if gone and _is_default(difference, gone[0]):
        return {"put_in_by": "recorded", "block": show(gone[0], 160)}
    whole_theirs = window.before + window.theirs + window.their_behind
    whole_mine = window.before + window.mine + window.mine_behind
    left, right = _SYSTEM.match(whole_mine, len(lead)), _SYSTEM.match(whole_theirs, len(lead))
    if left and right and whole_mine[left.end() :][:256] == whole_theirs[right.end() :][:256]:
        inside = left.end() >= len(window.before) + len(window.mine)
        if inside and _is_default(difference, right[0]) and not _is_default(difference, left[0]):
            return {"put_in_by": "other", "block": show(right[0], 160)}
    return None


def _is_default(difference: Difference, block: bytes) -> bool:
    """Return whether a system prompt is one that templates put in."""
    text = block.decode("utf-8", errors="replace")
    template = difference.facts.get("template")
    body = text.split("\n", 1)[-1].split("<|")[0].strip()
    in_template = isinstance(template, str) and bool(body) and body in template
    return in_template or any(start in text[:120] for start in _DEFAULTS)


def _is_logged(difference: Difference, block: bytes) -> bool:
    messages = difference.facts.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    content = first.get("content") if isinstance(first, dict) else None
    is_system = isinstance(first, dict) and first.get("role") in ("system", "developer")
    return is_system and isinstance(content, str) and content.encode("utf-8", "replace") in block


def dynamic_template_value(difference: Difference) -> Evidence | None:
    """Tell a date or a time that a template wrote, and that differs."""
    mine = difference.recorded
    if difference.action and mine.start >= min(a for a, _ in difference.action):
        return None
    left, right = _date_at(difference.recorded), _date_at(difference.other)
    if left is None or right is None or left == right:
        return None
    template = difference.facts.get("template")
    reads = [name for name in _CLOCK if isinstance(template, str) and name in template]
    return {"recorded": show(left), "other": show(right)} | ({"template": reads} if reads else {})


def _date_at(side: Side) -> bytes | None:
    """Return the date that a region lies in, `None` when it lies in none or nothing says so."""
    before, data = side.before(NEAR), side.data
    line = before[before.rfind(b"\n") + 1 :]
    whole = line + data + side.behind(NEAR)
    start, end = len(line), len(line) + len(data)
    for match in _DATE.finditer(whole):
        a, b = match.span()
        if (a <= start and end <= b) or (start <= a < end and not whole[start:a].strip()):
            ends_there = end <= b or not whole[b:end].strip()
            return match[0] if ends_there and _DATED.search(whole[:a]) else None
    return None
