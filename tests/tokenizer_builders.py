"""Small tokenizers of each kind of vocabulary, and where the real ones of the fixtures lie."""

from __future__ import annotations

import os
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

ROOT = Path(__file__).parents[1]
TINY = ROOT / "src" / "trajkit" / "demo" / "tiny"
SMOLLM2 = Path(os.environ.get("TRAJKIT_MODEL_DIR") or ROOT / ".cache" / "smollm2")


def metaspace(*, prefix: bool) -> tokenizers.Tokenizer:
    """Return a vocabulary of letters that writes spaces as `▁` and other bytes as `<0xNN>`.

    With `prefix` every text gains a space in front, which decoding strips again.
    """
    control = ["<unk>", "<s>", "</s>"]
    words = ["▁", "a", "b", "c", "ab", "▁a", "▁ab", "東", "▁▁", "▁▁▁"]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = models.BPE(
        vocab={token: token_id for token_id, token in enumerate(tokens)},
        merges=[("a", "b"), ("▁", "▁"), ("▁▁", "▁"), ("▁", "a"), ("▁", "ab")],
        byte_fallback=True,
        unk_token="<unk>",
    )
    tokenizer = tokenizers.Tokenizer(model)
    replace = normalizers.Replace(" ", "▁")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = replace
        tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("▁▁▁", "\n\n", "<b>")])
    return tokenizer


def save(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    """Return the folder a tokenizer was saved to."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
