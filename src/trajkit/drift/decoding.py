"""What decoders and logs make of the text that ids spell, each by the cause it is known as."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeAlias

from trajkit.records import Ids
from trajkit.tokenizer import Tokenizer

LOST = "\ufffd"
"""What stands for bytes that are no character."""
_FEWEST_SPACES = 2
"""Spaces that must be missing before somebody is said to have decoded id by id."""
_CLEAN_UP = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't")),
    *((" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)
"""Source: `transformers` 4.57, `PreTrainedTokenizerBase.clean_up_tokenization`."""

Rewrite: TypeAlias = Callable[[Tokenizer, Ids], str]


def cleaned_up(text: str) -> str:
    """Return a text as `decode(..., clean_up_tokenization_spaces=True)` gives it."""
    for old, new in _CLEAN_UP:
        text = text.replace(old, new)
    return text


def one_by_one(tokenizer: Tokenizer, ids: Ids) -> str:
    """Return the text of ids that were decoded each by itself.

    Where that costs no character and hardly a space, the text is left as it is.
    """
    whole = tokenizer.text(ids)
    joined = "".join(tokenizer.decode_batch([ids[i : i + 1] for i in range(len(ids))]))
    n_lost = whole.strip().count(" ") - joined.strip().count(" ")
    return joined if LOST in joined or n_lost >= _FEWEST_SPACES else whole


def _of_text(turned: Callable[[str], str]) -> Rewrite:
    return lambda tokenizer, ids: turned(tokenizer.text(ids))


REWRITES: Sequence[tuple[str, Rewrite]] = (
    ("newline-translation", _of_text(lambda text: text.replace("\r\n", "\n").replace("\r", "\n"))),
    ("newline-translation", _of_text(lambda text: text.replace("\n", "\r\n"))),
    ("clean-up-tokenization-spaces", _of_text(cleaned_up)),
    ("normalizer-nfc", _of_text(lambda text: unicodedata.normalize("NFC", text))),
    ("normalizer-nfc", _of_text(lambda text: unicodedata.normalize("NFD", text))),
    ("per-token-decode", one_by_one),
)
"""What whole texts go through on the way into a log, by cause; the first that fits is told."""


def rewritten_by(ids: Ids, tokenizer: Tokenizer, is_log: Callable[[str], bool]) -> str | None:
    """Return the cause that made a log of the text of ids, `None` when none did.

    Args:
        ids: of one action.
        tokenizer: knows all of them.
        is_log: whether a text is the one that was logged.
    """
    plain = tokenizer.text(ids)
    texts = ((cause, rewrite(tokenizer, ids)) for cause, rewrite in REWRITES)
    return next((cause for cause, text in texts if text != plain and is_log(text)), None)
