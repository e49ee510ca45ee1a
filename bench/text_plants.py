"""Causes in spelling and decoding, planted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from bench.world import Plant, World, encode, encode_exact, exact, one_id

from trajkit.records import ids_array
from trajkit.tokenizer import Rebuilt


def non_canonical(world: World) -> Iterator[Plant]:
    """A token of an action is sampled as two."""
    for text in world.texts:
        talk = world.talk(text)
        start, end = talk.actions[-1]
        spelt = split_once(world, talk.ids[start:end])
        if spelt is None or spelt == talk.ids[start:end]:
            continue
        sampled = talk.ids[:start] + spelt + talk.ids[end:]
        spans = (*talk.actions[:-1], (start, start + len(spelt)))
        yield Plant(
            cause="non-canonical-sampling",
            recorded=sampled,
            other=talk.ids,
            actions=spans,
            routes=("pair", "join", "chain"),
        )


def split_once(world: World, ids: list[int]) -> list[int] | None:
    """Return ids with one token spelt as two."""
    vocabulary = world.tokenizer
    spots = list(range(len(ids)))
    world.rng.shuffle(spots)
    for at in spots:
        if ids[at] in vocabulary.control:
            continue
        piece = vocabulary.token_bytes(ids[at])
        for cut in range(1, len(piece)):
            try:
                left, right = piece[:cut].decode(), piece[cut:].decode()
            except UnicodeDecodeError:
                continue
            halves = [one_id(vocabulary, left), one_id(vocabulary, right)]
            if None not in halves:
                return [*ids[:at], *halves, *ids[at + 1 :]]  # type: ignore[list-item]
    return None


def unreachable(world: World) -> Iterator[Plant]:
    """An id that encoding never gives is sampled."""
    tokenizer = world.tokenizer
    found = 0
    for token_id in range(tokenizer.n_vocab - 1, 300, -7):
        if token_id in tokenizer.control or not tokenizer.knows(token_id):
            continue
        piece = tokenizer.token_bytes(token_id)
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            continue
        if not text or text.isspace() or not unicodedata.is_normalized("NFC", text):
            continue
        if tokenizer.is_reachable(token_id) is not False:
            continue
        again = encode(tokenizer, "x: " + text)
        if tokenizer.text(ids_array(again)).lstrip() != "x: " + text:
            continue
        front = encode(tokenizer, "x: ")
        if tokenizer.text(ids_array([*front, token_id])).lstrip() != "x: " + text:
            continue
        talk, other = world.talk([*front, token_id]), world.talk("x: " + text)
        yield Plant(
            cause="unreachable-token",
            recorded=talk.ids,
            other=other.ids,
            actions=tuple(talk.actions),
        )
        found += 1
        if found == 3:
            return


def boundary(world: World) -> Iterator[Plant]:
    """Action and observation are encoded as one text."""
    for tail, observation in (
        ("</search>", "\n\n<information>Doc 1</information>"),
        ("Action: look.", "\nObservation: nothing here"),
    ):
        action = encode(world.tokenizer, "I look. " + tail)
        result = encode(world.tokenizer, observation)
        joined = encode(world.tokenizer, "I look. " + tail + observation)
        if world.tokenizer.prepends_space or joined == action + result:
            continue
        head = encode(world.tokenizer, world.turn("user", "Go on.") + world.opening("assistant"))
        n = len(head)
        yield Plant(
            cause="boundary-merge",
            recorded=head + action + result,
            other=head + joined,
            actions=((n, n + len(action)),),
            routes=("pair", "join"),
        )


def text_edit(
    cause: str,
    change: Callable[[str], str],
    texts: tuple[str, ...],
    routes: tuple[str, ...] = ("pair",),
) -> Callable[[World], Iterator[Plant]]:
    """Return a planter that changes the text of an action."""

    def plant(world: World) -> Iterator[Plant]:
        for text in texts:
            changed = change(text)
            mine, theirs = world.talk(text), world.talk(changed)
            if mine.ids == theirs.ids:
                continue
            if text not in world.tokenizer.text(ids_array(mine.ids)):
                continue  # the tokenizer rewrites it in any case
            yield Plant(
                cause=cause,
                recorded=mine.ids,
                other=theirs.ids,
                actions=tuple(mine.actions),
                routes=routes,
            )

    return plant


def cleaned(text: str) -> str:
    """Return a text as `decode` of transformers 4 cleans it."""
    for old, new in ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" 's", "'s")):
        text = text.replace(old, new)
    return text


def decomposed(world: World) -> Iterator[Plant]:
    """Sampled bytes are in another normal form than encoding leaves."""
    for text in ("café olé", "Ñandú e às 9", "Ȧlpha"):
        loose = unicodedata.normalize("NFD", text)
        sampled: list[int] = []
        for part in re.findall(r"[^\u0300-\u036f]+|[\u0300-\u036f]", loose):
            is_mark = unicodedata.combining(part[0])
            spell = encode_exact if is_mark else encode
            sampled += spell(world.tokenizer, part)
        mine, theirs = world.talk(sampled), world.talk(unicodedata.normalize("NFC", text))
        yield Plant(
            cause="normalizer-nfc", recorded=mine.ids, other=theirs.ids, actions=tuple(mine.actions)
        )


def cut_character(world: World) -> Iterator[Plant]:
    """An action is cut inside a character."""
    for text, emoji in (("All done ", "🤌"), ("ok ", "𓀀")):
        pieces = encode_exact(world.tokenizer, emoji)
        if len(pieces) < 2:
            continue
        sampled = encode(world.tokenizer, text) + pieces[:-1]
        mine = world.talk(sampled, end=False)
        again = world.talk(world.tokenizer.text(ids_array(sampled)).lstrip(" "), end=False)
        yield Plant(
            cause="invalid-utf8",
            recorded=mine.ids,
            other=again.ids,
            actions=tuple(mine.actions),
            facts={"finish_reason": "length"},
            routes=("pair", "join"),
        )


def decoded_one_by_one(world: World) -> Iterator[Plant]:
    """Each id is decoded by itself."""
    for text in ("Done 🤦🏽 ok", "A 𓀀 b 𓂀 c"):
        mine = encode(world.tokenizer, text)
        parts = world.tokenizer.decode_batch([ids_array([i]) for i in mine])
        joined = "".join(parts)
        if joined != text:
            other = encode(world.tokenizer, joined)
            yield Plant(
                cause="per-token-decode", recorded=mine, other=other, actions=((0, len(mine)),)
            )


def prefixed(world: World) -> Iterator[Plant]:
    """A text is encoded by a tokenizer that puts a space in front."""
    if not world.tokenizer.prepends_space:
        return
    for text in ("(foo)", "hello there", "x = 1"):
        newline = encode(world.tokenizer, "\n")
        mine = encode(world.tokenizer, "\n" + text)[len(newline) :]
        yield Plant(
            cause="metaspace-prefix",
            recorded=mine,
            other=encode(world.tokenizer, text),
            actions=((0, len(mine)),),
            routes=("pair", "ids"),
        )


def rebuilt(world: World) -> Iterator[Plant]:
    """A loader changes the pipeline."""
    texts = (*world.texts, "  lead 2024-05-06 12345678", "getHTTPResponse IsNotOK 99999")
    for change in (Rebuilt.NO_PREFIX, Rebuilt.NO_IGNORE_MERGES, Rebuilt.GPT2_WORDS):
        twin = world.tokenizer.rebuilt(change)
        if twin is None:
            continue
        for text in texts:
            mine, other = encode(world.tokenizer, text), encode(twin, text)
            if mine != other:
                yield Plant(cause="loader-rebuilds-pipeline", recorded=mine, other=other)


def stop_string(world: World) -> Iterator[Plant]:
    """The text is cut at a stop string that ends inside the last id."""
    for text, more in (("<search>cats</search>", "\n\n"), ("Action: look\nObservation:", "\n\n")):
        whole = encode(world.tokenizer, text + more)
        last = world.tokenizer.token_bytes(whole[-1])
        if last == more.encode() or not last.endswith(more.encode()):
            continue
        mine, theirs = world.talk(whole, end=False), world.talk(text, end=False)
        yield Plant(
            cause="stop-string-trim",
            recorded=mine.ids,
            other=theirs.ids,
            actions=tuple(mine.actions),
            facts={"finish_reason": "stop"},
        )


def in_content(world: World) -> Iterator[Plant]:
    """An observation spells the end of a turn."""
    sign = world.frame.closing
    literal = exact(world.tokenizer, sign)
    front, behind = encode(world.tokenizer, "the log says"), encode(world.tokenizer, "and goes on")
    head = encode(world.tokenizer, world.frame.bos + world.turn("user", "Read it."))
    naive = [*head, *front, *encode(world.tokenizer, sign), *behind]
    plain = [*head, *front, *literal, *behind]
    yield Plant(cause="control-token-in-content", recorded=plain, other=naive)
    if world.frame.closing in world.tokenizer.text(ids_array(head)):
        yield Plant(cause="control-token-in-content", recorded=naive, other=plain)


def skipped(world: World) -> Iterator[Plant]:
    """Special tokens are left out of the text."""
    special = set(world.tokenizer.special_ids.tolist())
    talk = world.talk(world.texts[0])
    if len({i for i in talk.ids if i in special} - set(encode(world.tokenizer, "</s>"))) < 3:
        return
    text = world.tokenizer.text(ids_array([i for i in talk.ids if i not in special]))
    yield Plant(
        cause="skip-special-tokens",
        recorded=talk.ids,
        other=encode(world.tokenizer, text),
        actions=tuple(talk.actions),
    )


TEXT_PLANTERS: tuple[Callable[[World], Iterator[Plant]], ...] = (
    *(non_canonical, unreachable, boundary, decomposed, cut_character, decoded_one_by_one),
    *(prefixed, rebuilt, stop_string, in_content, skipped),
    text_edit(
        "newline-translation",
        lambda text: text.replace("\r\n", "\n"),
        ("dir\r\nfile.txt\r\nok", "a\r\nb"),
    ),
    text_edit(
        "clean-up-tokenization-spaces",
        cleaned,
        ("print ( 'x' ) . y ?", "well , that is Ann 's , so !", "I know . But why ? Now go"),
    ),
)
