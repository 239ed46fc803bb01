#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer_forms: what the tokenizers library gives for forms of tokenizer.json.

    pip install --no-deps -r scripts/requirements/tokenizers.txt
    python tests/data/make_tokenizer_forms.py [--check]

A form is a base (a whole tokenizer.json) with some members replaced. Each form runs over the 452 strings of
tests/fixtures/tokenizer/strings.jsonl. Kept for a string are 4 hex digits, the low half of a CRC-32: of its ids as
text, the decoded text and the decoded text without special tokens, with line ends between. --check compares with what is kept and writes
nothing; exit 1 tells of a difference.
"""

import argparse
import json
import zlib
from pathlib import Path

import tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FORMS = FIXTURES / "tokenizer_forms"
SIGN = "\u2581"
KEPT_CHARACTERS = 110  # of the alphabet; others become bytes


def strings():
    with open(FIXTURES / "tokenizer/strings.jsonl", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def byte_base():
    return json.loads((FIXTURES / "tokenizer/tokenizer.json").read_text(encoding="utf-8"))


def added(content, number, normalized=False):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": True}


def train_characters():
    """A vocabulary as Llama 2 has it: <unk> <s> </s>, 256 bytes, then what was learned."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SIGN)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SIGN, "merged_with_next")
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=850, special_tokens=first, limit_alphabet=KEPT_CHARACTERS, min_frequency=2,
                                  show_progress=False)
    special = [token["content"] for token in byte_base()["added_tokens"]]
    texts = [SIGN + text for text in strings() if not any(name in text for name in special)]
    tokenizer.train_from_iterator(texts, trainer)
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = [added(name, number) for number, name in enumerate(first[:3])]
    for number, name in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]):
        whole["added_tokens"].append(added(name, len(whole["model"]["vocab"]) + number, normalized=number == 1))
    whole["normalizer"], whole["pre_tokenizer"] = LLAMA_NORMALIZER, None
    whole["decoder"], whole["model"]["fuse_unk"] = LLAMA_DECODER, True
    return whole


def sequence(member, *steps):
    return {"type": "Sequence", member: list(steps)}


def byte_level(regex=True, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def before_bytes(*steps, regex=True):
    return {"base": "bytes", "pre_tokenizer": sequence("pretokenizers", *steps, byte_level(regex))}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def punctuation(behavior="Isolated"):
    return {"type": "Punctuation", "behavior": behavior}


def metaspace(scheme="always", cuts=True):
    return {"type": "Metaspace", "replacement": SIGN, "prepend_scheme": scheme, "split": cuts}


def strip(left, right):
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def normalized(*steps):
    return {"base": "bytes", "normalizer": steps[0] if len(steps) == 1 else sequence("normalizers", *steps)}


PREPEND = {"type": "Prepend", "prepend": SIGN}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP_ONE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA_NORMALIZER = sequence("normalizers", PREPEND, replace(" ", SIGN))
LLAMA_DECODER = sequence("decoders", replace(SIGN, " "), FALLBACK, FUSE, STRIP_ONE)
WORDS = r"[\p{L}\p{M}]+"
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}


def characters(**changes):
    return {"base": "characters", **changes}


def metaspaced(pre_tokenizer, decoder):
    return characters(normalizer=None, pre_tokenizer=pre_tokenizer, decoder=decoder)


GROUPS = {
    "pre_tokenizers": {
        "smollm": before_bytes(digits(True)),
        "digits_together": before_bytes(digits(False)),
        "punctuation": before_bytes(punctuation()),
        "punctuation_removed": before_bytes(punctuation("Removed")),
        "punctuation_with_previous": before_bytes(punctuation("MergedWithPrevious")),
        "punctuation_with_next": before_bytes(punctuation("MergedWithNext")),
        "falcon": {"base": "bytes",
                   "pre_tokenizer": sequence("pretokenizers", punctuation("Contiguous"), byte_level(), digits(False),
                                             split("[0-9][0-9][0-9]"))},
        "whitespace": before_bytes({"type": "Whitespace"}, regex=False),
        "whitespace_split": before_bytes({"type": "WhitespaceSplit"}, regex=False),
        "delimiter": before_bytes({"type": "CharDelimiterSplit", "delimiter": "e"}),
        "split_removed": before_bytes(split(WORDS, "Removed")),
        "split_inverted": before_bytes(split(WORDS, invert=True), regex=False),
        "split_inverted_removed": before_bytes(split(WORDS, "Removed", invert=True), regex=False),
        "split_with_previous": before_bytes(split(r"\s", "MergedWithPrevious"), regex=False),
        "split_with_next": before_bytes(split(r"\s", "MergedWithNext"), regex=False),
        "split_contiguous": before_bytes(split(r"[^\s\p{L}]", "Contiguous"), regex=False),
        "split_inverted_contiguous": before_bytes(split(r"\s", "Contiguous", invert=True), regex=False),
        "split_text": before_bytes(split("(e|", "Removed", kind="String"), split("e", kind="String")),
        "split_empty_matches": before_bytes(split(r"\p{N}*(?=[a-m])"), regex=False),
        "split_ends": before_bytes(split(r"\A\p{L}|\p{L}+\z"), regex=False),
        "prefix_space": {"base": "bytes",
                         "pre_tokenizer": sequence("pretokenizers", digits(True), byte_level(prefix=True))},
    },
    "normalizers": {
        "none": {"base": "bytes", "normalizer": None},
        "nfd": normalized({"type": "NFD"}),
        "nfkc": normalized({"type": "NFKC"}),
        "nfkd": normalized({"type": "NFKD"}),
        "lowercase": normalized({"type": "Lowercase"}),
        "strip_accents": normalized({"type": "NFD"}, {"type": "StripAccents"}, {"type": "NFC"}),
        "accents_alone": normalized({"type": "StripAccents"}),
        "replace": normalized(replace("e", "<3>"), replace("<3>", "")),
        "replace_regex": normalized(replace(r"\s+", " ", kind="Regex")),
        "prepend": normalized({"type": "Prepend", "prepend": "\u00e4 "}),
        "strip": normalized(strip(True, True)),
        "strip_left": normalized(strip(True, False)),
        "strip_right": normalized(strip(False, True)),
        "sequence": normalized(sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}), strip(False, True)),
        "some_bytes": {"base": "bytes", "drop": True},
        "some_bytes_unknown": {"base": "bytes", "drop": True, "model": {"unk_token": "!"}},
        "some_bytes_unknown_fused": {"base": "bytes", "drop": True, "model": {"unk_token": "!", "fuse_unk": True}},
        "ignore_merges": {"base": "bytes", "model": {"ignore_merges": True, "unk_token": "<|endoftext|>"}},
    },
    "characters": {
        "llama2": characters(),
        "tinyllama": characters(model={"fuse_unk": False}, post_processor=TEMPLATE),
        "llama2_new": metaspaced(metaspace("first", False), LLAMA_DECODER),
        "mistral_new": metaspaced(metaspace("always", False), sequence("decoders", replace(SIGN, " "), FALLBACK, FUSE)),
        "llama_of_transformers_5": {
            **metaspaced(metaspace("always", False), LLAMA_DECODER),
            "normalizer": sequence("normalizers", replace(" ", SIGN),
                                   replace("\\A" + SIGN, SIGN + SIGN, kind="Regex")),
        },
        "metaspace": metaspaced(metaspace(), metaspace()),
        "metaspace_never": metaspaced(metaspace("never"), metaspace("never")),
        "metaspace_old": metaspaced({"type": "Metaspace", "replacement": SIGN, "add_prefix_space": True},
                                    {"type": "Metaspace", "replacement": SIGN, "add_prefix_space": True}),
        "metaspace_stripped": {**metaspaced(metaspace("first"), sequence("decoders", FALLBACK, metaspace("first"))),
                               "normalizer": strip(True, False)},
        "gemma": characters(normalizer=replace(" ", SIGN),
                            pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"),
                            decoder=sequence("decoders", replace(SIGN, " "), FALLBACK, FUSE)),
        "ignore_merges": characters(model={"ignore_merges": True}),
        "unknown": characters(model={"byte_fallback": False, "fuse_unk": False}),
        "unknown_fused": characters(model={"byte_fallback": False, "fuse_unk": True}),
        "left_out": characters(model={"byte_fallback": False, "unk_token": None}),
        "some_bytes": characters(drop=True, model={"fuse_unk": False}),
        "some_bytes_fused": characters(drop=True),
        "strip_each": characters(decoder=sequence("decoders", replace(SIGN, " "), FALLBACK, STRIP_ONE)),
        "strip_more": characters(decoder=sequence("decoders", replace(SIGN, " "), FALLBACK, FUSE,
                                                  {"type": "Strip", "content": " ", "start": 3, "stop": 0})),
        "nfkc": characters(normalizer=sequence("normalizers", {"type": "NFKC"}, PREPEND, replace(" ", SIGN))),
    },
}


def without_some(whole):
    """Takes every eighth token for a byte away, with all that is made of it; ids close up. Returns what is gone."""
    vocab = whole["model"]["vocab"]
    signs = [t for t in vocab if len(t) == 1] if "<0x00>" not in vocab else [f"<0x{b:02X}>" for b in range(256)]
    gone = {t for number, t in enumerate(sorted(signs)) if number % 8 == 2} - {"!"}
    merges = []
    for left, right in whole["model"]["merges"]:
        if left in gone or right in gone:
            gone.add(left + right)
        else:
            merges.append([left, right])
    kept = {(left + right) for left, right in merges}
    gone -= kept
    whole["model"]["merges"] = [m for m in merges if m[0] not in gone and m[1] not in gone and m[0] + m[1] not in gone]
    # The library numbers the added tokens from the number of the others on.
    names = [t for t in vocab if t not in gone]
    whole["model"]["vocab"] = {t: number for number, t in enumerate(names)}
    next_id = len(names)
    for token in whole["added_tokens"]:
        if token["content"] in whole["model"]["vocab"]:
            token["id"] = whole["model"]["vocab"][token["content"]]
        else:
            token["id"], next_id = next_id, next_id + 1
    return sorted(gone & set(vocab))


def whole_of(form, bases):
    whole = json.loads(json.dumps(bases[form["base"]]))
    if form.pop("drop", False):
        form["gone"] = without_some(whole)
    whole["model"].update(form.get("model", {}))
    for member in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        if member in form:
            whole[member] = form[member]
    return whole


def results(whole):
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    out = []
    for text in strings():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        parts = [" ".join(map(str, ids)), tokenizer.decode(ids, skip_special_tokens=False),
                 tokenizer.decode(ids, skip_special_tokens=True)]
        out.append(f"{zlib.crc32(chr(10).join(parts).encode()) & 0xFFFF:04x}")
    return "".join(out)


def dense(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    base_file = FORMS / "characters_base.json"
    if not base_file.exists():
        base_file.write_text(dense(train_characters()) + "\n", encoding="utf-8")
    bases = {"bytes": byte_base(), "characters": json.loads(base_file.read_text(encoding="utf-8"))}
    differences = 0
    for group, forms in GROUPS.items():
        lines = []
        for name, form in forms.items():
            crc = results(whole_of(form, bases))
            lines.append(f'"{name}":{{"form":{dense(form)},"crc":"{crc}"}}')
        text = (f'{{"library":"tokenizers {tokenizers.__version__}","forms":{{\n' + ",\n".join(lines) + "\n}}\n")
        file = FORMS / f"{group}.json"
        if not check:
            file.write_text(text, encoding="utf-8")
        elif json.loads(file.read_text(encoding="utf-8"))["forms"] != json.loads(text)["forms"]:
            differences += 1
            print(f"{file}: differs from what tokenizers {tokenizers.__version__} gives")
    if check and differences == 0:
        print(f"{sum(map(len, GROUPS.values()))} forms: the same")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
