"""A dataset as a page, in one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

from trajkit.errors import UsageProblem
from trajkit.store.findings import open_findings
from trajkit.store.read import Dataset, open_dataset, read_trajectories
from trajkit.store.scores import open_scores
from trajkit.tokenizer import Tokenizer, load_tokenizer, require_same_tokenizer
from trajkit.view.html.page import page_of
from trajkit.view.html.payload import payload_of
from trajkit.view.model import rows
from trajkit.view.prepare import prepared
from trajkit.view.redact import redaction_of


def mask_page(  # noqa: PLR0913 - the options of the command
    data: Dataset | Path | str,
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    only: Collection[str] = (),
    limit: int | None = 32,
    steps: Callable[[int], bool] = lambda _: True,
    scores: Path | str | None = None,
    findings: Path | str | None = None,
    redact: Collection[str | re.Pattern[str]] = (),
    no_text: bool = False,
) -> str:
    """Return trajectories of a dataset as one HTML page that loads nothing.

    Args:
        data: a dataset, or the path of one.
        tokenizer: gives each id its text; without it the ids themselves are shown.
        only: ids of the trajectories to show; empty takes the first ones.
        limit: how many at most; `None` takes all.
        steps: which step indices to show.
        scores: what `trajkit score -o` wrote of the data.
        findings: what `trajkit drift-check -o` wrote of them.
        redact: regular expressions; what they match is nowhere in the page.
        no_text: whether to show kinds, counts and numbers only, no text and no ids.

    Raises:
        UsageProblem: U103 when an argument cannot be what was meant, U107 when nothing is chosen.
        InputError: S101 to S104, T102, I304 when a file is not what it should be.
        FileError: F101 when one cannot be read.
    """
    dataset = data if isinstance(data, Dataset) else open_dataset(data)
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
    if loaded is not None:
        require_same_tokenizer(
            loaded,
            fingerprint=dataset.tokenizer_fingerprint,
            name=dataset.metadata.get("tokenizer_name"),
            file=str(dataset.path),
        )
    views = prepared(
        read_trajectories(dataset, only=only, limit=limit),
        loaded,
        scores=None if scores is None else open_scores(Path(scores), dataset),
        findings=None if findings is None else open_findings(Path(findings), dataset),
        redaction=redaction_of(redact, hides_text=no_text),
    )
    payload = payload_of(((view, rows(view, loaded, steps)) for view in views), loaded)
    if not payload.trajectories:
        raise UsageProblem("U107", "there is no trajectory to show")
    return page_of(payload)
