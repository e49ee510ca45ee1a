"""Causes in the spelling of ids and in decoding: what happens to text, whoever wrote it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Literal

from trajkit.align import differing_regions, same_ids
from trajkit.drift.causes.window import (
    NEAR,
    PLACEHOLDER,
    Evidence,
    as_text,
    control_of,
    ends_action,
    inside_action,
    pair_of,
    same_bytes,
    show,
    spelt,
    trimmed,
    whole_head,
)
from trajkit.drift.decoding import LOST, cleaned_up
from trajkit.drift.difference import Difference, Side
from trajkit.drift.findings import Route
from trajkit.records import Ids
from trajkit.tokenizer import Rebuilt, Tokenizer

_BY_CONSTRUCTION = (Route.IDS, Route.JOIN, Route.RENDER)
"""Routes whose other side is the tokenizer's own encoding."""
_RUN_OF_LOST = re.compile(f"{LOST}+")
_TAG = re.compile(rb"</?[\w|\xef\xbd\x9c\xe2\x96\x81]+>")
_FORMS: tuple[Literal["NFC", "NFKC", "NFD", "NFKD"], ...] = ("NFC", "NFKC", "NFD", "NFKD")


def unreachable_token(difference: Difference) -> Evidence | None:
    """Tell an id that encoding can never give, spelt with others."""
    if not same_bytes(difference):
        return None
    ids = [int(i) for i in difference.recorded.region if i not in difference.tokenizer.control]
    found = [i for i in ids if difference.tokenizer.is_reachable(i) is False]
    return {"unreachable_ids": found} if found else None


def boundary_merge(difference: Difference) -> Evidence | None:
    """Tell a token of the other side that lies across the edge of an action."""
    mine, theirs = difference.recorded, difference.other
    if not same_bytes(difference):
        return None
    inner = sorted({e for span in difference.action for e in span if mine.start < e < mine.end})
    if not inner or not _is_canonical(difference):
        return None
    edge = inner[0]
    at = len(mine.pieces[mine.start : edge].data)
    end = 0
    pieces = theirs.pieces[theirs.start : theirs.end]
    for token_id, piece in zip(theirs.region.tolist(), pieces, strict=True):
        if end < at < end + len(piece):
            return {"edge": edge, "straddling_id": token_id, "straddling_text": show(piece)}
        end += len(piece)
    return None


def non_canonical_sampling(difference: Difference) -> Evidence | None:
    """Tell a sampled spelling that the tokenizer would not choose."""
    if not same_bytes(difference) or not inside_action(difference):
        return None
    ids = difference.recorded.region.tolist() + difference.other.region.tolist()
    if control_of(difference, ids) or not _is_canonical(difference):
        return None
    return {"canonical_ids": difference.other.region.tolist()[:NEAR]}


def _is_canonical(difference: Difference) -> bool:
    """Return whether the other side's spelling is the tokenizer's own, and the recorded is not."""
    if difference.route in _BY_CONSTRUCTION:
        return True
    tokenizer = difference.tokenizer
    own = spelt(tokenizer, difference.other)
    return own is not None and _same(own, difference.other.region)


def _same(left: Ids | None, right: Ids) -> bool:
    return left is not None and left.tolist() == right.tolist()


def loader_rebuilds_pipeline(difference: Difference) -> Evidence | None:
    """Tell ids that a loader gives which changes a part of the tokenizer's pipeline."""
    tokenizer = difference.tokenizer
    if difference.route in _BY_CONSTRUCTION:
        return None
    if same_bytes(difference):
        if not _same(spelt(tokenizer, difference.recorded), difference.recorded.region):
            return None
        return _rebuilt(
            difference,
            (Rebuilt.NO_IGNORE_MERGES, Rebuilt.GPT2_WORDS),
            lambda twin: _same(spelt(twin, difference.other), difference.other.region),
        )
    if not tokenizer.prepends_space or difference.other.start:
        return None
    text = as_text(difference.other.data + difference.other.behind(NEAR // 8))
    if text is None or trimmed(difference) != (b" ", b""):
        return None
    n_mine, n_theirs = difference.recorded.end, difference.other.end
    if not _same(next(tokenizer.encode_batch([text]))[:n_mine], difference.recorded.region):
        return None
    return _rebuilt(
        difference,
        (Rebuilt.NO_PREFIX,),
        lambda twin: _same(next(twin.encode_batch([text]))[:n_theirs], difference.other.region),
    )


def _rebuilt(
    difference: Difference, changes: Iterable[Rebuilt], gives: Callable[[Tokenizer], bool]
) -> Evidence | None:
    for change in changes:
        twin = difference.tokenizer.rebuilt(change)
        if twin is not None and gives(twin) and not _is_mere_cut(difference, twin):
            return {"rebuilt": change.value}
    return None


def _is_mere_cut(difference: Difference, twin: Tokenizer) -> bool:
    """Return whether all that a loader would change is one id cut in two at white space.

    The border of two pieces that were encoded apart looks the same.
    """
    theirs = difference.other
    cut = theirs.pieces[theirs.start : theirs.end]
    is_one = difference.recorded.end - difference.recorded.start == 1 and len(cut) == 2
    if not is_one or not cut[1][:1].isspace():
        return False
    text = (theirs.before(NEAR) + theirs.data + theirs.behind(NEAR)).decode("utf-8", "ignore")
    own, other = (next(one.encode_batch([text])) for one in (difference.tokenizer, twin))
    spell = difference.tokenizer.spell
    n_places = len(differing_regions(own, other, spell(own), spell(other)))
    near = theirs.ids[max(0, theirs.start - NEAR) : theirs.end + NEAR].tobytes()
    return n_places < 2 or other[2:-2].tobytes() not in near


def control_token_in_content(difference: Difference) -> Evidence | None:
    """Tell text that spells a control token, control on one side and text on the other."""
    if not same_bytes(difference):
        return None
    mine, theirs = difference.recorded.region.tolist(), difference.other.region.tolist()
    mine, theirs = control_of(difference, mine), control_of(difference, theirs)
    if bool(mine) == bool(theirs):
        return None
    spelling = [difference.tokenizer.control[i] for i in mine or theirs]
    return {"control": spelling[:8], "control_on": "recorded" if mine else "other"}


def vocabulary_mismatch(difference: Difference) -> Evidence | None:
    """Tell that one side has none of the other's control tokens and spells them all out."""
    if not same_bytes(difference):
        return None
    mine, theirs = difference.recorded, difference.other
    starts_framed = bool(control_of(difference, theirs.ids[:1].tolist()))
    sides = ((mine, theirs), (theirs, mine)) if starts_framed else ((mine, theirs),)
    for left, right in sides:
        control = list(dict.fromkeys(control_of(difference, _near(left))))
        if len(control) < 2 or control_of(difference, _near(right)):
            continue
        text = right.pieces[max(0, right.start - NEAR * 8) : right.end + NEAR * 8].data
        spelling = [difference.tokenizer.control[i] for i in control]
        if all(one.encode() in text for one in spelling):
            return {"unknown_control": spelling[:8]}
    return None


def _near(side: Side) -> list[int]:
    ids: list[int] = side.ids[max(0, side.start - NEAR) : side.end + NEAR].tolist()
    return ids


def tokenizer_revision(difference: Difference) -> Evidence | None:
    """Tell a placeholder id of this vocabulary where the other side spells a tag."""
    sides = (difference.recorded, difference.other)
    control = difference.tokenizer.control
    for one, another, name in ((*sides, "recorded"), (*sides[::-1], "other")):
        ids = one.region.tolist()
        held = [control[i] for i in ids if PLACEHOLDER.search(control.get(i, ""))]
        if held and not control_of(difference, another.region.tolist()):
            data = one.data
            for spelling in held:
                data = data.replace(spelling.encode(), b"\0")
            pattern = _TAG.pattern.join(re.escape(part) for part in data.split(b"\0"))
            if re.fullmatch(pattern, another.data):
                return {"placeholder": held[:8], "spelt": show(another.data), "held_by": name}
    prints = pair_of(difference.facts, "tokenizers")
    if prints and prints[0] != prints[1] and same_bytes(difference):
        return {"tokenizers": list(prints)}
    return None


def invalid_utf8(difference: Difference) -> Evidence | None:
    """Tell sampled bytes that are no character and came back as U+FFFD, or not at all."""
    mine, theirs = difference.recorded.data, difference.other.data
    text = as_text(theirs)
    if text is None or as_text(mine) is not None or not _is_broken(difference.recorded):
        return None
    shown = mine.decode("utf-8", errors="replace")
    if _RUN_OF_LOST.sub(LOST, shown) == _RUN_OF_LOST.sub(LOST, text):
        how = "replaced"
    elif mine.decode("utf-8", errors="ignore") == text:
        how = "dropped"
    else:
        return None
    return {"how": how, "bytes": _first_bad(mine).hex(" ")}


def _is_broken(side: Side) -> bool:
    """Return whether a region holds bytes that are no character where they stand, either."""
    following = side.behind(4)
    data = whole_head(side.before(4)) + side.data + following
    shown = data.decode("utf-8", errors="replace")
    return LOST in (shown.rstrip(LOST) if following else shown)


def _first_bad(data: bytes) -> bytes:
    """Return the first bytes that are no character."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as problem:
        return data[problem.start : problem.end]
    return b""


def per_token_decode(difference: Difference) -> Evidence | None:
    """Tell text that was put together from ids decoded one by one."""
    mine, theirs = difference.recorded, difference.other
    text = as_text(theirs.data)
    if text is None or same_bytes(difference) or as_text(mine.data) is None:
        return None
    pieces = mine.pieces[mine.start : mine.end]
    joined = "".join(p.decode("utf-8", errors="replace") for p in pieces)
    if LOST in joined and LOST in text and joined == text:
        return {"lost_characters": text.count(LOST)}
    if not difference.tokenizer.prepends_space:
        return None
    each = difference.tokenizer.decode_batch([mine.region[i : i + 1] for i in range(len(pieces))])
    bare = "".join(each)
    n_lost = mine.data.decode().count(" ") - bare.count(" ")
    around = theirs.before(NEAR).lstrip() + theirs.data.strip() + theirs.behind(NEAR)
    is_told = text.removeprefix(" ") == bare.removeprefix(" ") and b" " not in around.strip()
    return {"lost_spaces": n_lost} if is_told and n_lost >= 2 else None


def normalizer_nfc(difference: Difference) -> Evidence | None:
    """Tell bytes that a Unicode normal form changed."""
    mine, theirs = as_text(difference.recorded.data), as_text(difference.other.data)
    if mine is None or theirs is None or mine == theirs:
        return None
    form = next((f for f in _FORMS if unicodedata.normalize(f, mine) == theirs), None)
    if form is None:
        return None
    by = "tokenizer" if difference.tokenizer.normalizes_to(mine) == theirs else None
    if by is None and (difference.route in _BY_CONSTRUCTION[:2] or form in ("NFKC", "NFKD")):
        return None  # other hands compose characters, too; they do not fold them
    return {"form": form, "by": by}


def metaspace_prefix(difference: Difference) -> Evidence | None:
    """Tell the space that a tokenizer puts in front of a text."""
    if not difference.tokenizer.prepends_space or trimmed(difference) != (b"", b" "):
        return None
    mine, theirs = difference.recorded, difference.other
    if not theirs.data.startswith(b" ") or (mine.data.startswith(b" ") and not mine.data.strip()):
        return None
    before = theirs.start and int(theirs.ids[theirs.start - 1])
    at_start = not theirs.start or before in difference.tokenizer.control
    return {"put_in": " "} if at_start else None


def clean_up_tokenization_spaces(difference: Difference) -> Evidence | None:
    """Tell spaces in front of punctuation that decoding took away."""
    mine, theirs = as_text(difference.recorded.data), as_text(difference.other.data)
    if mine is None or theirs is None or mine == theirs:
        return None
    front = as_text(difference.recorded.before(1)) or ""
    for lead in ("", front[-1:]):
        if cleaned_up(lead + mine) == lead + theirs:
            return {"n_spaces": len(mine) - len(theirs)}
    return None


def newline_translation(difference: Difference) -> Evidence | None:
    """Tell line ends that were rewritten."""
    mine, theirs = difference.recorded.data, difference.other.data
    if mine == theirs:
        return None
    following = difference.recorded.behind(1)[:1]
    if following == b"\n" == difference.other.behind(1)[:1]:
        mine, theirs = mine + following, theirs + following
    if b"\r" in mine and mine.replace(b"\r\n", b"\n").replace(b"\r", b"\n") == theirs:
        return {"from": "CRLF" if b"\r\n" in mine else "CR", "to": "LF"}
    if b"\r\n" in theirs and theirs.replace(b"\r\n", b"\n") == mine:
        return {"from": "LF", "to": "CRLF"}
    return None


def stop_string_trim(difference: Difference) -> Evidence | None:
    """Tell text that was cut at a stop string, inside or before the last sampled ids."""
    mine, theirs = difference.recorded, difference.other
    reason = difference.facts.get("finish_reason")
    if not ends_action(difference) or reason not in (None, "stop", "stop_sequence", "tool_calls"):
        return None
    if theirs.end != len(theirs.ids) or not mine.data.startswith(theirs.data):
        return None
    cut = mine.data[len(theirs.data) :]
    if not cut or control_of(difference, mine.region.tolist()):
        return None
    stops = difference.facts.get("stop")
    stops = [stops] if isinstance(stops, str) else stops
    kept = theirs.before(16) + theirs.data
    for stop in stops if isinstance(stops, list | tuple) else ():
        sign = str(stop).encode("utf-8", errors="replace")
        if sign and (cut.startswith(sign) or kept.endswith(sign)):
            return {"stop": str(stop)[:80], "cut": show(cut)}
    last = mine.pieces[mine.end - 1]
    if not theirs.data or len(cut) >= len(last):
        return None
    is_marked = kept.rstrip().endswith((b">", b":")) or cut.strip()
    return {"cut": show(cut), "last_token": show(last)} if is_marked else None


def truncation(difference: Difference) -> Evidence | None:
    """Tell a list that was cut at its end, or at its head."""
    mine, theirs = difference.recorded, difference.other
    n_lost, n_left = mine.end - mine.start, len(theirs.ids)
    if theirs.end > theirs.start or not n_lost or not n_left:
        return None
    limit = difference.facts.get("max_length")
    is_limit = isinstance(limit, int) and limit == n_left
    lost = zip(mine.region.tolist(), mine.pieces[mine.start : mine.end], strict=True)
    words = [piece for i, piece in lost if piece.strip() and i not in difference.tokenizer.control]
    if not is_limit and (n_lost < 2 or not words):
        return None
    if mine.end == len(mine.ids) and same_ids(mine.ids[:n_left], theirs.ids):
        found: Evidence = {"side": "end"}
    elif mine.start == 0 and n_lost >= 8 and same_ids(mine.ids[n_lost:], theirs.ids):
        found = {"side": "head"}
    else:
        return None
    return found | {"n_lost": n_lost, "n_left": n_left, "is_limit": is_limit}
