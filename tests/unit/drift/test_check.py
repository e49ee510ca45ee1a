from dataclasses import replace
from typing import Any

import pytest

from tests.builders import make_step, make_trajectory, tiny_tokenizer
from tests.drift_builders import CHATML, ids_of, say, talk
from tests.tokenizer_builders import TINY
from trajkit import __version__
from trajkit.drift.check import drift_check
from trajkit.drift.findings import DriftKind, Route
from trajkit.drift.price import DriftPrice, price_all
from trajkit.drift.profile import Trait
from trajkit.errors import InputError, UsageProblem
from trajkit.records import ActionSource, Trajectory
from trajkit.store.write import DatasetWriter, Provenance
from trajkit.template import ChatTemplate
from trajkit.tokenizer import load_tokenizer

# ids of the tiny tokenizer; `se` + `arch` is another spelling of `search`
SEARCH, NEWLINE, TOKYO, IM_END = 298, 201, 462, 2
SPELT = [85, 71, 67, 84, 69, 74]


@pytest.fixture
def write(tmp_path) -> Any:
    """Return a function that writes trajectories and returns the dataset's path."""

    def written(*trajectories, **provenance):
        path = tmp_path / f"steps{len(list(tmp_path.iterdir()))}.parquet"
        with DatasetWriter(path) as writer:
            for trajectory in trajectories:
                writer.write(trajectory)
            writer.provenance = Provenance(**provenance)
        return path

    return written


def sources(trajectory, *each) -> Any:
    """Return a trajectory whose steps have other action sources."""
    steps = [replace(s, action_source=a) for s, a in zip(trajectory.steps, each, strict=True)]
    return Trajectory(trajectory_id=trajectory.trajectory_id, steps=tuple(steps))


def spelling(trajectory_id="spelt") -> Any:
    """Return three steps of which the second spells its action otherwise."""
    first, second = [SEARCH, IM_END], [TOKYO, NEWLINE, *SPELT, IM_END]
    start = [1, 5]
    between = [NEWLINE, 1]
    return make_trajectory(
        [
            (start, first),
            (start + first + between, second),
            (start + first + between + second + between, [SEARCH]),
        ],
        trajectory_id,
    )


def broken(trajectory_id="broken") -> Any:
    """Return two steps of which the second lost the first one's end-of-turn id."""
    return make_trajectory(
        [([1, 5], [SEARCH, IM_END]), ([1, 5, SEARCH, NEWLINE, 1], [TOKYO])], trajectory_id
    )


def clean(trajectory_id="clean") -> Any:
    return make_trajectory(
        [([1, 5], [SEARCH, IM_END]), ([1, 5, SEARCH, IM_END, NEWLINE, 1], [TOKYO])], trajectory_id
    )


def test_spelt_letters_are_what_the_tests_take_them_for():
    tiny = load_tokenizer(TINY)
    assert b"".join(map(tiny.token_bytes, SPELT)) == b"search"


def test_a_report_counts_what_both_routes_find(write):
    report = drift_check(write(clean(), spelling(), broken()), TINY)
    assert report.tokenizer == "tiny"
    assert (report.n_trajectories, report.n_drifted_trajectories) == (3, 2)
    assert (report.n_steps, report.n_checkable_steps, report.n_drifted_steps) == (7, 7, 2)
    assert (report.n_action_tokens, report.n_drifted_action_tokens) == (3 + 12 + 3, 6 + 1)
    assert report.sampled_share == 1.0
    ids, chain = report.by_route["ids"], report.by_route["chain"]
    assert (ids.n_checked_steps, ids.n_drifted_steps, ids.n_findings) == (7, 1, 1)
    assert (chain.n_checked_steps, chain.n_drifted_steps, chain.n_findings) == (4, 1, 1)
    assert report.by_kind == {"ids-only": 1, "prefix": 1}
    assert report.by_cause == {"non-canonical-sampling": 1, "eos-dropped": 1}
    assert [(f.trajectory_id, f.step_index, f.route) for f in report.findings] == [
        ("spelt", 1, "ids"),
        ("broken", 0, "chain"),
    ]
    assert not report.is_clean


def test_the_report_as_json_has_the_documented_keys(write):
    facts = drift_check(write(spelling()), TINY).to_dict()
    assert list(facts) == [
        *("schema", "verdict", "sampled_share", "checkable", "tokenizer"),
        *("n_trajectories", "n_drifted_trajectories", "n_steps", "n_checkable_steps"),
        *("n_drifted_steps", "n_action_tokens", "n_checkable_action_tokens"),
        *("n_drifted_action_tokens", "not_walked", "template", "against"),
        *("price", "logprob_price", "risks", "provenance"),
        *("by_source", "by_route", "by_kind", "by_cause", "findings"),
    ]
    assert facts["schema"] == "trajkit.drift-check/1"
    assert facts["by_source"] == {"sampled": 3, "retokenized": 0, "unknown": 0, "none": 0}
    others = dict.fromkeys(["text", "structure", "prefix", "record"], 0)
    assert facts["by_kind"] == {"ids-only": 1, **others}
    (finding,) = facts["findings"]
    assert list(finding) == [
        *("trajectory_id", "step_index", "route", "kind", "cause", "token_start", "action_start"),
        *("byte_start", "recorded_ids", "retokenized_ids", "recorded_text", "retokenized_text"),
        *("n_action_tokens", "recorded_edges", "retokenized_edges", "evidence"),
    ]
    assert finding["token_start"] == 2 + 2 + 2 + 2


def test_clean_data_are_clean(write):
    report = drift_check(write(clean()), TINY)
    assert report.is_clean
    assert report.findings == []


def test_an_id_that_two_routes_find_is_counted_once(write):
    respelt = [1, 5, SEARCH, IM_END, NEWLINE, 1]  # a server that encoded the answer again
    trajectory = make_trajectory([([1, 5], [*SPELT, IM_END]), (respelt, [TOKYO])])
    report = drift_check(write(trajectory), TINY)
    assert [f.route for f in report.findings] == ["ids", "chain"]
    assert [f.n_action_tokens for f in report.findings] == [6, 6]
    assert report.n_drifted_action_tokens == 6
    assert report.n_drifted_steps == 1


@pytest.mark.parametrize(
    "source", [ActionSource.RETOKENIZED, ActionSource.UNKNOWN, ActionSource.NONE]
)
def test_ids_that_were_not_sampled_are_not_checkable_and_never_clean(write, source):
    data = write(sources(spelling(), source, source, source))
    report = drift_check(data, TINY)
    assert report.n_checkable_steps == 0
    assert report.by_route["ids"].n_checked_steps == 0
    assert report.findings == []
    assert not report.is_clean
    assert report.to_dict()["checkable"] is False


def test_only_the_sampled_steps_of_mixed_data_are_checked(write):
    sampled, other = ActionSource.SAMPLED, ActionSource.RETOKENIZED
    report = drift_check(write(sources(spelling(), sampled, other, sampled)), TINY)
    assert report.n_checkable_steps == 2
    assert report.by_source == {"sampled": 2, "retokenized": 1}
    assert report.is_clean


def test_text_without_ids_is_not_checkable(write):
    steps = (make_step(0, action_text="search", text_delta="x"),)
    report = drift_check(write(Trajectory(trajectory_id="t", steps=steps)), TINY)
    assert report.n_checkable_steps == 0
    assert not report.is_clean


def test_without_a_tokenizer_only_the_chain_is_walked(write):
    report = drift_check(write(broken(), spelling()))
    assert list(report.by_route) == ["chain"]
    assert report.tokenizer is None
    (finding,) = report.findings
    assert finding.recorded_ids == (IM_END,)
    assert finding.recorded_text is None


def test_data_of_which_nothing_was_checked_are_not_clean(write):
    single = make_trajectory([([1, 5], SPELT)])
    report = drift_check(write(single))  # no tokenizer, and no second step
    assert report.by_route["chain"].n_checked_steps == 0
    assert report.n_checkable_steps == 1
    assert not report.is_clean


def test_routes_are_walked_as_asked_for(write):
    data = write(spelling(), broken())
    assert {f.route for f in drift_check(data, TINY, routes=[Route.IDS]).findings} == {"ids"}
    assert {f.route for f in drift_check(data, TINY, routes=[Route.CHAIN]).findings} == {"chain"}
    with pytest.raises(UsageProblem) as caught:
        drift_check(data, routes=[Route.IDS, Route.CHAIN])
    assert caught.value.code == "U103"


def test_trajectories_are_chosen_by_id_and_number(write):
    data = write(clean(), spelling(), broken())
    assert drift_check(data, TINY, limit=1).is_clean
    assert drift_check(data, TINY, limit=2).n_trajectories == 2
    chosen = drift_check(data, TINY, only={"broken"})
    assert [f.trajectory_id for f in chosen.findings] == ["broken"]
    assert chosen.n_trajectories == 1


def test_steps_are_chosen_by_the_step_a_finding_speaks_of(write):
    data = write(spelling(), broken())
    first = drift_check(data, TINY, steps=lambda index: index == 0)
    assert (first.n_steps, first.n_action_tokens) == (2, 4)
    assert [(f.trajectory_id, f.route) for f in first.findings] == [("broken", "chain")]
    second = drift_check(data, TINY, steps=lambda index: index == 1)
    assert [(f.trajectory_id, f.route) for f in second.findings] == [("spelt", "ids")]
    assert second.by_route["chain"].n_checked_steps == 1


def test_a_prompt_that_shares_nothing_is_compared_with_the_last_step_that_has_ids(write):
    first = make_step(0, prompt_delta=[1, 5], action_tokens=[SEARCH])
    silent = make_step(1, action_text="thinking")
    later = make_step(2, prompt_delta=[7, 8], action_tokens=[TOKYO])
    report = drift_check(write(Trajectory(trajectory_id="t", steps=(first, silent, later))))
    (finding,) = report.findings
    assert (finding.step_index, finding.token_start) == (0, 0)
    assert finding.evidence["next_step_index"] == 2


def test_the_first_step_of_a_trajectory_is_not_compared_with_another_trajectory(write):
    one = make_trajectory([([1, 5], [SEARCH])], "one")
    two = make_trajectory([([7, 8], [TOKYO])], "two")
    report = drift_check(write(one, two))
    assert report.findings == []
    assert report.by_route["chain"].n_checked_steps == 0


def test_data_of_another_tokenizer_are_refused(write):
    data = write(clean(), tokenizer_name="other", tokenizer_fingerprint="0" * 64)
    with pytest.raises(InputError) as caught:
        drift_check(data, TINY)
    assert caught.value.code == "T102"
    assert drift_check(data).by_route["chain"].n_checked_steps == 1


def test_data_of_the_same_tokenizer_are_checked(write):
    tiny = load_tokenizer(TINY)
    data = write(clean(), tokenizer_name="tiny", tokenizer_fingerprint=tiny.fingerprint)
    assert drift_check(data, tiny).is_clean


def test_findings_of_a_trajectory_are_in_the_order_of_its_tokens(write):
    respelt = [1, 5, SEARCH, IM_END, NEWLINE, 1]
    trajectory = make_trajectory(
        [([1, 5], [*SPELT, IM_END, *SPELT]), (respelt, [TOKYO, NEWLINE, *SPELT])]
    )
    report = drift_check(write(trajectory), TINY)
    order = [(f.step_index, f.token_start) for f in report.findings]
    assert order == sorted(order)
    assert len(order) == 4


def test_prompts_that_go_on_from_an_older_step_are_counted_not_called_clean(write):
    first = ([1, 5], [TOKYO, IM_END])
    second = ([1, 5, TOKYO, IM_END, NEWLINE, 6], [7, IM_END])
    branch = ([1, 5, TOKYO, IM_END, 9, 9, 9], [8, IM_END])
    report = drift_check(write(make_trajectory([first, second, branch])), TINY)
    assert report.by_route["chain"].n_checked_steps == 2
    assert report.by_route["chain"].n_branched_steps == 1
    assert report.by_route["chain"].n_findings == 0


def test_what_several_routes_find_alike_is_one_finding_that_names_them(write):
    report = drift_check(write(spelling()), TINY)
    assert [report.by_route[name].n_findings for name in ("ids", "join")] == [1, 1]
    (finding,) = report.findings
    assert (finding.route, finding.evidence["also"]) == ("ids", ["join"])
    assert report.by_kind.total() == 1
    assert report.n_drifted_action_tokens == 6


def test_ids_of_two_actions_in_one_region_count_once_beside_what_ids_finds(write):
    first, second = [*SPELT, 85, 71], [67, 84, 69, 74, IM_END]
    report = drift_check(write(make_trajectory([([1, 5], first), ([1, 5, *first], second)])), TINY)
    assert report.by_route["join"].n_findings >= 1
    assert report.n_drifted_action_tokens == len(first) + len(second) - 1


def test_routes_that_the_data_do_not_allow_do_not_hinder_a_clean_verdict(write):
    report = drift_check(write(clean()), TINY)
    assert report.not_walked == {"render": "no messages recorded"}
    assert list(report.by_route) == ["ids", "chain", "join", "self"]
    assert (report.is_clean, report.unchecked, report.template) == (True, {}, None)


def test_routes_that_lack_an_argument_do(write):
    report = drift_check(write(clean()))
    needs = "needs -t TOKENIZER"
    assert report.not_walked == dict.fromkeys(("ids", "join", "render", "self"), needs)
    assert report.verdict == "partly checked"


def test_messages_without_a_template_do_too(write):
    asked = ids_of("<|im_start|>user\nsearch<|im_end|>\n<|im_start|>assistant\n", tiny_tokenizer())
    data = write(talk([(asked, [TOKYO, IM_END])], say("search", "Tokyo")))
    report = drift_check(data, tiny_tokenizer())  # a tokenizer without a folder has no template
    assert report.not_walked == {"render": "needs --chat-template FILE"}
    assert report.verdict == "partly checked"
    rendered = drift_check(data, tiny_tokenizer(), chat_template=ChatTemplate(source=CHATML))
    assert rendered.is_clean
    assert (rendered.template or {})["file"] is None
    with pytest.raises(UsageProblem) as caught:
        drift_check(data, tiny_tokenizer(), routes=[Route.RENDER])
    assert caught.value.code == "U103"


def test_a_conversation_that_is_left_out_keeps_the_rest_from_being_clean(write):
    source = "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}" + CHATML
    tiny = tiny_tokenizer()
    both = []
    for word in ("no", "search"):
        asked = ids_of(f"<|im_start|>user\n{word}<|im_end|>\n<|im_start|>assistant\n", tiny)
        both.append(talk([(asked, [TOKYO, IM_END])], say(word, "Tokyo"), word))
    report = drift_check(write(*both), tiny, chat_template=ChatTemplate(source=source))
    refused = "the chat template refuses the conversation"
    assert report.by_route["render"].n_checked_steps == 1
    assert report.by_route["render"].left_out == {refused: 1}
    assert report.to_dict()["by_route"]["render"]["left_out"] == {refused: 1}
    assert (report.unchecked, report.verdict) == ({"render": refused}, "partly checked")


def test_another_recording_is_counted_with_what_each_has_alone(write, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with DatasetWriter(other / "steps.parquet") as writer:
        for trajectory in (spelling(), clean("alone")):
            writer.write(trajectory)
    data = write(clean(), spelling())
    report = drift_check(data, TINY, routes=[Route.PAIR], against=other / "steps.parquet")
    assert report.by_route["pair"].n_checked_steps == 3
    assert report.by_route["pair"].left_out == {"the other recording has no such step": 2}
    assert report.against is not None
    assert report.against["n_other_trajectories"] == 1
    assert report.verdict == "partly checked"
    some = drift_check(
        data, TINY, routes=[Route.PAIR], against=other / "steps.parquet", only={"spelt"}
    )
    assert (some.against or {})["n_other_trajectories"] is None  # nobody read on to the end
    assert some.is_clean


def test_what_two_recordings_were_made_with_tells_a_cause(write):
    plain = make_trajectory([([1, 5], [TOKYO, SEARCH, IM_END])])
    other = make_trajectory([([1, 5], [TOKYO, *SPELT, IM_END])])
    mine = write(plain, tokenizer_fingerprint=tiny_tokenizer().fingerprint, tokenizer_name="tiny")
    theirs = write(other, tokenizer_fingerprint="0" * 64, tokenizer_name="revised")
    (found,) = drift_check(mine, TINY, routes=[Route.PAIR], against=theirs).findings
    assert found.cause == "tokenizer-revision"
    assert found.evidence["tokenizers"] == [tiny_tokenizer().fingerprint, "0" * 64]
    (found,) = drift_check(mine, TINY, routes=[Route.PAIR], against=write(other)).findings
    assert found.cause != "tokenizer-revision"  # the other recording does not say


def test_two_templates_of_two_recordings_tell_a_cause(write):
    plain = make_trajectory([([1, 5, IM_END, NEWLINE], [TOKYO, IM_END])])
    other = make_trajectory([([1, 5, NEWLINE], [TOKYO, IM_END])])
    mine = write(plain, chat_template_sha256="a" * 64)
    theirs = write(other, chat_template_sha256="b" * 64)
    report = drift_check(mine, TINY, routes=[Route.PAIR], against=theirs)
    assert [found.evidence.get("templates") for found in report.findings] == [["a" * 64, "b" * 64]]
    assert [found.cause for found in report.findings] == ["template-version"]


def test_the_price_is_the_sum_over_all_trajectories_and_routes(write):
    trajectories = [clean(), spelling(), broken()]
    report = drift_check(write(*trajectories), TINY)
    found = [
        [f for f in report.findings if f.trajectory_id == t.trajectory_id] for t in trajectories
    ]
    tiny = load_tokenizer(TINY)
    assert report.price == price_all(zip(trajectories, found, strict=True), tiny)
    assert report.price is not None
    exposure = report.price.exposure
    assert (exposure.n_trajectories, exposure.n_drifted_trajectories) == (3, 2)
    assert exposure.n_touched_tokens == report.n_drifted_action_tokens
    assert report.price.by_rule["keep-recorded"].n_rows == 1 + 1 + 2
    assert report.to_dict()["price"] == report.price.to_dict()


def test_steps_that_nobody_asked_for_have_no_price(write):
    report = drift_check(write(spelling()), TINY, steps=lambda index: index == 1)
    assert report.price is None
    assert report.to_dict()["price"] is None
    assert drift_check(write(clean()), TINY, limit=1).price != DriftPrice()


def test_what_was_checked_with_and_made_with_is_told(write):
    tiny = load_tokenizer(TINY)
    data = write(clean(), tokenizer_name="tiny", tokenizer_fingerprint=tiny.fingerprint)
    made = drift_check(data, TINY).provenance
    assert (made["trajkit"], made["tokenizer"]) == (__version__, "tiny")
    assert made["tokenizer_fingerprint"] == made["data_tokenizer_fingerprint"] == tiny.fingerprint
    assert made["template_sha256"] is None
    bare = drift_check(data).provenance
    assert (bare["tokenizer"], bare["tokenizers"]) == (None, None)
    assert bare["data_tokenizer"] == "tiny"


def wrong_record() -> Any:
    """Return a trajectory without drift whose first step was cut and yet ended by itself."""
    calls = [([1, 5], [SEARCH, IM_END]), ([1, 5, SEARCH, IM_END, NEWLINE, 1], [TOKYO])]
    return make_trajectory(calls, finish_reason=["length", None])


def test_a_record_that_contradicts_itself_is_no_drift_and_not_clean(write):
    report = drift_check(write(wrong_record(), clean()), TINY)
    assert (report.verdict, report.is_clean) == ("wrong record", False)
    assert [finding.kind for finding in report.findings] == [DriftKind.RECORD]
    assert (report.n_drifted_steps, report.n_drifted_trajectories) == (0, 0)
    assert report.n_drifted_action_tokens == 0
    assert report.price is not None
    assert report.price.exposure.n_drifted_trajectories == 0
    assert report.price.by_rule["drop"].n_lost_tokens == 0
    both = drift_check(write(wrong_record(), spelling()), TINY)
    assert (both.verdict, both.n_drifted_trajectories) == ("drift", 1)
    only = drift_check(write(wrong_record()), TINY, routes=[Route.IDS, Route.CHAIN])
    assert only.is_clean


def test_text_alone_is_told_its_risks_by_its_tags_and_never_called_clean(write):
    prompt = "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
    said = "<search>Tokyo</search>"
    answer = "<information>many</information><answer>many</answer>"
    first = make_step(0, action_text=said, text_delta=prompt, source_format="flat")
    second = make_step(
        1,
        action_text=answer.partition("</information>")[2],
        parent=first,
        text_keep=len(prompt + said),
        text_delta=answer.partition("</information>")[0] + "</information>",
        source_format="flat",
    )
    data = write(Trajectory(trajectory_id="t", steps=(first, second)))
    report = drift_check(data, TINY)
    assert report.verdict == "not checkable"
    assert report.risks is not None
    assert [(risk.trait, risk.subject) for risk in report.risks] == [(Trait.STRADDLES, "search-r1")]
    assert report.to_dict()["risks"][0]["trait"] == "boundary merges"
    assert drift_check(data).risks is None  # nobody gave a tokenizer to look with


def test_messages_alone_are_told_the_risks_of_the_template(write):
    trimmed = CHATML.replace("m.content", "(m.content | trim)")
    step = make_step(
        action_text="Tokyo",
        messages_json='[{"role": "user", "content": "search"}]',
        action_message_json='{"role": "assistant", "content": "Tokyo"}',
    )
    data = write(Trajectory(trajectory_id="t", steps=(step,)))
    report = drift_check(data, TINY, chat_template=ChatTemplate(source=trimmed))
    assert Trait.TRIMS in {risk.trait for risk in report.risks or ()}
    checked = drift_check(write(clean()), TINY, chat_template=ChatTemplate(source=trimmed))
    assert checked.risks is None
