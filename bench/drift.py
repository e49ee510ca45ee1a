"""drift-check against its encoder, in one process: `python bench/drift.py [TOKENIZER...]`.

The data are 1,200 actions of 1,000 characters of English and code in 150 trajectories. In no, one
in twenty, or two of five of them the policy spelt a token otherwise. Walked are the routes `ids`
and `chain`, report and price included. Time is the CPU's, of all threads, the least of five runs;
the ratio is of tokens a second, so 1.00 is as fast as what it is held against:

    encode      `encode_batch` of the decoded texts, as transformers and servers call it
    fast        `encode_batch_fast`, which keeps no offsets and gives the same ids
    by hand     reading the column, decoding, `encode_batch_fast`
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import tokenizers

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs by its path, too

from bench.world import REAL, SMOLLM2

from trajkit.drift.check import drift_check
from trajkit.drift.findings import Route
from trajkit.ingestion.run import ingest
from trajkit.records import Ids
from trajkit.tokenizer import Tokenizer, load_tokenizer

MODULES = ("argparse", "ast", "asyncio.events", "calendar", "configparser", "csv", "datetime",
           "decimal", "difflib", "doctest", "email.message", "ftplib", "functools", "http.client",
           "inspect", "ipaddress", "json.decoder", "locale", "logging", "mailbox", "optparse",
           "pdb", "pickle", "pickletools", "platform", "pydoc", "random", "shutil", "smtplib",
           "socket", "statistics", "subprocess", "tarfile", "tempfile", "textwrap", "threading",
           "tokenize", "traceback", "turtle", "typing", "unittest.mock", "urllib.request",
           "uuid", "xml.dom.minidom", "zipfile")  # fmt: skip
"""Whose source is the text: English and code, there wherever Python is."""
N_TRAJECTORIES, N_STEPS, N_CHARACTERS = 150, 8, 1000


def _ids(tokenizer: Tokenizer, text: str) -> Ids:
    return next(iter(tokenizer.encode_batch([text])))


def _canonical(tokenizer: Tokenizer, ids: Ids) -> Ids:
    """Return ids that survive decode and encode."""
    while True:
        again = _ids(tokenizer, tokenizer.decode_batch([ids])[0])
        if np.array_equal(again, ids):
            return ids
        ids = again


def _respelt(tokenizer: Tokenizer, ids: Ids) -> Ids:
    """Return ids that spell the same with one token cut in two or more."""
    for at in range(len(ids) // 2, len(ids)):
        piece = tokenizer.token_bytes(int(ids[at]))
        if len(piece) > 2 and piece.isascii():
            cut = np.concatenate([_ids(tokenizer, p.decode()) for p in (piece[:1], piece[1:])])
            if b"".join(tokenizer.pieces(cut)) == piece:
                return np.concatenate([ids[:at], cut, ids[at + 1 :]])
    return ids


def _log(tokenizer: Tokenizer, drifting: float) -> str:
    text = "".join(inspect.getsource(import_module(name)) for name in MODULES)
    rng, lines, at = np.random.default_rng(0), [], 0
    for number in range(N_TRAJECTORIES):
        turns, prompt = [], _ids(tokenizer, "Read on.\n")
        for step in range(N_STEPS):
            part = text[at % (len(text) - N_CHARACTERS) :][:N_CHARACTERS]
            action = _canonical(tokenizer, _ids(tokenizer, part))
            at += N_CHARACTERS
            if rng.random() < drifting:
                action = _respelt(tokenizer, action)
            turns.append(
                {"prompt_token_ids": prompt.tolist(), "response_token_ids": action.tolist()}
            )
            prompt = np.concatenate([prompt, action, _ids(tokenizer, f"\nresult {step}\n")])
        lines.append(json.dumps({"trajectory_id": f"t{number}", "turns": turns}))
    return "\n".join(lines) + "\n"


def _cpu(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of five runs."""
    found = []
    for _ in range(5):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def row(folder: Path, drifting: float) -> str:
    """Return one row: tokens a second of drift-check against each baseline."""
    tokenizer, file = load_tokenizer(folder), str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(file)
    with tempfile.TemporaryDirectory() as name:
        log, steps = Path(name, "log.jsonl"), Path(name, "steps.parquet")
        log.write_text(_log(tokenizer, drifting))
        ingest([str(log)], steps, tokenizer=tokenizer)

        def texts() -> list[str]:
            ids = pq.read_table(steps, columns=["action_tokens"]).column(0).to_pylist()
            return list(backend.decode_batch(ids, skip_special_tokens=False))

        known = texts()

        def encode(some: list[str]) -> object:
            return backend.encode_batch_fast(some, add_special_tokens=False)

        report = drift_check(steps, tokenizer, routes=[Route.IDS, Route.CHAIN])
        ours = _cpu(lambda: drift_check(steps, tokenizer, routes=[Route.IDS, Route.CHAIN]))
        floors = (
            _cpu(lambda: backend.encode_batch(known, add_special_tokens=False)),
            _cpu(lambda: encode(known)),
            _cpu(lambda: encode(texts())),
        )
    shown = " | ".join(f"{floor / ours:.2f}" for floor in floors)
    drifted = f"{report.n_drifted_steps:,} of {report.n_steps:,}"
    return f"| {folder.name} | {report.n_action_tokens:,} | {drifted} | {shown} |"


def main() -> None:
    """Print the rows."""
    folders = [SMOLLM2 if n == "smollm2" else REAL / n for n in sys.argv[1:]] or [
        SMOLLM2, REAL / "qwen3", REAL / "llama3_1", REAL / "gemma3"
    ]  # fmt: skip
    print("| tokenizer | action tokens | drifting steps | encode | fast | by hand |")
    print("|---|---|---|---|---|---|")
    for folder in folders:
        for drifting in (0.0, 0.05, 0.4):
            print(row(folder, drifting), flush=True)


if __name__ == "__main__":
    main()
