"""What `trajkit explain` says: why a code or a finding matters, and what to do about it.

The title of an error stands in `ERROR_CODES`; a finding's is here. The pages of drift causes stand
in their own table, `trajkit.drift.causes`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """One page: why it hurts, and how to mend it."""

    why: str
    fix: str


FINDINGS: dict[str, str] = {
    "ids-only": "the same bytes, spelt with other ids",
    "text": "other bytes come back",
    "structure": "a control token appears or disappears",
    "prefix": "the next prompt does not start with this prompt + action",
    "record": "the record contradicts itself",
    "UNEXPLAINED": "no cause has evidence",
}

PAGES: dict[str, Page] = {
    "ids-only": Page(
        "At temperature 1 a policy samples spellings its tokenizer would never choose. A trainer "
        "that encodes the text again computes the log-prob of ids that were never sampled, and the "
        "importance ratio of the real ones is lost.",
        "Hand the sampled ids to the trainer; never decode and encode between the two.",
    ),
    "text": Page(
        "Decoding lost bytes: an action cut inside a character, a normaliser, a cleaned-up space. "
        "What is trained on is not what was sampled, even as text.",
        "Keep the ids. If text must be stored, store the bytes and cut actions at characters.",
    ),
    "structure": Page(
        "Text that spells a control token became one, or a sampled one was dropped. Turns "
        "begin or end where nobody ended them, and the mask moves with them.",
        "Encode content literally, keep the end-of-turn id in the action, and never skip special "
        "tokens when decoding.",
    ),
    "prefix": Page(
        "The context of the next step is not the one the policy acted in: history was rendered "
        "again, cut to a window, summarised, or lost an id. Log-probs of everything behind it "
        "change, and the trajectory cannot be trained as one sequence.",
        "Build each prompt from the ids of the last one. If a window or summary is meant, train "
        "the steps as sequences of their own.",
    ),
    "record": Page(
        "The ids spell other text than was logged, end otherwise than finish_reason says, or have "
        "another number of log-probs. One of the two is wrong, and whatever is measured on them is "
        "about another sample.",
        "Log ids, text and log-probs of one sampler output, before anything cuts, strips or merges "
        "them; keep the stop id with the action.",
    ),
    "UNEXPLAINED": Page(
        "Something changed the ids that none of the known causes accounts for; a wrong name would "
        "send you to the wrong setting.",
        "Look at both sides of the finding (--format json holds all of it), and compare what "
        "rollout and trainer do with the text in between.",
    ),
    "I101": Page(
        "Bytes that are no UTF-8 would become other text, and other ids, in silence.",
        "Convert the file (iconv -t UTF-8), or find the writer that cut a character in two.",
    ),
    "I102": Page(
        "A record that does not parse cannot be read in part without guessing.",
        "Mend the line, or use --on-error quarantine to set its bytes aside.",
    ),
    "I103": Page(
        "The writer was killed, or the file is still being written: the last record is not whole.",
        "Wait for the writer, cut the last line, or use --on-error quarantine.",
    ),
    "I104": Page(
        "Most readers keep the last of two equal keys and drop the other in silence.",
        "Find the writer that wrote the key twice and decide which value is meant.",
    ),
    "I105": Page(
        "NaN and infinity are no JSON, and one of them in a reward or log-prob spoils every mean.",
        "Write null for a value that is missing.",
    ),
    "I106": Page(
        "Half a surrogate pair is no character; no UTF-8 file can hold it.",
        "Mend the writer that cuts strings by UTF-16 units.",
    ),
    "I107": Page(
        "Nesting this deep is an attack or a bug, and would exhaust the parser's stack.",
        "Flatten the record, or use --on-error quarantine.",
    ),
    "I108": Page(
        "A cut or damaged archive can look like a shorter log; what is missing would be lost.",
        "Fetch the file again, and test it with gzip -t or zstd -t.",
    ),
    "I109": Page(
        "An empty input is more often a wrong path than an empty log.",
        "Check the path and the writer.",
    ),
    "I110": Page(
        "No id, count or time has thousands of digits.",
        "Find the field and write the number it stands for.",
    ),
    "I201": Page(
        'A value of another type would have to be guessed into shape: 5.0 into 5, "1" into 1.',
        "Write the type that the message asks for at the path it names.",
    ),
    "I202": Page(
        "Without this key the record does not say what is asked of it.",
        "Log the key, or leave out the ids that need it.",
    ),
    "I203": Page(
        "Who wrote a message decides whether it is trained; a role nobody knows decides nothing.",
        "Use system, developer, user, assistant, tool or function.",
    ),
    "I301": Page(
        "A float or a string that becomes an id in silence trains on another token.",
        "Log ids as integers.",
    ),
    "I302": Page(
        "No token has a negative id; -100 marks labels that are not trained.",
        "Log the ids themselves, and a mask beside them.",
    ),
    "I303": Page(
        "An id over 32 bits is a counter or a hash, not a token.",
        "Check which column was written as ids.",
    ),
    "I304": Page(
        "Decoding drops an unknown id in silence, and a model has no row for it.",
        "Give the tokenizer or checkpoint of the model that sampled the data.",
    ),
    "I305": Page(
        "Log-probs that do not stand beside their ids are off by at least one.",
        "Log one value an id; null where one is not known.",
    ),
    "I306": Page(
        "A log-prob above 0 is a probability above 1: another unit, or another quantity.",
        "Log natural logs; null where one is missing.",
    ),
    "I401": Page(
        "Two records with one id would be merged into a trajectory nobody sampled.",
        "Make ids unique, for instance with the sample number.",
    ),
    "I402": Page(
        "A format that is guessed wrongly maps fields wrongly.",
        "Name one with --from, or write the record in a shape that the hint lists.",
    ),
    "I404": Page(
        "Where the prompt ends decides which tags are examples and which are actions.",
        "Give prompt and response as two fields.",
    ),
    "I405": Page(
        "Text whose writer is unknown can be neither trained nor masked.",
        "Choose the markup that fits (--markup), or log the ids.",
    ),
    "I406": Page(
        "A mask that fits its ids in two ways trains other tokens in each of them.",
        "Say which with --align (ingest and mask-check have it), or write one value for each id.",
    ),
    "I407": Page(
        "A mask or label that does not belong to its ids trains tokens that nobody chose.",
        "Write one value for each id, or for each of the response; trajkit mask-check shows where.",
    ),
    "S101": Page(
        "Only files that ingest wrote carry the metadata that numbers are checked against; other "
        "tools drop it when they write a table again.",
        "Run trajkit ingest on the logs; filter with --trajectory and --limit.",
    ),
    "S102": Page(
        "A newer schema may give columns another meaning.",
        "Upgrade trajkit.",
    ),
    "S103": Page(
        "The content is not what was written: a flipped bit, a cut file, a hand edit.",
        "Run trajkit ingest again from the logs.",
    ),
    "S104": Page(
        "A folder without its manifest was never finished, or lost a part.",
        "Run trajkit ingest again with the same -o.",
    ),
    "T101": Page(
        "Without the tokenizer file ids have no text.",
        "Give the folder that holds tokenizer.json, or the file itself.",
    ),
    "T102": Page(
        "Every number after a wrong tokenizer is about another model.",
        "Give the tokenizer that the data were ingested with, or ingest again.",
    ),
    "T103": Page(
        "Where an id's bytes are not known, no position in bytes can be right.",
        "Use the byte-level or metaspace tokenizer.json of the model.",
    ),
    "T104": Page(
        "Messages become tokens by a template; without one there are none.",
        "Name a .jinja file or a folder that holds one.",
    ),
    "T105": Page(
        "The template is no Jinja that the model's own loader would take.",
        "Take the template from the model's repository.",
    ),
    "T106": Page(
        "The template raises an error for this order of roles or this content.",
        "Use the template the data were sampled with.",
    ),
    "T107": Page(
        "Control text inside a message might become a control token and forge a turn.",
        "Remove it from the message, or log the ids.",
    ),
    "U101": Page("Overwriting in silence loses data.", "Name another output, or add --force."),
    "U102": Page("The input would be gone before it is read.", "Name another output."),
    "U103": Page("The option asks for something there is not.", "See the command's --help."),
    "U104": Page("Nothing matches the path or pattern.", "Check it; quote globs."),
    "U105": Page(
        "What few need is installed by choice: score needs torch and transformers, the pictures of "
        "mask-view need resvg and a font.",
        "pip install 'trajkit[score]' or 'trajkit[png]'; apt-get install fonts-dejavu-core.",
    ),
    "U106": Page(
        "The device is not there, or its memory is full.",
        "--device cpu, a smaller selection, or a torch build for the GPU.",
    ),
    "U107": Page(
        "A typo in an id must not look like a clean result.",
        "trajkit info DATA lists trajectories and steps.",
    ),
    "F101": Page("The file is missing, or may not be read.", "Check path and permissions."),
    "F102": Page(
        "The output's folder is missing or read-only, or another process writes the same file.",
        "Make the folder, or name another output.",
    ),
    "F103": Page(
        "The output does not fit; what was there before is untouched.",
        "Free some room, or write to another disk.",
    ),
    "F104": Page(
        "The first process of a run puts together what all have written, and one of them failed or "
        "fell silent.",
        "Read that process's own error, then start the run again: finished windows are kept beside "
        "the output.",
    ),
    "R101": Page(
        "One record over the limit would take many times its size in memory.",
        "Check that the file holds one record a line.",
    ),
    "R102": Page(
        "A small archive that unpacks to gigabytes is a bomb until shown otherwise.",
        "Unpack it by hand if you trust it.",
    ),
    "R103": Page("Writing through a link may replace a file elsewhere.", "Name the file itself."),
    "R104": Page(
        "Pickles and auto_map run code of whoever wrote the checkpoint.",
        "Convert the weights to safetensors and remove auto_map.",
    ),
    "R105": Page(
        "A template is a program of strangers: it may not reach out or run for ever.",
        "Use the template from the model's repository.",
    ),
    "R106": Page(
        "A link that leads out of the folder shows files nobody named.",
        "Put the file itself into the folder.",
    ),
    "N102": Page(
        "Weights that are missing are made up at random by most loaders, in silence.",
        "Fetch the checkpoint again; all shards must be there.",
    ),
    "N103": Page(
        "Beyond its positions a model answers, and the answer means nothing.",
        "Score with the checkpoint's long-context configuration, or leave the trajectory out.",
    ),
    "N104": Page(
        "If two ways to compute a number disagree, neither can be trusted.",
        "Try --dtype fp32; report the checkpoint if it persists.",
    ),
    "N105": Page(
        "No step holds both prompt and action ids.",
        "Log ids at the sampler; text alone cannot be scored.",
    ),
}
