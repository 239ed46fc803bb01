#!/usr/bin/env python3
"""Small models of each family, as transformers saves and computes them, and rotations as numbers by position.

    make_hf_families.py write FOLDER      makes the fixtures (tests/fixtures/hf_families)
    make_hf_families.py compare FOLDER    reads them with this transformers, and compares what it computes
    make_hf_families.py export FOLDER     opens FOLDER/NAME/model (and adapter) and compares with reference.safetensors

Needs torch, transformers and safetensors; an adapter needs peft. A model's folder holds config.json,
model.safetensors and expected.safetensors: `ids`, the prompt and 40 greedy tokens after it, and `logits` at each of
them. `compare` makes the numbers anew from the stored weights.
"""
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

PROMPT, NEW = 12, 40
MARGIN = 2e-3  # between the best logit and the next, so that rounding changes no token
ROUTER_MARGIN = 1e-2  # between the last expert that a token goes to and the next one, in the router's logits
TOLERANCE = dict(rtol=0, atol=2e-5)
EAGER = dict(attn_implementation="eager", experts_implementation="eager")

# Members of a configuration that say nothing about the arithmetic, or differ between versions.
UNRELATED = ("transformers_version", "_name_or_path", "dtype", "chunk_size_feed_forward", "id2label", "label2id",
             "is_encoder_decoder", "output_attentions", "output_hidden_states", "problem_type", "return_dict")

SIZES = dict(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)


def rope(theta=10000.0, **more):
    return dict(rope_parameters={"rope_type": "default", **more, "rope_theta": theta})


MODELS = {
    "llama2": ("LlamaConfig", rope()),
    "tinyllama": ("LlamaConfig", dict(rope(), num_attention_heads=8, num_key_value_heads=1)),
    "smollm2": ("LlamaConfig", dict(rope(130000.0), tie_word_embeddings=True, num_attention_heads=2,
                                    num_key_value_heads=1)),
    "llama3": ("LlamaConfig", rope(500000.0)),
    "llama31": ("LlamaConfig", dict(rope(500000.0, **LLAMA3), tie_word_embeddings=True, head_dim=8)),
    "linear": ("LlamaConfig", rope(type="linear", rope_type="linear", factor=4.0)),
    "dynamic": ("LlamaConfig", rope(rope_type="dynamic", factor=2.0)),
    "qwen2": ("Qwen2Config", dict(rope(1e6), sliding_window=8, use_sliding_window=False, max_window_layers=2)),
    "qwen2_window": ("Qwen2Config", dict(rope(1e6), sliding_window=8, use_sliding_window=True, max_window_layers=0)),
    "qwen2_yarn": ("Qwen2Config", dict(rope(1e6, **YARN), tie_word_embeddings=True)),
    "qwen3": ("Qwen3Config", dict(rope(1e6), head_dim=8)),
    "mistral": ("MistralConfig", dict(rope(), sliding_window=7)),
    "gemma": ("GemmaConfig", dict(rope(), head_dim=8, num_key_value_heads=1, tie_word_embeddings=True,
                                  hidden_act="gelu")),
    "phi3": ("Phi3Config", dict(rope(), sliding_window=9)),
    "olmo2": ("Olmo2Config", rope(500000.0)),
    "olmo2_yarn": ("Olmo2Config", rope(500000.0, **YARN)),
    "qwen3_moe": ("Qwen3MoeConfig", dict(rope(1e6), num_hidden_layers=3, mlp_only_layers=[1], intermediate_size=16,
                                         num_attention_heads=2, num_key_value_heads=1, head_dim=6, num_experts=5,
                                         num_experts_per_tok=2, moe_intermediate_size=6, norm_topk_prob=True)),
    "mixtral": ("MixtralConfig", dict(rope(1e6), intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
                                      sliding_window=9)),
    "olmoe": ("OlmoeConfig", dict(rope(), intermediate_size=8, num_experts=5, num_experts_per_tok=3,
                                  norm_topk_prob=False)),
}

ROTATIONS = {
    "default": {},
    "linear": dict(rope_type="linear", factor=4.0),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=8192),
    "llama32": dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=8192),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
    "yarn_all": dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=24.0,
                     beta_slow=2.0, mscale=1.0, mscale_all_dim=0.7),
    "yarn_factor": dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=4096, attention_factor=1.25,
                        truncate=False),
}
POSITIONS = [0, 1, 2, 17, 255, 4095, 4096, 8192, 32767]


def build(kind, settings, seed):
    torch.manual_seed(seed)
    config = getattr(transformers, kind)(**{**SIZES, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config, **EAGER).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.dim() == 1 else 1.6 / parameter.shape[-1] ** 0.5
            shift = 1.0 if "norm" in name and kind != "GemmaConfig" else 0.0
            parameter.copy_(torch.randn_like(parameter) * spread + shift)
    return model


@torch.no_grad()
def numbers(model, seed):
    """Prompt and greedy tokens, with the cache of transformers; logits of the whole row in one pass."""
    ids = torch.randint(3, model.config.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(seed))
    return numbers_of(model, ids)


@torch.no_grad()
def numbers_of(model, prompt):
    model.generation_config.eos_token_id = None
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False,
                         pad_token_id=0)
    logits = model(ids).logits[0]
    best = logits[PROMPT - 1:-1].topk(2).values
    return ids[0], logits, float((best[:, 0] - best[:, 1]).min())


@torch.no_grad()
def router_margin(model, ids):
    if not hasattr(model.config, "num_experts_per_tok"):
        return ROUTER_MARGIN
    picks = model.config.num_experts_per_tok
    layers = [layer.sort(-1, descending=True).values
              for layer in model(ids[None], output_router_logits=True).router_logits]
    return min(float((layer[:, picks - 1] - layer[:, picks]).min()) for layer in layers)


def saved_weights(model):
    """As save_pretrained names them, which for experts is not as they are in memory."""
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        return load_file(pathlib.Path(place) / "model.safetensors")


def rotation(settings):
    config = transformers.LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=32768,
                                      **rope(500000.0, **settings))
    embedding = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.tensor([POSITIONS]))
    half = cos.shape[-1] // 2
    return cos[0, :, :half], sin[0, :, :half]


def rotations():
    out = {"positions": POSITIONS, "head_dim": 16, "max_position_embeddings": 32768, "theta": 500000.0, "kinds": {}}
    for name, settings in ROTATIONS.items():
        cos, sin = rotation(settings)
        out["kinds"][name] = {"rope_parameters": settings, "cos": cos.tolist(), "sin": sin.tolist()}
    return out


def write(folder):
    for name, (kind, settings) in MODELS.items():
        for seed in range(1, 1000):
            model = build(kind, settings, seed)
            ids, logits, margin = numbers(model, seed)
            if (margin > MARGIN and len(set(ids[PROMPT:].tolist())) >= 8
                    and router_margin(model, ids) >= ROUTER_MARGIN):
                break
        else:
            raise SystemExit(f"{name}: no seed gives clear tokens")
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        config = model.config.to_dict()
        for key in UNRELATED:
            config.pop(key, None)
        config["architectures"] = [type(model).__name__]
        if kind == "GemmaConfig":
            config["hidden_act"] = settings["hidden_act"]  # as the published files have it
        (place / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        if kind == "Qwen3MoeConfig":
            config["num_experts"] = config.pop("num_local_experts")  # likewise
        weights = {key: value.contiguous() for key, value in saved_weights(model).items()}
        save_file(weights, place / "model.safetensors", {"format": "pt"})
        save_file({"ids": ids.contiguous(), "logits": logits.contiguous()}, place / "expected.safetensors")
        size = sum(file.stat().st_size for file in place.iterdir())
        assert size <= 50_000, (name, size)
        print(f"{name}: seed {seed}, margin {margin:.4f}, {size} bytes")
    (folder / "rotations.json").write_text(json.dumps(rotations(), indent=None) + "\n")


def open_model(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, **EAGER)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model.eval()


def compare(folder):
    for name in MODELS:
        want = load_file(folder / name / "expected.safetensors")
        ids, logits, _ = numbers_of(open_model(folder / name), want["ids"][None, :PROMPT])
        assert torch.equal(ids, want["ids"]), name
        torch.testing.assert_close(logits, want["logits"], **TOLERANCE, msg=lambda text: f"{name}: {text}")
        print("same:", name)
    stored = json.loads((folder / "rotations.json").read_text())
    assert list(stored["kinds"]) == list(ROTATIONS) and stored["positions"] == POSITIONS
    for kind, settings in ROTATIONS.items():
        assert stored["kinds"][kind]["rope_parameters"] == settings, kind
        for part, got in zip(("cos", "sin"), rotation(settings)):
            for position, got_row, row in zip(POSITIONS, got, stored["kinds"][kind][part]):
                torch.testing.assert_close(got_row, torch.tensor(row), rtol=0, atol=1e-6 + 2e-7 * position)
    print("same: rotations")


@torch.no_grad()
def exported(folder):
    for place in sorted(folder.iterdir()):
        model = open_model(place / "model")
        source = json.loads((place / "source.json").read_text())
        config = json.loads((place / "model" / "config.json").read_text())
        assert config["model_type"] == source["model_type"] and config["architectures"] == source["architectures"]
        if (place / "adapter").exists():
            import peft
            model = peft.PeftModel.from_pretrained(model, place / "adapter").eval()
        want = load_file(place / "reference.safetensors")
        torch.testing.assert_close(model(want["ids"][None]).logits[0], want["logits"], rtol=0, atol=1e-4,
                                   msg=lambda text: f"{place.name}: {text}")
        print("agrees:", place.name)


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    {"write": write, "compare": compare, "export": exported}[sys.argv[1]](pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
