"""What polychromic training reads beside its model, drawn at random: examples, a tokenizer of any size, and a sentence
encoder of the shape of MiniLM-L6. For timing: no network is needed, and the work is that of real ones."""
import itertools
import json
import math
import random
import string
import struct

WORDS = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3)]
SPECIAL = ["<pad>", "<eos>"]
MINILM = dict(vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
              max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu",
              model_type="bert", architectures=["BertModel"], pad_token_id=0)
MOST_ENCODED = 256  # tokens of a text, of which MiniLM-L6 takes no more


def write_rows(file, prompt, response, count=64):
    """Prompts and responses of random letters, each of which is a token: so many of each, <eos> not counted."""
    draw = random.Random(1)
    letters = string.ascii_lowercase[:16]
    with open(file, "w", encoding="utf-8") as out:
        for _ in range(count):
            texts = ("".join(draw.choices(letters, k=n)) for n in (prompt, response))
            out.write(json.dumps(dict(zip(("prompt", "response"), texts))) + "\n")


# ---- a tokenizer ----

def byte_letters():
    """The characters that stand for the 256 bytes in a tokenizer of bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in itertools.count())
    return [chr(byte) if byte in shown else next(others) for byte in range(256)]


def tokens(size):
    """So many tokens: the special ones, the bytes, and words that the encoder below knows as one token each."""
    space = byte_letters()[ord(" ")]
    forms = (space * spaces + "".join(c.upper() if mask >> i & 1 else c for i, c in enumerate(word))
             for spaces in itertools.count(1) for mask in range(8) for word in WORDS)
    return [*SPECIAL, *byte_letters(), *itertools.islice(forms, size - len(SPECIAL) - 256)]


def write_tokenizer(folder, size):
    """Texts are encoded letter by letter; a model may choose any token."""
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
    special = [dict(id=i, content=token, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
               for i, token in enumerate(SPECIAL)]
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                 fuse_unk=False, byte_fallback=False, ignore_merges=False,
                 vocab={token: i for i, token in enumerate(tokens(size))}, merges=[])
    text = json.dumps(dict(version="1.0", truncation=None, padding=None, added_tokens=special, normalizer=None,
                           pre_tokenizer=level, post_processor=None, decoder=level, model=model))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    names = dict(zip(("pad_token", "eos_token"), SPECIAL))
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


# ---- a sentence encoder ----

def encoder_shapes(o):
    width, inner = o["hidden_size"], o["intermediate_size"]
    shapes = {"embeddings.word_embeddings.weight": (o["vocab_size"], width),
              "embeddings.position_embeddings.weight": (o["max_position_embeddings"], width),
              "embeddings.token_type_embeddings.weight": (o["type_vocab_size"], width)}

    def add(name, *shape):
        shapes[name + ".weight"], shapes[name + ".bias"] = shape, shape[:1]

    add("embeddings.LayerNorm", width)
    for layer in (f"encoder.layer.{i}." for i in range(o["num_hidden_layers"])):
        for part in ("query", "key", "value"):
            add(f"{layer}attention.self.{part}", width, width)
        add(layer + "attention.output.dense", width, width)
        add(layer + "attention.output.LayerNorm", width)
        add(layer + "intermediate.dense", inner, width)
        add(layer + "output.dense", width, inner)
        add(layer + "output.LayerNorm", width)
    return shapes


def random_bf16(draw, count):
    """Numbers of either sign with sizes of 1/64 to 1/32, as bytes."""
    out = bytearray(2 * count)
    out[0::2] = draw.randbytes(count).translate(bytes(byte | 0x80 for byte in range(256)))
    out[1::2] = draw.randbytes(count).translate(bytes(byte & 0x80 | 0x3C for byte in range(256)))
    return out


def write_encoder(folder, shape=None):
    """config.json, model.safetensors in bf16 and vocab.txt of a BERT."""
    o = MINILM | (shape or {})
    draw, parts, header, end = random.Random(2), [], {}, 0
    for name, sizes in encoder_shapes(o).items():
        count = math.prod(sizes)
        if len(sizes) == 2:
            part = random_bf16(draw, count)
        else:
            part = struct.pack("<H", 0x3F80 if name.endswith("LayerNorm.weight") else 0) * count
        header[name] = dict(dtype="BF16", shape=sizes, data_offsets=[end, end + len(part)])
        parts.append(part)
        end += len(part)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.writelines(parts)
    (folder / "config.json").write_text(json.dumps(o), encoding="utf-8")
    limit = dict(max_seq_length=MOST_ENCODED, do_lower_case=False)
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit), encoding="utf-8")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *WORDS]
    vocabulary += ["##" + letter for letter in string.ascii_lowercase]
    vocabulary += [f"[unused{i}]" for i in range(o["vocab_size"] - len(vocabulary))]
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in vocabulary), encoding="utf-8")
