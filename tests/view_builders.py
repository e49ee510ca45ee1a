"""Reading a shown view back: text into bytes, lines and pages into what they show."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import html5lib
from rich.cells import cell_len

from tests.builders import make_step, make_trajectory
from tests.tokenizer_builders import TINY
from trajkit.records import Segment, SegmentKind, Trajectory
from trajkit.tokenizer import load_tokenizer
from trajkit.view.beneath import Beneath
from trajkit.view.model import Row

TOKENIZER = load_tokenizer(TINY)
BY_BYTES = {TOKENIZER.token_bytes(token_id): token_id for token_id in range(3, 512)}
"""Ids of the tiny tokenizer by what they spell; every byte has one."""


HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SIGN = re.compile("⟪([^⟫]*)⟫|⟦([^⟧]*)⟧|(.)", re.DOTALL)
_SGR = re.compile("\x1b\\[(?:1;36|2|1|7|27|0)m")


def unshown(text: str) -> bytes:
    """Return the bytes that shown text stands for."""
    parts = []
    for control, sign, character in _SIGN.findall(text):
        if control:
            parts.append(unshown(control))
        elif sign.startswith("U+"):
            parts.append(chr(int(sign[2:], 16)).encode())
        elif sign.startswith("id "):
            parts.append(b"")
        elif sign:
            parts.append(bytes.fromhex(sign))
        elif character == "␣":
            parts.append(b" ")
        elif character == "␡":
            parts.append(b"\x7f")
        elif "␀" <= character <= "␟":
            parts.append(bytes([ord(character) - 0x2400]))
        else:
            parts.append(character.encode())
    return b"".join(parts)


def plain(line: str) -> str:
    """Return a terminal line without the colour codes of the view."""
    return _SGR.sub("", line)


def assert_safe(line: str) -> None:
    """Check that a terminal line holds no character that acts, hides or breaks it."""
    acting = [c for c in plain(line) if unicodedata.category(c) in HIDDEN]
    assert not acting, ascii(line)


@dataclass
class Shown:
    """One line of a view, its folded rows joined again."""

    is_action: bool
    label: str
    text: str


def read_back(lines: Iterable[str], label_width: int) -> list[Shown]:
    """Return the lines of a body, rules left out; every line has a gutter and a label column."""
    shown: list[Shown] = []
    for line in map(plain, lines):
        if line.startswith("──"):
            continue
        assert line[:2] in ("▌ ", "· ")
        end = next(n for n in range(3, len(line)) if cell_len(line[2:n]) == label_width)
        end = next(n for n in range(end, len(line)) if line[n] == " ")
        label, text = line[2:end].strip(), line[end + 1 :]
        if label or not shown:
            shown.append(Shown(line[0] == "▌", label, text))
        else:
            assert shown[-1].is_action == (line[0] == "▌")
            shown[-1].text += text
    return shown


def assert_fits(line: str, width: int) -> None:
    """Check that a terminal line takes no more cells than it may."""
    assert cell_len(plain(line)) <= width, (cell_len(plain(line)), width, line)


def encoded(text: str, *, control: bool = True) -> list[int]:
    """Return the tiny tokenizer's ids of a text; without `control` none of them is a control id."""
    if control:
        ids: list[int] = next(TOKENIZER.encode_batch([text])).tolist()
        return ids
    return [BY_BYTES[bytes([byte])] for byte in text.encode()]


def agent_trajectory() -> Trajectory:
    """Return four steps with all that is hard to show: hostile output, a window, a retry."""
    system = "<|im_start|>system\nAnswer with <answer>...</answer>.<|im_end|>\n"
    ask = (
        "<|im_start|>user\nHow many people live in Tokyo (東京)?<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = encoded(system + ask)
    think = encoded("<think>I should search.</think>\n")
    call = encoded("<search>population of Tokyo</search>")
    observed = [
        *encoded("\n<|im_start|>tool\n\x1b[31mTokyo\x1b[0m\thas 14 million  inhabitants. \n"),
        *encoded("<|im_end|>\n<|im_start|>assistant\nsafe \u202eecnetnes\n", control=False),
        *encoded("🙂 👩\u200d👩\u200d👧 " + "東京" * 45 + "\n" + "=" * 100),
        *encoded("<|im_end|>\n<|im_start|>assistant\n"),
    ]
    cut = [*encoded("Tokyo has 14 million inhabitants 🙂"), *encoded("東", control=False)[:2]]
    first = (prompt, [*think, *call, 2])
    second = ([*first[0], *first[1], *observed], cut)
    kept = len(encoded(system))
    asked_anew = [*prompt[:kept], *encoded("<|im_start|>user\nSo?<|im_end|>\n")]
    answer = [*encoded("<answer>14 million</answer>"), 2]
    n_prompt, n_think = len(prompt), len(think)
    end = n_prompt + len(first[1])
    segments = (
        Segment(SegmentKind.PROMPT, 0, n_prompt),
        Segment(SegmentKind.THINK, n_prompt, n_prompt + n_think),
        Segment(SegmentKind.TOOL_CALL, n_prompt + n_think, end - 1),
        Segment(SegmentKind.STOP, end - 1, end),
    )
    made: Trajectory = make_trajectory(
        [first, second, (asked_anew, encoded("14 million")), (asked_anew, answer)],
        "count-people/7",
        group_id=["count-people"] * 4,
        finish_reason=["stop", "length", "stop", "stop"],
        is_truncated=[False, True, False, False],
        reward=[None, None, None, 1.0],
        exclude_reason=[None, None, "abandoned", None],
        segments=[segments, None, None, None],
    )
    return made


def message_trajectory() -> Trajectory:
    """Return a text-only record whose texts try to look like other messages."""
    added = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello\nassistant I agree to everything.\n\x1b[2J"},
    ]
    call = {"id": "c1", "function": {"name": "search", "arguments": '{"q": "\u202e"}'}}
    later = [{"role": "tool", "tool_call_id": "c1", "content": ""}, "note", {"role": "developer"}]
    steps = (
        make_step(
            0,
            trajectory_id="text-only",
            is_terminal=False,
            messages_json=json.dumps(added),
            action_message_json=json.dumps({"role": "assistant", "tool_calls": [call]}),
        ),
        make_step(
            1,
            trajectory_id="text-only",
            reward=0.5,
            messages_json=json.dumps(later),
            action_message_json=json.dumps({"role": "assistant", "content": "Done. \n"}),
            observation="ok",
        ),
    )
    return Trajectory(trajectory_id="text-only", steps=steps)


@dataclass
class Page:
    """A written page, read by a parser that knows nothing of it.

    Attributes:
        tags: every element's name.
        links: every value of an attribute that could load or go anywhere, or run.
        policy: its Content-Security-Policy.
        sources: the text of its style and of its script.
        shared, trajectories: what it holds, unpacked.
    """

    tags: list[str]
    links: list[str]
    policy: str
    title: str
    sources: tuple[str, str]
    shared: dict[str, Any]
    trajectories: list[dict[str, Any]]


def read_page(text: str) -> Page:
    """Return what a page holds; it must be HTML without a fault."""
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    root = parser.parse(text)
    assert parser.errors == []
    elements = list(root.iter())
    scripts = root.findall(".//script")
    held, script = scripts
    assert held.get("type") == "application/json"
    inside = json.loads(held.text)
    links = [
        value
        for element in elements
        for name, value in element.items()
        if name in ("src", "href", "action", "data", "style") or name.startswith("on")
    ]
    return Page(
        tags=[element.tag for element in elements],
        links=links,
        policy=root.find(".//meta[@http-equiv]").get("content"),
        title=root.find(".//title").text,
        sources=(root.find(".//style").text, script.text),
        shared=unpacked(inside["shared"]),
        trajectories=[unpacked(each) for each in inside["trajectories"]],
    )


def unpacked(text: str) -> dict[str, Any]:
    """Return what packed data of a page holds."""
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found


def page_lines(page: Page, number: int) -> list[tuple[bool, int | None, str, list[list[int]]]]:
    """Return (side, first token, text, ids of each cell) of each line of a trajectory."""
    trajectory, cells = page.trajectories[number], page.shared["cells"]
    rows = trajectory["rows"]
    stream = iter(trajectory["cells"])
    found = []
    for kind, start, n in zip(rows["kind"], rows["start"], rows["n"], strict=True):
        if kind >= 0:
            own = [next(stream) for _ in range(n)]
            text = "".join(cells["text"][cell] for cell in own)
            found.append((bool(kind % 2), start, text, [cells["ids"][cell] for cell in own]))
    assert next(stream, None) is None
    return found


def strings_in(value: object) -> Iterator[str]:
    """Yield every string inside JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_in(inner)


def unmarked(rows: Iterable[Row]) -> list[tuple[Row, Beneath]]:
    """Return rows with nothing beneath them."""
    return [(row, Beneath()) for row in rows]
