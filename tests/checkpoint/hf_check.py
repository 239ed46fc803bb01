"""Opens folders that `hrm_train export --to hf` and `--to peft` have written, and compares their logits with ours.

    hf_check.py FOLDER ...

FOLDER/model is the export, FOLDER/adapter, where there is one, an adapter beside it, FOLDER/reference.pt holds ids,
logits, text_ids and text. By transformers and PEFT where they can be imported, and by the short implementation below in
any case. Prints "transformers: FOLDER" ("peft: FOLDER" with an adapter) and "own: FOLDER" for each that agrees.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

try:
    import transformers
except ImportError:
    transformers = None

try:
    import peft
except ImportError:
    peft = None

TOLERANCE = dict(rtol=2e-4, atol=2e-5)


def read_safetensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, begin = json.loads(data[8:8 + length]), 8 + length
    assert header.pop("__metadata__") == {"format": "pt"}
    weights = {}
    for name, about in header.items():
        assert about["dtype"] == "F32", about
        first, end = about["data_offsets"]
        flat = torch.frombuffer(bytearray(data[begin + first:begin + end]), dtype=torch.float32)
        weights[name] = flat.view(about["shape"])
    return weights


def read_weights(folder):
    """model.safetensors, or the shards of its index, which must name each tensor where it is."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    files = json.loads(index.read_text())["weight_map"]
    weights = {}
    for file in sorted(set(files.values())):
        shard = read_safetensors(folder / file)
        assert set(shard) == {name for name in files if files[name] == file}, file
        weights.update(shard)
    return weights


def add_adapter(weights, folder):
    """W + scale B A of each pair, all of which must be used."""
    c, pairs = json.loads((folder / "adapter_config.json").read_text()), read_safetensors(folder / "adapter_model.safetensors")
    scale = c["lora_alpha"] / (c["r"] ** 0.5 if c["use_rslora"] else c["r"])
    for name in [n for n in weights if f"base_model.model.{n[:-len('.weight')]}.lora_A.weight" in pairs]:
        of = f"base_model.model.{name[:-len('.weight')]}."
        weights[name] = weights[name] + scale * pairs.pop(of + "lora_B.weight") @ pairs.pop(of + "lora_A.weight")
    assert not pairs, f"not used: {list(pairs)}"


def own_logits(folder, w, ids):
    """Llama, Mistral and Qwen3 from config.json and the weights, all of which must be used."""
    c = json.loads((folder / "config.json").read_text())
    head_dim, length = c["head_dim"], ids.shape[1]
    frequency = c["rope_theta"] ** -(torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(length).float(), frequency)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    back = torch.arange(length)[:, None] - torch.arange(length)
    mask = (back >= 0) & (back < c.get("sliding_window", length))

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + c["rms_norm_eps"]).sqrt() * w.pop(name)

    def turn(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    table = w.pop("model.embed_tokens.weight")
    h = table[ids]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        x = norm(h, at + "input_layernorm.weight")
        q, k, v = ((x @ w.pop(f"{at}self_attn.{p}_proj.weight").T).unflatten(-1, (-1, head_dim)) for p in "qkv")
        if c["model_type"] == "qwen3":
            q, k = norm(q, at + "self_attn.q_norm.weight"), norm(k, at + "self_attn.k_norm.weight")
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        share = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = turn(k).repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = (turn(q) @ k.transpose(2, 3) / head_dim**0.5).masked_fill(~mask, -torch.inf)
        h = h + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ w.pop(at + "self_attn.o_proj.weight").T
        x = norm(h, at + "post_attention_layernorm.weight")
        inner = F.silu(x @ w.pop(at + "mlp.gate_proj.weight").T) * (x @ w.pop(at + "mlp.up_proj.weight").T)
        h = h + inner @ w.pop(at + "mlp.down_proj.weight").T
    h = norm(h, "model.norm.weight")
    logits = h @ (table if c["tie_word_embeddings"] else w.pop("lm_head.weight")).T
    assert not w, f"not used: {list(w)}"
    return logits


def main():
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        folder, adapter = pathlib.Path(name) / "model", pathlib.Path(name) / "adapter"
        reference = torch.load(pathlib.Path(name) / "reference.pt")
        weights = read_weights(folder)
        if adapter.exists():
            add_adapter(weights, adapter)
        with torch.no_grad():
            torch.testing.assert_close(own_logits(folder, weights, reference["ids"]), reference["logits"], **TOLERANCE)
        print("own:", name)
        if transformers is None or (adapter.exists() and peft is None):
            continue
        model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        if adapter.exists():
            with torch.no_grad():
                adapted = peft.PeftModel.from_pretrained(model, adapter).eval()
                torch.testing.assert_close(adapted(reference["ids"]).logits, reference["logits"], **TOLERANCE)
            print("peft:", name)
            continue
        assert type(model).__name__ == json.loads((folder / "config.json").read_text())["architectures"][0]
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(reference["ids"]).logits, reference["logits"], **TOLERANCE)
        if (folder / "tokenizer.json").exists():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            text = bytes(reference["text"].tolist()).decode()
            assert tokenizer(text)["input_ids"] == reference["text_ids"].tolist()
            assert tokenizer.eos_token_id == model.generation_config.eos_token_id
        print("transformers:", name)


if __name__ == "__main__":
    main()
