"""What a tokenizer and a template will do: each planted behaviour is named, none is invented."""

from __future__ import annotations

import json
from functools import cache

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.builders import make_step
from tests.tokenizer_builders import ROOT, TINY, metaspace, save
from trajkit.drift.profile import Fact, Grade, Profile, Trait, markups_of, profile, text_risks
from trajkit.drift.profile.traits import TRAITS, count
from trajkit.errors import InputError, RefusedError
from trajkit.markup import MARKUPS
from trajkit.records import Trajectory
from trajkit.template import ChatTemplate
from trajkit.tokenizer import Tokenizer, load_tokenizer

REAL = ROOT / ".cache" / "tokenizers"
CHATML = ("search-r1", "hermes", "chatml")

BENIGN = (
    "{% if tools %}{{ '<|im_start|>tools\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments if c.function.arguments is string "
    "else c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTENT, STOP = "{{ m.content or '' }}", "{{ '<|im_end|>\n' }}{% endfor %}"
THINK = "{% if m.reasoning_content %}"
PROMPT = "{{ '<|im_start|>assistant\n' }}"
TEXT_ARGUMENTS = "c.function.arguments if c.function.arguments is string else "
POLICY = "m.role == 'assistant'"


def swap(old: str, new: str) -> str:
    """Return the benign template with one thing planted in it."""
    assert BENIGN.count(old) == 1
    return BENIGN.replace(old, new)


PLANTED = {
    Trait.THINKING_DROPPED: swap(THINK, "{% if m.reasoning_content and loop.last %}"),
    Trait.THINKING_IGNORED: swap(THINK, "{% if false %}"),
    Trait.EMPTY_THINKING: swap(
        CONTENT,
        f"{{% if {POLICY} and not m.reasoning_content and loop.last %}}"
        "{{ '<think>\n\n</think>\n\n' }}{% endif %}" + CONTENT,
    ),
    Trait.TRIMS: swap(
        CONTENT,
        f"{{% if {POLICY} %}}{{{{ (m.content or '') | trim }}}}{{% else %}}"
        "{{ m.content }}{% endif %}",
    ),
    Trait.TEXT_DROPPED: swap(
        CONTENT, f"{{% if not ({POLICY}) or loop.last %}}{CONTENT}{{% endif %}}"
    ),
    Trait.CONTEXT_CHANGED: swap(
        CONTENT,
        "{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}" + CONTENT + "{% endif %}",
    ),
    Trait.CALLS_DROPPED: swap("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
    Trait.STOP_SWAPPED: swap(
        STOP,
        f"{{{{ '<|endoftext|>' if {POLICY} and loop.last else '<|im_end|>' }}}}{{{{ '\n' }}}}"
        "{% endfor %}",
    ),
    Trait.NO_STOP: swap(STOP, "{{ '\n' }}{% endfor %}"),
    Trait.WRITES_AHEAD: swap(
        CONTENT, f"{{% if {POLICY} %}}{{{{ '[final]' }}}}{{% endif %}}" + CONTENT
    ),
    Trait.DEFAULT_SYSTEM: (
        "{% if messages[0].role != 'system' %}"
        "{{ '<|im_start|>system\nYou are a friend.<|im_end|>\n' }}{% endif %}" + BENIGN
    ),
    Trait.CLOCK: "{{ strftime_now('%d %b %Y') + '\n' }}" + BENIGN,
    Trait.PROMPT_NOT_KEPT: swap(PROMPT, "{{ '<|im_start|>assistant\n<think>\n' }}"),
    Trait.HISTORY_CHANGED: swap(
        CONTENT,
        "{{ '(' ~ messages | length ~ ')' if loop.first and messages | length > 1 }}" + CONTENT,
    ),
    Trait.ESCAPED_ARGUMENTS: swap(
        "c.function.arguments if c.function.arguments is string else ", ""
    ),
    Trait.REWRITTEN_ARGUMENTS: swap(
        "else c.function.arguments | tojson", "else c.function.arguments | string"
    ),
    Trait.ARGUMENTS_REFUSED: swap(
        "c.function.arguments if c.function.arguments is string else c.function.arguments | tojson",
        "'{\"city\": \"' + c.function.arguments['city'] + '\"}'",
    ),
    Trait.NULL_CONTENT: swap(CONTENT, "{{ m.content }}"),
    Trait.REFUSES: (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{% endfor %}" + BENIGN
    ),
}
"""A trait, and the benign template with it planted."""


@pytest.fixture(scope="module")
def tiny():
    return load_tokenizer(TINY)


def shown(found: Profile, grade: Grade = Grade.RISK) -> set[Trait]:
    """Return the traits of a template that were found."""
    return {fact.trait for fact in found.template_facts if fact.n and fact.grade is grade}


@cache
def of_template(source: str) -> Profile:
    return profile(load_tokenizer(TINY), ChatTemplate(source=source), ())


def fact(found: Profile, trait: Trait, subject: str | None = None) -> Fact:
    it = found.fact(trait, subject)
    assert it is not None, f"{trait.value} was not looked for"
    return it


# ---- templates


def test_a_benign_template_gets_a_clean_bill():
    found = of_template(BENIGN)
    assert shown(found) == set()
    assert fact(found, Trait.REFUSES).n == 0
    assert fact(found, Trait.NOT_PREFIX).n_probed > 10
    assert shown(found, Grade.NOTE) == {
        *(Trait.STOP, Trait.AFTER_TURN, Trait.CLOSES_CUT, Trait.REPRINTED_ARGUMENTS)
    }
    assert fact(found, Trait.STOP).examples == ({"text": "<|im_end|>"},)
    assert fact(found, Trait.AFTER_TURN).examples == ({"text": "\n"},)


@pytest.mark.parametrize("trait", PLANTED, ids=lambda trait: trait.name.lower())
def test_what_is_planted_is_named(trait):
    found = fact(of_template(PLANTED[trait]), trait)
    assert 0 < found.n <= found.n_probed
    assert found.examples


@pytest.mark.parametrize("trait", PLANTED, ids=lambda trait: trait.name.lower())
def test_where_texts_part_the_reason_is_told(trait):
    for parting in (Trait.NOT_PREFIX, Trait.NOT_VERBATIM):
        for example in fact(of_template(PLANTED[trait]), parting).examples:
            assert example["causes"], f"{trait.value}: {example}"


BREAKS = {
    Trait.THINKING_DROPPED: {Trait.NOT_PREFIX},
    Trait.THINKING_IGNORED: set(),
    Trait.EMPTY_THINKING: {Trait.NOT_VERBATIM},
    Trait.TRIMS: {Trait.NOT_VERBATIM, Trait.NOT_PREFIX},
    Trait.CLOCK: set(),
    Trait.DEFAULT_SYSTEM: set(),
    Trait.STOP_SWAPPED: {Trait.NOT_PREFIX},
    Trait.ESCAPED_ARGUMENTS: set(),
    Trait.NULL_CONTENT: set(),
}


@pytest.mark.parametrize("trait", BREAKS, ids=lambda trait: trait.name.lower())
def test_a_planted_risk_is_no_other_risk(trait):
    itself = {trait} if TRAITS[trait][0] is Grade.RISK else set()
    assert shown(of_template(PLANTED[trait])) - {Trait.REPRINTED_ARGUMENTS} == (
        itself | BREAKS[trait]
    )


def test_reasoning_that_is_dropped_breaks_the_next_prompt_where_it_stood():
    found = fact(of_template(PLANTED[Trait.THINKING_DROPPED]), Trait.NOT_PREFIX)
    first = found.examples[0]
    assert (first["probe"], first["message"]) == ("reasoning", 1)
    assert first["expected"].startswith("<think>\nweigh this")
    assert first["found"].startswith("beta one.<|im_end|>\n<|im_start|>user\ngamma?")
    assert Trait.THINKING_DROPPED.value in first["causes"]


def test_a_template_that_leaves_its_sandbox_is_refused():
    with pytest.raises(RefusedError, match="R105"):
        of_template("{{ ''.__class__.__mro__ }}")


def test_a_begin_token_that_both_write_is_told(tmp_path, tiny):
    framed = framed_tiny()
    tokenizer = load_tokenizer(save(framed, tmp_path))
    twice = profile(tokenizer, ChatTemplate(source="<|endoftext|>" + BENIGN), ())
    assert fact(twice, Trait.DOUBLED_BOS).n == 1
    assert fact(profile(tokenizer, ChatTemplate(source=BENIGN), ()), Trait.DOUBLED_BOS).n == 0
    added = fact(twice, Trait.FRAMES)
    assert [(e["side"], e["text"]) for e in added.examples] == [
        *(("before", "<|endoftext|>"), ("behind", "<|im_end|>"))
    ]


def framed_tiny() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>",
        special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)],
    )
    return backend


# ---- tokenizers


def test_the_tiny_tokenizer_is_told_in_numbers(tiny):
    found = profile(tiny)
    ids = fact(found, Trait.UNREACHABLE)
    broken = fact(found, Trait.NOT_UTF8)
    assert ids.n_probed + broken.n == tiny.n_vocab == broken.n_probed == 512
    assert ids.n == sum(
        next(tiny.encode_batch([tiny.text(tiny.ids[i : i + 1])])).tolist() != [i]
        for i in range(512)
        if "�" not in tiny.text(tiny.ids[i : i + 1])
    )
    assert fact(found, Trait.FORGED_SPECIAL).n == len(tiny.special_ids) == 3
    assert found.fact(Trait.UNREACHABLE_INSIDE) is None
    assert found.template is None
    assert found.template_facts == ()


def test_an_id_that_no_merge_leads_to_is_unreachable(tmp_path):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "abc", "zz"]
    merges = [("a", "b"), ("ab", "c")]
    backend = byte_level({token: i for i, token in enumerate(tokens)}, merges)
    found = fact(profile(load_tokenizer(save(backend, tmp_path))), Trait.UNREACHABLE)
    assert found.n == 1
    (example,) = found.examples
    assert (example["id"], example["text"]) == (258, "zz")
    assert example["ids"] == [tokens.index("z")] * 2


def byte_level(vocab, merges) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


@pytest.mark.parametrize(
    ("normalizer", "trait", "probe"),
    [
        (normalizers.NFC(), Trait.COMPOSED, "NFD"),
        (normalizers.NFKC(), Trait.COMPOSED, "fullwidth"),
        (normalizers.Lowercase(), Trait.LOWERED, "upper case"),
        (normalizers.Strip(), Trait.SPACED, "trailing spaces"),
        (normalizers.Replace("\r\n", "\n"), Trait.SPACED, "CRLF"),
        (normalizers.Prepend(" "), Trait.PREFIXED, "words"),
        (normalizers.Replace("a", "b"), Trait.CHANGED, "leading space"),
    ],
)
def test_what_a_normaliser_does_is_named(tmp_path, normalizer, trait, probe):
    backend = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    backend.normalizer = normalizer
    found = profile(load_tokenizer(save(backend, tmp_path)), markups=())
    assert probe in {example["probe"] for example in fact(found, trait).examples}
    losses = (Trait.COMPOSED, Trait.LOWERED, Trait.SPACED, Trait.PREFIXED, Trait.CHANGED)
    assert {one for one in losses if fact(found, one).n} == {trait}


def test_a_tokenizer_that_changes_nothing_is_told_to_change_nothing(tiny):
    found = profile(tiny, markups=())
    assert {one.trait for one in found.risks} <= {
        *(Trait.UNREACHABLE, Trait.SAME_BYTES, Trait.FORGED_SPECIAL, Trait.FORGED_PLAIN)
    }


def test_a_space_put_in_front_is_told_on_both_sides(tmp_path):
    found = profile(load_tokenizer(save(metaspace(prefix=True), tmp_path)))
    assert fact(found, Trait.PREFIXED).n > 15
    assert fact(found, Trait.DECODE_STRIPS).n > 15
    alone, inside = (fact(found, t) for t in (Trait.UNREACHABLE, Trait.UNREACHABLE_INSIDE))
    assert inside.n < alone.n
    assert fact(found, Trait.SAME_BYTES).n > 0
    assert fact(found, Trait.FORGED_PLAIN).examples == ({"id": 270, "text": "<b>"},)


def test_loaders_that_clean_up_or_add_tokens_are_told_by_the_configuration(tmp_path, tiny):
    folder = save(tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json")), tmp_path)
    config = {"clean_up_tokenization_spaces": True, "add_bos_token": True, "add_eos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = profile(load_tokenizer(folder), markups=())
    (cleaned,) = fact(found, Trait.CLEANS_UP).examples
    assert cleaned["becomes"] == "He said ). y? and it's, well!"
    (frame,) = fact(found, Trait.UNSETTLED_FRAME).examples
    assert frame == {"add_bos_token": True, "side": "before", "ids": [], "text": ""}
    assert fact(profile(tiny, markups=()), Trait.CLEANS_UP).n == 0


@pytest.mark.parametrize(("text", "code"), [("{", "I102"), ("[]", "I201")])
def test_a_damaged_configuration_is_an_error(tmp_path, text, code):
    folder = save(tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json")), tmp_path)
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(InputError, match=code):
        profile(load_tokenizer(folder))


# ---- joins


def test_a_token_that_straddles_the_end_of_an_action_is_shown(tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*letters, ">Ċ"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[(">", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    found = profile(load_tokenizer(save(backend, tmp_path)))
    r1 = fact(found, Trait.STRADDLES, "search-r1")
    assert 0 < r1.n < r1.n_probed
    assert r1.examples[0] == {
        "action_end": "f France</think>",
        "observation_start": "\n\n<information>Doc 1: Pa",
        "id": 256,
        "text": ">\n",
        "n_action_bytes": 1,
    }
    assert fact(found, Trait.STRADDLES, "react").n == 0


def test_every_tag_profile_is_looked_at(tiny):
    found = profile(tiny)
    asked = [one.subject for one in found.facts if one.trait is Trait.STRADDLES]
    assert asked == [markup.name for markup in MARKUPS]
    assert all(one.n_probed for one in found.facts if one.trait is Trait.STRADDLES)
    assert fact(found, Trait.STRADDLES, "chatml").n == 0  # its end of turn is a control token here


# ---- the table and the report


def test_every_trait_has_its_grade_and_its_sentence():
    assert set(TRAITS) == set(Trait)
    assert all(sentence and not sentence.endswith(".") for _, sentence in TRAITS.values())


@given(st.lists(st.tuples(st.sampled_from(Trait), st.none() | st.just({"text": "x"}))))
def test_facts_count_what_was_looked_for_and_what_was_found(probes):
    facts = list(count(probes))
    assert sum(one.n_probed for one in facts) == len(probes)
    assert sum(one.n for one in facts) == sum(example is not None for _, example in probes)
    assert [one.trait for one in facts] == [t for t in TRAITS if t in {p[0] for p in probes}]


def test_a_profile_is_plain_json_and_the_same_each_time(tiny):
    template = ChatTemplate(source=PLANTED[Trait.CLOCK])
    first, second = (profile(tiny, template).to_dict() for _ in range(2))
    assert json.loads(json.dumps(first)) == first == second
    assert first["schema"] == "trajkit.drift-profile/1"
    assert first["n_vocab"] == 512
    assert first["template_sha256"] == template.sha256
    assert {"trait", "grade", "n", "n_probed", "consequence", "examples"} <= set(
        first["template_facts"][0]
    )


# ---- real tokenizers


@cache
def real(name: str) -> Tokenizer:
    return load_tokenizer(REAL / name)


UNREACHABLE = [
    *(("qwen3", 1909, 1448), ("llama3_1", 0, 1352), ("deepseek_v3", 0, 1470)),
    *(("gptoss", 12, 1562), ("gemma3", 114, 128)),
]


@pytest.mark.parametrize(("name", "n", "n_broken"), UNREACHABLE)
def test_real_vocabularies_hold_so_many_ids_that_text_never_gives(name, n, n_broken):
    found = profile(real(name), markups=())
    assert fact(found, Trait.UNREACHABLE).n == n
    assert fact(found, Trait.NOT_UTF8).n == n_broken


def flat(text: str, answer: str) -> Trajectory:
    """Return a trajectory of flat text whose one action is `answer`."""
    step = make_step(text_delta=text, action_text=answer, source_format="flat")
    return Trajectory(trajectory_id="t", steps=(step,))


def test_the_tags_of_flat_text_are_known_by_what_stands_behind_the_prompt():
    chatml = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    searched = flat(chatml, "<search>x</search>")
    example = flat(chatml.replace("q", "write <search>x</search>"), "Paris")
    assert [m.name for m in markups_of([searched, searched])] == ["search-r1"]
    assert markups_of([example]) == []
    assert markups_of([Trajectory(trajectory_id="t", steps=(make_step(),))]) == []


def test_the_risks_of_text_are_those_of_its_joins_and_its_template():
    tiny = load_tokenizer(TINY)
    (search,) = (markup for markup in MARKUPS if markup.name == "search-r1")
    whole = profile(tiny, ChatTemplate(source=PLANTED[Trait.TRIMS]), [search])
    found = text_risks(tiny, ChatTemplate(source=PLANTED[Trait.TRIMS]), [search])
    asked = {Trait.STRADDLES} | {fact.trait for fact in whole.template_facts}
    assert found == tuple(risk for risk in whole.risks if risk.trait in asked)
    assert {Trait.STRADDLES, Trait.TRIMS} <= {risk.trait for risk in found}
    assert text_risks(tiny, None, []) == ()
