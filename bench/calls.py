"""Tool calls written back by a logger: `python bench/calls.py [TOKENIZER...] [-n TRAJECTORIES]`.

Trajectories of a shop's agent, as tau-bench has them: a customer asks, the agent calls tools. The
agent writes each call in its own spelling (no spaces, other order of keys, escaped letters, Python
literals, indented, a number with other digits) or exactly as the chat template writes calls. A
logger parses the calls and keeps messages. Printed is how many of the changed calls `drift-check`
finds at their step with the right cause, and how many unchanged ones it blames. Anything but all
and none ends with exit 1.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # so that it runs by its path, too

from bench.world import REAL

from trajkit.drift.check import drift_check
from trajkit.drift.findings import Route
from trajkit.ingestion.run import ingest
from trajkit.template import ChatTemplate, Setting, load_template, turn_spans
from trajkit.tokenizer import Tokenizer, load_tokenizer

FAMILIES = {"qwen3": "qwen3", "qwen2_5": "qwen3", "llama3_2": "llama3_1"}
"""Templates that write calls as JSON, and the tokenizer each is used with."""
CAUSE = "tool-call-reserialisation"
THOUGHT = {"reasoning_content": "The customer gave me what I need."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')}.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    for name in ("find_user_id_by_name_zip", "get_order_details", "calculate", "exchange_items")
]


_NUMBER = re.compile(r"(?<= )\d+\.\d+(?=[,}])")


def _arguments(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a tool's name and arguments; each spelling below changes some of them."""
    order = f"#W{rng.randrange(10**6, 10**7)}"
    some = [str(rng.randrange(10**9, 10**10)) for _ in range(rng.randrange(1, 4))]
    calls: list[tuple[str, dict[str, Any]]] = [
        (
            "find_user_id_by_name_zip",
            {"first_name": rng.choice(["Zoë", "Noé", "José"]), "zip": rng.randrange(10**5)},
        ),
        ("get_order_details", {"order_id": order, "with_items": rng.random() < 0.5}),
        ("calculate", {"expression": f"{rng.randrange(99)} + 3", "digits": rng.random() * 9}),
        ("exchange_items", {"order_id": order, "item_ids": some, "note": None}),
    ]
    return rng.choice(calls)


def _swapped(arguments: dict[str, Any]) -> str:
    return json.dumps(dict(reversed(arguments.items())), ensure_ascii=False)


SPELLINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "no spaces": lambda a: json.dumps(a, separators=(",", ":"), ensure_ascii=False),
    "escaped letters": json.dumps,
    "other order of keys": _swapped,
    "Python literals": repr,
    "indented": lambda a: json.dumps(a, indent=2, ensure_ascii=False),
    "other digits": lambda a: _NUMBER.sub(r"\g<0>0", json.dumps(a, ensure_ascii=False)),
}
"""How a policy may write the arguments that a logger reads the same."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One trajectory as a log, and what was done to each of its calls (`None`: nothing)."""

    record: dict[str, Any]
    changes: list[str | None]


def rollout(name: str, template: ChatTemplate, tokenizer: Tokenizer, rng: random.Random) -> Rollout:
    """Return a trajectory of two to six calls and an answer."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a shop's agent. Follow its policy."},
        {"role": "user", "content": f"Hi, I would like to change order {rng.randrange(10**4)}."},
    ]
    for number in range(rng.randrange(2, 7)):
        tool, arguments = _arguments(rng)
        call = {"id": f"call_{number}", "type": "function"}
        call["function"] = {"name": tool, "arguments": arguments}  # type: ignore[assignment]
        messages += [
            {"role": "assistant", "content": "", **THOUGHT, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": _result(rng)},
        ]
    answer = f"Done, the total is ${rng.randrange(500)}."
    messages.append({"role": "assistant", "content": answer, **THOUGHT})
    setting = Setting(tools=TOOLS)
    turns = list(turn_spans(template, messages, tokenizer, setting))
    changes: list[str | None] = []
    record_turns: list[dict[str, Any]] = []
    ids: list[int] = []
    text = ""
    for turn in turns:
        if not turn.prompt_text.startswith(text):
            raise ValueError(f"the template of {name} rewrites history")
        ids += _ids(tokenizer, turn.prompt_text[len(text) :])
        spelt, change = _spelt(turn.action_text, messages[turn.message], rng)
        action = _ids(tokenizer, spelt)
        record_turns.append(
            {
                "prompt_token_ids": list(ids),
                "response_token_ids": action,
                "logprobs": [-0.5] * len(action),
                "finish_reason": "stop",
            }
        )
        ids += action
        text = turn.prompt_text + turn.action_text
        changes.append(change)
    record = {"trajectory_id": name, "turns": record_turns, "messages": messages, "tools": TOOLS}
    return Rollout(record, changes)


def _result(rng: random.Random) -> str:
    return json.dumps({"status": rng.choice(["ok", "pending"]), "total": rng.randrange(500)})


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(i) for i in next(iter(tokenizer.encode_batch([text])))]


def _spelt(action: str, message: dict[str, Any], rng: random.Random) -> tuple[str, str | None]:
    """Return an action as the policy wrote it, and in which spelling if it is another one."""
    calls = message.get("tool_calls")
    if not calls or rng.random() < 0.4:
        return action, None
    arguments = calls[0]["function"]["arguments"]
    written = json.dumps(arguments, ensure_ascii=False)
    if written not in action:
        raise ValueError(f"the template writes arguments otherwise: {action}")
    others = {how: spell(arguments) for how, spell in SPELLINGS.items()}
    ways = [how for how, other in others.items() if other != written]
    how = rng.choice(ways)
    return action.replace(written, others[how]), how


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found of what was changed, by the way calls were changed."""

    n_changed: Counter[str]
    n_found: Counter[str]
    n_calls: int
    false_alarms: list[str]
    wrong: list[str]

    @property
    def is_right(self) -> bool:
        """Return whether every changed call was found, and nothing else."""
        return self.n_changed == self.n_found and not self.false_alarms and not self.wrong


def check(family: str, n: int, seed: int = 0) -> Outcome:
    """Return what drift-check finds in `n` trajectories of a family of templates."""
    folder, file = REAL / FAMILIES[family], REAL / "templates" / f"{family}.jinja"
    tokenizer, template = load_tokenizer(folder), load_template(file, folder)
    rng = random.Random(seed)
    rollouts = [rollout(f"{family}-{i}", template, tokenizer, rng) for i in range(n)]
    with tempfile.TemporaryDirectory() as name:
        log, steps = Path(name, "log.jsonl"), Path(name, "steps.parquet")
        log.write_text("".join(json.dumps(one.record) + "\n" for one in rollouts))
        ingest([str(log)], steps, tokenizer=tokenizer)
        report = drift_check(steps, folder, routes=[Route.RENDER], chat_template=template)
    told: dict[tuple[str, int], set[str]] = {}
    for found in report.findings:
        told.setdefault((found.trajectory_id, found.step_index), set()).add(found.cause)
    changed: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    false_alarms, wrong = [], []
    for step, how in _steps(rollouts):
        causes = told.get(step, set())
        if how is None:
            false_alarms += [f"{step} {sorted(causes)}"] if causes else []
            continue
        changed[how] += 1
        hit[how] += bool(causes)
        if causes - {CAUSE}:
            wrong.append(f"{step} {how}: {sorted(causes)}")
    n_calls = sum(len(one.changes) - 1 for one in rollouts)
    return Outcome(changed, hit, n_calls, false_alarms, wrong)


def _steps(rollouts: list[Rollout]) -> Iterator[tuple[tuple[str, int], str | None]]:
    for one in rollouts:
        for index, how in enumerate(one.changes):
            yield (one.record["trajectory_id"], index), how


def main() -> None:
    """Print a row for each way and family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*", default=list(FAMILIES))
    parser.add_argument("-n", type=int, default=200)
    options = parser.parse_args()
    outcomes = {family: check(family, options.n) for family in options.family}
    for family, outcome in outcomes.items():
        print(f"{family}: {options.n} trajectories, {outcome.n_calls} calls")
        for how, n in sorted(outcome.n_changed.items()):
            print(f"  {how:22} {outcome.n_found[how]} of {n} found")
        print(f"  unchanged and blamed   {len(outcome.false_alarms)}")
        print(f"  another cause told     {len(outcome.wrong)}")
        for line in [*outcome.false_alarms, *outcome.wrong][:10]:
            print("   ", line)
    sys.exit(not all(outcome.is_right for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
