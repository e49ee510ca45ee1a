import re

import pytest

from tests.builders import make_trajectory
from tests.view_builders import TOKENIZER, encoded
from trajkit.errors import UsageProblem
from trajkit.store.findings import StepFinding
from trajkit.view.drift import with_drift
from trajkit.view.glyphs import BLOCK
from trajkit.view.model import view_of
from trajkit.view.redact import Redaction, redacted


def finding(start, ids, step=0, **given):
    fixed = {
        "step_index": step,
        "route": "ids",
        "kind": "ids-only",
        "cause": "UNEXPLAINED",
        "token_start": start,
        "n_tokens": len(ids),
        "recorded_ids": tuple(ids),
        "retokenized_ids": (7,),
        "retokenized_text": "other\n",
    }
    return StepFinding(**(fixed | given))


def view(*calls):
    return view_of(make_trajectory(calls or [([5], [6, 7, 8])]))


def test_a_finding_stands_at_its_tokens():
    (mark,) = with_drift(view(), [finding(2, [7, 8])]).marks[0]
    assert (mark.start, mark.end, mark.is_added) == (2, 4, False)
    assert mark.told == ("ids-only", "UNEXPLAINED", "other text other␊")
    assert mark.other_ids == (7,)


def test_ids_that_are_missing_are_marked_at_the_next_token_or_the_last():
    marks = with_drift(view(), [finding(2, []), finding(4, [])]).marks[0]
    assert [(mark.start, mark.end, mark.is_added) for mark in marks] == [(2, 3, True), (3, 4, True)]
    assert [mark.is_behind for mark in marks] == [False, True]
    assert [mark.told[-1] for mark in marks] == ["other text other␊", "behind the last token"]


def test_a_region_that_was_cut_keeps_its_length():
    (mark,) = with_drift(view(), [finding(1, [6], n_tokens=900)]).marks[0]
    assert (mark.start, mark.end) == (1, 4)


def test_a_kept_token_is_marked_where_its_owner_shows_it():
    found = with_drift(view(([5], [6, 7]), ([5, 6, 9], [10])), [finding(1, [6], step=1)])
    assert set(found.marks) == {0}
    assert found.marks[0][0].start == 1


@pytest.mark.parametrize(
    "wrong", [finding(2, [9]), finding(5, []), finding(-1, []), finding(1, [6], step=3)]
)
def test_findings_of_other_data_are_told_by_their_ids(wrong):
    with pytest.raises(UsageProblem, match="findings are of other data") as caught:
        with_drift(view(), [wrong])
    assert caught.value.code == "U103"


@pytest.mark.parametrize(("pattern", "is_shown"), [("b", False), ("other", False), ("z", True)])
def test_the_other_side_is_hidden_with_its_tokens_and_where_it_matches(pattern, is_shown):
    ids = encoded("abc", control=False)
    marked = with_drift(view(([5], ids)), [finding(1, ids)])
    hidden = redacted(marked, TOKENIZER, Redaction(patterns=(re.compile(pattern),)))
    (mark,) = hidden.marks[0]
    assert (mark.other_text, mark.other_ids) == (("other\n", (7,)) if is_shown else (BLOCK, None))
    assert (mark.kind, mark.start, mark.end) == ("ids-only", 1, 4)
