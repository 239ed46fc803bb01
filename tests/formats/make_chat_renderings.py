#!/usr/bin/env python3
"""Writes what transformers renders of the chat templates in the wheels trl and axolotl, for 40 conversations:

    pip install --no-deps -r scripts/requirements/chat_templates.txt -r scripts/requirements/chat_reference.txt
    tests/formats/make_chat_renderings.py [--check]

chat_conversations.json of tests/fixtures/formats holds the conversations and, as "variables", what the library gives to
a template; chat_renderings.json has digests of the texts. The test ChatTemplates of test_formats compares with them.

chat_tokenizer.json is a small byte-level BPE tokenizer with the special tokens of the templates, whose post-processor
puts BOS in front of a text, as that of Llama 3 does. chat_ids.json has digests of apply_chat_template's ids, and
chat_masks.json of return_assistant_tokens_mask: with the tokenizer's offsets as they are ("whole") and without white
space ("trimmed", trim_offsets). The test ChatIds of test_data compares with them.

--check compares all with what the library gives now, and writes nothing.
"""
import datetime
import json
import pathlib
import re
import sys
import tempfile

import tokenizers
import transformers
import transformers.utils.chat_template_utils as library

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures/formats"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
FOLDERS = ("trl/chat_templates", "axolotl/utils/chat_templates/templates")
REFUSED = "--------"
MOST_BYTES = 50_000  # of a file
# What stands in a template for a special token; Qwen's are no special ones, but added all the same.
SPECIAL_FORMS = (r"<\|[^|<>\s]+\|>|<\|[a-z_]+>|<[a-z_]+\|>|<\uff5c[^\uff5c]*\uff5c>|\[/?[A-Z_]{3,}\]"
                 r"|</?(?:think|tool_call|tool_response|start_of_turn|end_of_turn)>")
NO_SPECIAL = r"</?(?:think|tool_call|tool_response)>"
MERGED = 300  # tokens of two bytes and more
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")  # Llama 3
TODAY = datetime.datetime(2026, 11, 25)


class FixedDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return TODAY


def fnv(data):
    """The low 32 bits of FNV-1a of 64 bits, in hex."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value & 0xFFFFFFFF:08x}"


def is_marked(template):
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def rendering(template, conversation):
    """The digest of a text and its {% generation %} spans in bytes, or REFUSED."""
    marked = is_marked(template)
    try:
        texts, spans = library.render_jinja_template(
            conversations=[library._normalize_chat_messages(conversation["messages"])], tools=conversation["tools"],
            chat_template=template, return_assistant_tokens_mask=marked,
            add_generation_prompt=conversation["add_generation_prompt"], **SPECIAL, **conversation["settings"])
    except Exception:  # the template's own refusals and errors of Python alike
        return REFUSED
    text = texts[0]
    places = [(len(text[:begin].encode()), len(text[:end].encode())) for begin, end in spans[0]] if marked else []
    return fnv(text.encode() + b"\0" + ",".join(f"{begin}-{end}" for begin, end in places).encode())


def variables(conversation):
    """What the library gives to a template."""
    messages = library._normalize_chat_messages(conversation["messages"])
    messages = library._alias_reasoning_fields(library._plain_template_data(messages))
    return {"messages": messages, "tools": conversation["tools"], "documents": None,
            "add_generation_prompt": conversation["add_generation_prompt"], **SPECIAL, **conversation["settings"]}


def make_tokenizer(templates, conversations):
    """The text of a tokenizer.json."""
    special = set(SPECIAL.values())
    for template in templates.values():
        special.update(re.findall(SPECIAL_FORMS, template))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=256 + MERGED, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    texts = sorted(templates.values()) + [json.dumps(one, ensure_ascii=False) for one in conversations]
    tokenizer.train_from_iterator(texts, trainer)
    ordered = list(SPECIAL.values()) + sorted(special - set(SPECIAL.values()))
    tokenizer.add_tokens([tokenizers.AddedToken(name, normalized=False, special=not re.fullmatch(NO_SPECIAL, name))
                          for name in ordered])
    bos = SPECIAL["bos_token"]
    tokenizer.post_processor = tokenizers.processors.Sequence([
        tokenizers.processors.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True),
        tokenizers.processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                 special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n"


def open_tokenizer(text, trim_offsets):
    whole = json.loads(text)
    whole["post_processor"]["processors"][0]["trim_offsets"] = trim_offsets
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **SPECIAL}
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.is_fast and tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    return tokenizer


def apply(tokenizer, template, conversation, masks):
    """Ids, or the mask of what the assistant says, as text; None where the template refuses."""
    try:
        out = tokenizer.apply_chat_template(
            conversation["messages"], tools=conversation["tools"], chat_template=template, tokenize=True,
            return_dict=True, return_assistant_tokens_mask=masks,
            add_generation_prompt=conversation["add_generation_prompt"], **conversation["settings"])
    except Exception:  # as in rendering()
        return None
    return out["assistant_masks"] if masks else out["input_ids"]


def digests(tokenizer, template, conversations, masks):
    lists = [apply(tokenizer, template, one, masks) for one in conversations]
    return "".join(REFUSED if one is None else fnv(" ".join(map(str, one)).encode()) for one in lists)


def rows_of(entries):
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items()) + "\n}\n"


def main():
    library.datetime = FixedDay
    check = "--check" in sys.argv
    packages = pathlib.Path(transformers_folder()).parent
    conversations = json.loads((FIXTURES / "chat_conversations.json").read_text(encoding="utf-8"))
    for one in conversations:
        one["variables"] = variables(one)
    templates = {}
    for folder in FOLDERS:
        for file in sorted((packages / folder).glob("*.jinja")):
            with open(file, encoding="utf-8", newline="") as stream:
                templates[f"{folder}/{file.name}"] = stream.read()
    tokenizer_file = FIXTURES / "chat_tokenizer.json"
    if not tokenizer_file.exists() and not check:
        tokenizer_file.write_text(make_tokenizer(templates, conversations), encoding="utf-8")
    tokenizer_text = tokenizer_file.read_text(encoding="utf-8")
    trimmed, whole = (open_tokenizer(tokenizer_text, trims) for trims in (True, False))
    marked = {name: text for name, text in templates.items() if is_marked(text)}
    texts = {
        "chat_conversations.json":
            "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in conversations) + "\n]\n",
        "chat_renderings.json":
            rows_of({name: "".join(rendering(text, one) for one in conversations) for name, text in templates.items()}),
        "chat_ids.json":
            rows_of({name: digests(trimmed, text, conversations, False) for name, text in templates.items()}),
        "chat_masks.json":
            rows_of({name: {"whole": digests(whole, text, conversations, True),
                            "trimmed": digests(trimmed, text, conversations, True)} for name, text in marked.items()}),
    }
    for name, text in texts.items():
        assert len(text.encode()) <= MOST_BYTES, name
        if not check:
            (FIXTURES / name).write_text(text, encoding="utf-8")
        elif (FIXTURES / name).read_text(encoding="utf-8") != text:
            sys.exit(f"{name} is not what the library gives")
    print(f"{len(templates)} templates, {len(marked)} with marks, x {len(conversations)} conversations")


def transformers_folder():
    return pathlib.Path(library.__file__).parents[1]


if __name__ == "__main__":
    main()
