"""The tag profiles: a literal table, read by the scanner and written by nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trajkit.records import SegmentKind


class Side(StrEnum):
    """Who wrote a piece of text."""

    POLICY = "policy"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """One tag.

    Attributes:
        open: how it begins. `{n}` stands for an optional number, and makes it a label: it counts
            at the start of a line only.
        close: how it ends; `None` for a label, which ends where the next one begins.
        kind: what the text between is.
        writer: who writes the opening tag and the text between.
        closer: who writes the closing tag.
        before, after: the white space that the environment puts around its own tag; what goes
            beyond it is the policy's. Between a closing tag of the policy and the environment's
            tag all white space is the environment's: the policy had stopped.
    """

    open: str
    close: str | None
    kind: SegmentKind
    writer: Side
    closer: Side
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How turns are marked: `open`, a role, the end of the line, the content, `close`.

    Attributes:
        open, close: what stands around a turn; empty where labels mark it.
        policy_roles: whose turns the policy writes.
        labels: the roles that begin a turn by their name and a colon at the start of a line, up to
            the next such line; the role is the name in lower case.
    """

    open: str = ""
    close: str = ""
    policy_roles: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """A tag profile.

    Attributes:
        name: what `--markup` takes.
        tags: the tags.
        turns: how turns are marked, `None` where they are not.
        phrases: sentences that the environment writes without a tag, whole.
        prompt_end: text that ends the prompt where neither the record nor a turn does; it must
            occur exactly once.
    """

    name: str
    tags: tuple[Tag, ...] = ()
    turns: Turns | None = None
    phrases: tuple[str, ...] = ()
    prompt_end: str | None = None


_POLICY, _ENVIRONMENT = Side.POLICY, Side.ENVIRONMENT
_LABELLED = Turns(labels=("SYSTEM", "USER", "ASSISTANT", "TOOL"), policy_roles=("assistant",))
_CHATML = Turns(open="<|im_start|>", close="<|im_end|>", policy_roles=("assistant",))
_THINK = Tag(
    open="<think>", close="</think>", kind=SegmentKind.THINK, writer=_POLICY, closer=_POLICY
)
_HERMES = (
    _THINK,
    Tag(
        open="<tool_call>",
        close="</tool_call>",
        kind=SegmentKind.TOOL_CALL,
        writer=_POLICY,
        closer=_POLICY,
    ),
    Tag(
        open="<tool_response>",
        close="</tool_response>",
        kind=SegmentKind.OBSERVATION,
        writer=_ENVIRONMENT,
        closer=_ENVIRONMENT,
        before="\n",
        after="\n",
    ),
)

_INVALID_ACTION = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> "
    "and </search>. If I want to give the final answer, I should put the answer between <answer> "
    "and </answer>. Let me try again.\n"
)

MARKUPS: tuple[Markup, ...] = (
    Markup(
        name="search-r1",
        turns=_CHATML,
        tags=(
            _THINK,
            Tag(
                open="<search>",
                close="</search>",
                kind=SegmentKind.TOOL_CALL,
                writer=_POLICY,
                closer=_POLICY,
            ),
            Tag(
                open="<answer>",
                close="</answer>",
                kind=SegmentKind.ANSWER,
                writer=_POLICY,
                closer=_POLICY,
            ),
            Tag(
                open="<information>",
                close="</information>",
                kind=SegmentKind.OBSERVATION,
                writer=_ENVIRONMENT,
                closer=_ENVIRONMENT,
                before="\n\n",
                after="\n\n",
            ),
        ),
        phrases=(_INVALID_ACTION,),
    ),
    Markup(name="hermes", turns=_CHATML, tags=_HERMES),
    Markup(
        name="react",
        tags=(
            Tag(
                open="Thought{n}:",
                close=None,
                kind=SegmentKind.THINK,
                writer=_POLICY,
                closer=_POLICY,
            ),
            Tag(
                open="Action{n}: Finish[",
                close=None,
                kind=SegmentKind.ANSWER,
                writer=_POLICY,
                closer=_POLICY,
            ),
            Tag(
                open="Action{n}:",
                close=None,
                kind=SegmentKind.TOOL_CALL,
                writer=_POLICY,
                closer=_POLICY,
            ),
            Tag(
                open="Observation{n}:",
                close=None,
                kind=SegmentKind.OBSERVATION,
                writer=_ENVIRONMENT,
                closer=_ENVIRONMENT,
                before="\n",
            ),
        ),
    ),
    Markup(name="chatml", turns=_CHATML),
    Markup(name="hermes-labels", turns=_LABELLED, tags=_HERMES),
)
"""In the order in which they are tried: what more is asked of comes first."""
