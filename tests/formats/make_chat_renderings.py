#!/usr/bin/env python3
"""Writes what transformers renders of the chat templates in the wheels trl and axolotl, for 40 conversations:

    pip install --no-deps -r scripts/requirements/chat_templates.txt -r scripts/requirements/chat_reference.txt
    tests/formats/make_chat_renderings.py [--check]

chat_conversations.json of tests/fixtures/formats holds the conversations and, as "variables", what the library gives to
a template; chat_renderings.json has digests of the texts. The test ChatTemplates of test_formats compares with them. --check compares them with what the library gives now, and writes nothing.
"""
import datetime
import json
import pathlib
import re
import sys

import transformers.utils.chat_template_utils as library

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures/formats"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
FOLDERS = ("trl/chat_templates", "axolotl/utils/chat_templates/templates")
REFUSED = "--------"
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


def rendering(template, conversation):
    """The digest of a text and its {% generation %} spans in bytes, or REFUSED."""
    marked = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
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


def main():
    library.datetime = FixedDay
    packages = pathlib.Path(transformers_folder()).parent
    conversations = json.loads((FIXTURES / "chat_conversations.json").read_text(encoding="utf-8"))
    for one in conversations:
        one["variables"] = variables(one)
    rows = []
    for folder in FOLDERS:
        for file in sorted((packages / folder).glob("*.jinja")):
            with open(file, encoding="utf-8", newline="") as stream:
                template = stream.read()
            digests = "".join(rendering(template, one) for one in conversations)
            rows.append(f"  {json.dumps(f'{folder}/{file.name}')}: {json.dumps(digests)}")
    texts = {"chat_conversations.json": "[\n" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in conversations) + "\n]\n",
             "chat_renderings.json": "{\n" + ",\n".join(rows) + "\n}\n"}
    for name, text in texts.items():
        if "--check" not in sys.argv:
            (FIXTURES / name).write_text(text, encoding="utf-8")
        elif (FIXTURES / name).read_text(encoding="utf-8") != text:
            sys.exit(f"{name} is not what the library gives")
    print(f"{len(rows)} templates x {len(conversations)} conversations")


def transformers_folder():
    return pathlib.Path(library.__file__).parents[1]


if __name__ == "__main__":
    main()
