"""What drift-check says for people: lines and rows as plain values, nothing printed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trajkit.cli.pages import FINDINGS, PAGES
from trajkit.safe.text import shorten, visible

if TYPE_CHECKING:
    from trajkit.drift.findings import DriftFinding, DriftReport
    from trajkit.drift.price import DriftPrice, LogprobPrice
    from trajkit.drift.profile import Fact
    from trajkit.drift.ranking import Group
    from trajkit.drift.thresholds import Measured

_IDS_SHOWN = 8
_TEXT_SHOWN = 48
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = ":-=+*%#@"
_MOST_BARS = 40
_N_TENTHS = 10
_SAID = {
    "ids": "no action changes when it is decoded and encoded again",
    "chain": "each prompt starts with the prompt + action of an earlier step",
    "join": "no sequence changes when it is joined as one text and encoded",
    "render": "the chat template gives the recorded ids",
    "pair": "both recordings hold the same ids",
    "self": "the ids bear out what else the record says of them",
}
_OTHER = {
    "ids": "re-encoded",
    "chain": "next prompt",
    "join": "re-encoded",
    "render": "rendered",
    "pair": "other data",
    "self": "logged",
}
_MASK = (
    ("n_straddling_tokens", "ids that hold bytes of an action and of its context"),
    ("n_stop_lost", "stop ids lost"),
    ("n_stop_gained", "stop ids gained"),
    ("n_control_from_content", "control ids made from content"),
    ("n_other_control", "other control ids changed"),
    ("n_not_judged", "regions not judged"),
)


def verdict(report: DriftReport) -> str:
    """Return the answer in one line."""
    from trajkit.drift.findings import Verdict

    walked = [name for name, count in report.by_route.items() if count.n_checked_steps]
    match report.verdict:
        case Verdict.DRIFT:
            return "drift: " + _rates(report)
        case Verdict.WRONG_RECORD:
            steps = {(one.trajectory_id, one.step_index) for one in report.findings}
            told = of(len(steps), report.n_checkable_steps)
            return f"wrong record: in {told} steps the ids do not bear out what was logged"
        case Verdict.NOT_CHECKABLE if not report.n_checkable_steps:
            return "not checkable: no step holds the sampler's own ids, so drift cannot be told"
        case Verdict.NOT_CHECKABLE:
            why = _reasons(report.not_walked)
            return f"not checkable: no step could be checked by the routes that were walked{why}"
        case Verdict.PARTLY_CHECKED:
            why = _reasons(report.unchecked)
            return f"partly checked: no drift found, but not all was checked{why}"
        case Verdict.CLEAN:
            return "clean: " + "; ".join(_SAID[name] for name in walked)


def _rates(report: DriftReport) -> str:
    n_tokens = report.n_checkable_action_tokens or report.n_action_tokens
    tokens = of(report.n_drifted_action_tokens, n_tokens)
    steps = of(report.n_drifted_steps, report.n_checkable_steps or report.n_steps)
    where = of(report.n_drifted_trajectories, report.n_trajectories)
    return f"{steps} checkable steps in {where} trajectories, {tokens} action tokens"


def of(part: int, whole: int) -> str:
    """Return a count with its whole and its share."""
    return f"{part:,} of {whole:,}" + (f" ({part / whole:.1%})" if whole else "")


def _reasons(by_route: Mapping[str, str]) -> str:
    told = "; ".join(f"{name}: {why}" for name, why in by_route.items())
    return f" ({told})" if told else ""


def route_rows(report: DriftReport) -> list[list[str]]:
    """Return a row for each route, the names of the columns first."""
    rows = [["route", "steps checked", "drifted", "regions"]]
    for name, count in report.by_route.items():
        drifted = of(count.n_drifted_steps, count.n_checked_steps)
        rows.append([name, f"{count.n_checked_steps:,}", drifted, f"{count.n_findings:,}"])
    rows += [[name, "not walked", "", why] for name, why in report.not_walked.items()]
    return rows


def notes(report: DriftReport) -> Iterator[str]:
    """Yield what stands below the table of routes, safe to show."""
    for name, count in report.by_route.items():
        if count.n_branched_steps:
            yield (
                f"{count.n_branched_steps:,} prompts go on from an older step: branches, or a "
                "history that was edited; ids alone cannot tell"
            )
        for why, n_steps in count.left_out.items():
            yield f"{name}: {n_steps:,} steps not checked: {why}"
    if (template := report.template) is not None:
        said = f"rendered with {visible(str(template['file']))} ({template['sha256'][:12]})"
        if template["kwargs"]:
            said += f", {visible(json.dumps(template['kwargs']))}"
        yield said + (f", today {template['now'][:10]}" if template["tells_time"] else "")
    if (against := report.against) is not None and against["n_other_trajectories"]:
        yield f"{against['n_other_trajectories']:,} trajectories stand in the other recording alone"


def provenance(report: DriftReport) -> str:
    """Return what was checked with in one line, safe to show."""
    made = report.provenance
    parts = []
    if (name := made.get("tokenizer")) is not None:
        parts.append(f"tokenizer {visible(name)} ({_short(made['tokenizer_fingerprint'])})")
    if made.get("template_sha256") is not None:
        parts.append(f"template {_short(made['template_sha256'])}")
    parts += [f"{tool} {made[tool]}" for tool in ("tokenizers", "trajkit") if made.get(tool)]
    return ", ".join(parts)


def _short(digest: str | None) -> str:
    return "" if digest is None else digest[:12]


def group_rows(groups: Sequence[Group]) -> list[list[str]]:
    """Return a row for each cause, the names of the columns first."""
    from trajkit.drift.findings import UNEXPLAINED
    from trajkit.drift.ranking import severity_name

    rows = [["cause", "kind", "regions", "action tokens", "damages", "what it is"]]
    for group in groups:
        counts = f"{group.n_regions:,}", f"{group.n_action_tokens:,}"
        is_named = group.check is None or group.cause != UNEXPLAINED
        name = group.cause if is_named else f"check {group.check}"
        severity = severity_name(group.severity)
        rows.append([name, group.kind.value, *counts, severity, what_of(group)])
    return rows


def what_of(group: Group) -> str:
    """Return what a group of findings is, in a few words."""
    from trajkit.drift.causes import DRIFT_CAUSES
    from trajkit.drift.routes.record import SELF_CHECKS

    known = {cause.name: cause.what for cause in DRIFT_CAUSES}
    if group.check is None:
        return known.get(group.cause, FINDINGS[group.kind])
    parts = [SELF_CHECKS[group.check], known.get(group.cause)]
    return ": ".join(part for part in parts if part is not None)


def fixes(groups: Sequence[Group]) -> dict[str, str]:
    """Return the setting to change by cause; by kind, where no cause is known."""
    from trajkit.drift.causes import DRIFT_CAUSES

    known = {cause.name: cause.fix for cause in DRIFT_CAUSES}
    return {group.code: known.get(group.cause) or PAGES[group.kind].fix for group in groups}


def histogram(price: DriftPrice, *, is_ascii: bool) -> str:
    """Return where trajectories first drift, as one line of bars: by step, and within the action.

    Each bar of steps is one step, or several where there are too many.
    """
    by_step, by_tenth = price.exposure.by_first_step, price.exposure.by_first_decile
    if not by_step:
        return ""
    n_steps = max(by_step) + 1
    width = -(-n_steps // _MOST_BARS)
    binned = [0] * -(-n_steps // width)
    for step, n in by_step.items():
        binned[step // width] += n
    each = "" if width == 1 else f", {width} a bar"
    line = f"first drift by step 0 {_bars(binned, is_ascii)} {n_steps - 1}{each}"
    if by_tenth:
        tenths = [by_tenth.get(tenth, 0) for tenth in range(_N_TENTHS)]
        line += f"   by tenth of the action {_bars(tenths, is_ascii)}"
    if price.exposure.n_first_outside:
        line += f"   outside an action {price.exposure.n_first_outside:,}"
    return line


def _bars(counts: Sequence[int], is_ascii: bool) -> str:
    """Return one character a count: a dot for none, the highest bar for the largest."""
    none, signs = (".", _ASCII_BARS) if is_ascii else ("·", _BARS)
    most = max(counts)
    return "".join(signs[(n * len(signs) - 1) // most] if n else none for n in counts)


def price_lines(price: DriftPrice, logprobs: LogprobPrice | None = None) -> Iterator[str]:
    """Yield what drift reaches and which masks it breaks."""
    reached = price.exposure
    touched = of(reached.n_touched_tokens, reached.n_action_tokens)
    behind = of(reached.n_shifted_tokens, reached.n_action_tokens)
    yield f"price: action tokens touched {touched}, in another context behind them {behind}"
    damage = price.mask_damage.to_dict()
    broken = [f"{damage[name]:,} {what}" for name, what in _MASK if damage[name]]
    yield "mask damage: " + ("; ".join(broken) or "none")
    if logprobs is not None:
        yield _logprob_line(logprobs)


def _logprob_line(price: LogprobPrice) -> str:
    """Return what the other spellings are worth to a checkpoint, in a sentence."""
    told = price.summary()
    if told["region_median"] is None:
        return "log-probs: no step spelt otherwise could be scored"
    said = (
        f"log-probs: an action re-tokenised is worth {told['region_median']:+.1f} nats a region in "
        f"the median, {told['region_worst']:+.1f} at worst"
    )
    if told["share_outside"] is not None:
        said += f"; {told['share_outside']:.1%} of {price.n_later_tokens:,} unchanged tokens behind"
        said += " leave the ratios 0.8 to 1.2"
    return said


def rule_rows(price: DriftPrice) -> list[list[str]]:
    """Return a row for each trainer's rule, the names of the columns first."""
    rows = [["trainer's rule", "rows", "trained tokens lost", "prompt tokens repeated"]]
    for name, cost in price.by_rule.items():
        lost = of(cost.n_lost_tokens, cost.n_lost_tokens + cost.n_trained_tokens)
        rows.append([name, f"{cost.n_rows:,}", lost, f"{cost.n_repeated_tokens:,}"])
    return rows


def window_lines(finding: DriftFinding) -> list[str]:
    """Return where a finding is, safe to show."""
    from trajkit.drift.findings import UNEXPLAINED

    spot = f"token {finding.token_start}"
    if finding.action_start is not None:
        spot += f", action token {finding.action_start}"
    if finding.byte_start is not None:
        spot += f", byte {finding.byte_start}"
    name = shorten(finding.trajectory_id, 60)
    said = f"{name} step {finding.step_index}: {finding.kind} by route {finding.route}"
    also = finding.evidence.get("also")
    said += f" (also {', '.join(also)})" if also else ""
    return [said if finding.cause == UNEXPLAINED else f"{said}, {finding.cause}", f"  at {spot}"]


def window_rows(finding: DriftFinding, *, is_ascii: bool) -> list[list[str]]:
    """Return both sides of a finding: text, cut where its ids end, and ids."""
    known = finding.evidence if finding.evidence.get("cut") else {}
    n_recorded, n_other = known.get("n_recorded"), known.get("n_other")
    bar, other = ("|" if is_ascii else "│"), _OTHER[finding.route]
    left = _pieces(finding.recorded_text, finding.recorded_edges, bar)
    right = _pieces(finding.retokenized_text, finding.retokenized_edges, bar)
    rows = [
        ["recorded", left, _ids(finding.recorded_ids, n_recorded)],
        [other, right, _ids(finding.retokenized_ids, n_other)],
    ]
    next_ids = finding.evidence.get("next_ids")
    if not finding.retokenized_ids and next_ids:
        shown = _pieces(finding.evidence.get("next_text"), (), bar)
        rows[1] = [other, f"nothing here; it goes on with {shown}", _ids(tuple(next_ids))]
    if finding.kind == "record" and not finding.retokenized_ids:
        rows[1][2] = ""  # text that was logged has no ids of its own
    return rows


def _pieces(text: str | None, edges: Sequence[int], bar: str) -> str:
    """Return a text in quotes with a bar between the bytes of two ids.

    Bytes that are no character by themselves are written as such. A text whose bytes are not known
    has no bars.
    """
    if text is None:
        return ""
    data = text.encode("utf-8", errors="replace")
    if not edges or edges[-1] != len(data) or "\ufffd" in text:
        return f'"{shorten(text, _TEXT_SHOWN)}"'
    starts = (0, *edges[:-1])
    parts = [
        data[a:b].decode("utf-8", errors="backslashreplace")
        for a, b in zip(starts[:_IDS_SHOWN], edges[:_IDS_SHOWN], strict=True)
    ]
    shown = shorten(bar.join(parts), _TEXT_SHOWN)
    is_cut = len(edges) > _IDS_SHOWN and not shown.endswith("…")
    return f'"{shown}{"…" if is_cut else ""}"'


def _ids(ids: tuple[int, ...], n: int | None = None) -> str:
    """Return the first ids and how many there are, `n` where the finding was cut."""
    shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
    return f"[{shown}, … {n or len(ids):,} ids]" if len(ids) > _IDS_SHOWN else f"[{shown}]"


def measured_line(measured: Measured) -> str:
    """Return a threshold with what the report holds against it, safe to show."""
    told = f"{measured.n:,}" if measured.whole is None else of(measured.n, measured.whole)
    holds = "fails" if measured.holds else "holds"
    return f"{holds} {visible(measured.threshold.text)}: {told}"


def risk_lines(facts: Sequence[Fact]) -> Iterator[str]:
    """Yield each risk with one place where it shows, safe to show."""
    for fact in facts:
        about = "" if fact.subject is None else f" ({visible(fact.subject)})"
        yield f"{fact.trait.value}{about}: {fact.n:,} of {fact.n_probed:,}"
        yield f"  {fact.consequence}"
        if fact.examples:
            yield f"  e.g. {example(fact.examples[0])}"


def example(facts: Mapping[str, object]) -> str:
    """Return one place where a trait shows, short and safe to show."""
    told = (f"{name} {_value(value)}" for name, value in facts.items() if value is not None)
    return shorten(", ".join(told), 2 * _TEXT_SHOWN)


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else str(value)
