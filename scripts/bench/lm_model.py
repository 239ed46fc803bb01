"""The language models of hrm_train in PyTorch, as its users would write them today: the plain decoder, and the HRM
language model of modern blocks with a prefix bridge, each with dense layers or mixtures of experts.

Weights are fp32 or bf16 and are converted where they are used, activations have the dtype `Sizes.dtype`: what autocast
does, with the residual stream in bf16, too. Parameters have the names and shapes of hrm_train's, so that its weights
load. tests/objectives/peer_python_test.cpp compares logits, loss and gradients of both.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

IGNORED = -100  # the label of a token without one


@dataclasses.dataclass
class Sizes:
    """Names and meanings are those of hrm_train's DecoderOptions, MoeOptions, HrmLmOptions and LanguageLossOptions."""
    kind: str = "decoder"  # or hrm
    vocabulary: int = 32000
    width: int = 768
    layers: int = 12
    heads: int = 12
    kv_heads: int = 0
    head_dim: int = 0
    inner: int = 0
    positions: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-6
    qk_norm: bool = False
    tied: bool = True
    # Mixtures of experts: the last of every so many layers has one; 0 = none has.
    moe_every: int = 0
    enc_moe_every: int = 0
    experts: int = 8
    top_k: int = 2
    expert_inner: int = 0  # 0: 4 width
    normalize: bool = False
    load_weight: float = 0.01
    z_weight: float = 0.0
    # HRM
    enc_layers: int = 2
    h_layers: int = 2
    l_layers: int = 2
    h_len: int = 8
    l_len: int = 64
    h_cycles: int = 4
    l_steps: int = 8
    gradient_cycles: int = 1
    halting: bool = False
    prefix_len: int = 8
    gate_scale: float = 1.0
    gate_bias: float = 0.0
    max_prompt: int = 512
    # Loss
    deep_supervision: float = 0.0
    halting_weight: float = 0.0
    halting_target: float = 1.0
    dtype: torch.dtype = torch.bfloat16
    cross_entropy: str = "plain"  # or chunked
    chunk: int = 4096

    def __post_init__(self):
        self.kv_heads = self.kv_heads or self.heads
        self.head_dim = self.head_dim or self.width // self.heads
        self.inner = self.inner or swiglu_width(self.width, 4)
        self.expert_inner = self.expert_inner or 4 * self.width


def swiglu_width(width, expansion):
    return -(-round(expansion * width * 2 / 3) // 256) * 256


def has_experts(layer, every):
    return every > 0 and layer % every == every - 1


class Linear(nn.Linear):
    def __init__(self, inputs, outputs, bias=False):
        super().__init__(inputs, outputs, bias)
        nn.init.normal_(self.weight, std=1 / math.sqrt(inputs))
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight.float()).to(x.dtype)


class Embedding(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(entries, width) / math.sqrt(width))

    def forward(self, ids, dtype):
        return F.embedding(ids, self.weight).to(dtype)


class Rotary(nn.Module):
    """cos and sin of each position; dimension i is turned with dimension i + head_dim / 2."""

    def __init__(self, positions, head_dim, theta):
        super().__init__()
        frequency = 1 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(positions).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, length):
        return self.cos[:length, None], self.sin[:length, None]


def turned(x, rotary):
    """x (B, T, heads, head_dim)."""
    cos, sin = rotary
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes = s
        self.qkv_proj = Linear(s.width, (s.heads + 2 * s.kv_heads) * s.head_dim)
        self.o_proj = Linear(s.heads * s.head_dim, s.width)
        if s.qk_norm:
            self.q_norm, self.k_norm = RmsNorm(s.head_dim, s.eps), RmsNorm(s.head_dim, s.eps)

    def forward(self, x, rotary, mask, causal):
        s = self.sizes
        heads = self.qkv_proj(x).unflatten(-1, (s.heads + 2 * s.kv_heads, s.head_dim))
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], 2)
        if s.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = turned(q, rotary), turned(k, rotary)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask,
                                               is_causal=causal and mask is None, enable_gqa=s.kv_heads < s.heads)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_up_proj, self.down_proj = Linear(s.width, 2 * s.inner), Linear(s.inner, s.width)

    def forward(self, x, losses):
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Spread(torch.autograd.Function):
    """Rows of tokens in the order of their experts. Its gradient is a gather, too, where indexing would scatter."""

    @staticmethod
    def forward(ctx, x, token, inverse):
        ctx.save_for_backward(inverse)
        return x[token]

    @staticmethod
    def backward(ctx, grad):
        inverse, = ctx.saved_tensors
        return grad[inverse].sum(1), None, None


class Gather(torch.autograd.Function):
    """Rows in the order of their experts -> (tokens, top_k, width)."""

    @staticmethod
    def forward(ctx, rows, order, inverse):
        ctx.save_for_backward(order)
        return rows[inverse]

    @staticmethod
    def backward(ctx, grad):
        order, = ctx.saved_tensors
        return grad.flatten(0, 1)[order], None, None


class Experts(nn.Module):
    """A mixture of experts without a limit to what an expert takes."""

    def __init__(self, s):
        super().__init__()
        self.sizes = s
        self.router = Linear(s.width, s.experts)
        self.up = Linear(s.width, s.experts * s.expert_inner)
        self.down = Linear(s.expert_inner, s.experts * s.width)

    def forward(self, x, losses):
        s, tokens = self.sizes, x.shape[:-1].numel()
        x2 = x.reshape(tokens, s.width)
        logits = self.router(x2).float()
        scores = logits.softmax(-1)
        weights, ids = scores.topk(s.top_k, dim=-1)
        if s.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        inverse = inverse.view(tokens, s.top_k)
        counts = (flat.unsqueeze(1) == torch.arange(s.experts, device=x.device)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        up = self.up.weight.to(x.dtype).view(s.experts, s.expert_inner, s.width).transpose(1, 2)
        down = self.down.weight.to(x.dtype).view(s.experts, s.width, s.expert_inner).transpose(1, 2)
        rows = Spread.apply(x2, order // s.top_k, inverse)
        rows = torch._grouped_mm(F.gelu(torch._grouped_mm(rows, up, ends)), down, ends)
        y = (Gather.apply(rows, order, inverse).float() * weights.unsqueeze(-1)).sum(1).to(x.dtype)
        if s.load_weight:
            losses.append(s.load_weight * s.experts / tokens**2 * (scores.sum(0) * counts).sum())
        if s.z_weight:
            losses.append(s.z_weight * logits.logsumexp(-1).square().mean())
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, s, experts=False):
        super().__init__()
        self.input_layernorm, self.self_attn = RmsNorm(s.width, s.eps), Attention(s)
        self.post_attention_layernorm = RmsNorm(s.width, s.eps)
        self.mlp = Experts(s) if experts else SwiGlu(s)

    def forward(self, x, losses, rotary=None, mask=None, causal=False):
        x = x + self.self_attn(self.input_layernorm(x), rotary, mask, causal)
        return x + self.mlp(self.post_attention_layernorm(x), losses)


def blocks(s, count, moe_every=0):
    return nn.ModuleList(Block(s, has_experts(i, moe_every)) for i in range(count))


class Decoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.embed_tokens = Embedding(s.vocabulary, s.width)
        self.layers = blocks(s, s.layers, s.moe_every)
        self.norm = RmsNorm(s.width, s.eps)
        self.rotary = Rotary(s.positions, s.head_dim, s.rope_theta)
        self.sizes = s
        if not s.tied:
            self.lm_head = Linear(s.width, s.vocabulary)

    @property
    def head(self):
        return (self.embed_tokens if self.sizes.tied else self.lm_head).weight

    def forward(self, ids, losses, prefix=None):
        x = self.embed_tokens(ids, self.sizes.dtype)
        if prefix is not None:
            x = torch.cat([prefix, x], 1)
        rotary = self.rotary(x.shape[1])
        for layer in self.layers:
            x = layer(x, losses, rotary, causal=True)
        return self.norm(x[:, x.shape[1] - ids.shape[1]:])


class DecoderLm(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.model = Decoder(s)

    @property
    def head(self):
        return self.model.head

    def forward(self, batch, losses):
        return dict(hidden=[self.model(batch["ids"], losses)])


class Encoder(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes = s
        self.embed_tokens = Embedding(s.vocabulary, s.width)
        self.layers, self.norm = blocks(s, s.enc_layers, s.enc_moe_every), RmsNorm(s.width, s.eps)
        self.rotary = Rotary(s.max_prompt, s.head_dim, s.rope_theta)

    def forward(self, ids, mask, losses):
        """(B, S, D), and the mean over the tokens (B, D)."""
        x, rotary, attended = self.embed_tokens(ids, self.sizes.dtype), self.rotary(ids.shape[1]), None
        if mask is not None:
            attended = (mask | ~mask.any(1, keepdim=True))[:, None, None]
        for layer in self.layers:
            x = layer(x, losses, rotary, attended)
        x = self.norm(x)
        if mask is None:
            return x.mean(1)
        kept = mask.unsqueeze(-1)
        return ((x.float() * kept).sum(1) / kept.sum(1).clamp_min(1)).to(x.dtype)


class Level(nn.Module):
    """One memory's network."""

    def __init__(self, s, length, layers):
        super().__init__()
        self.layers, self.norm = blocks(s, layers), RmsNorm(s.width, s.eps)
        self.pos = nn.Parameter(torch.zeros(length, s.width))

    def forward(self, state):
        x = state + self.pos.to(state.dtype)
        for layer in self.layers:
            x = layer(x, None)
        return self.norm(x)


class Core(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes = s
        self.h_mod, self.l_mod = Level(s, s.h_len, s.h_layers), Level(s, s.l_len, s.l_layers)
        for name in ("inp_to_h", "inp_to_l", "topdown", "bottomup", "out"):
            setattr(self, name, Linear(s.width, s.width, bias=True))
        self.out_norm = RmsNorm(s.width, s.eps)
        if s.halting:
            self.halt = Linear(s.width, 1, bias=True)
        self.h_init = nn.Parameter(torch.zeros(1, s.h_len, s.width))
        self.l_init = nn.Parameter(torch.zeros(1, s.l_len, s.width))

    def cycle(self, h, l, to_h, to_l):
        extra = (self.topdown(h.mean(1)) + to_l).unsqueeze(1)
        for _ in range(self.sizes.l_steps):
            l = self.l_mod(l + extra)
        return self.h_mod(h + (self.bottomup(l.mean(1)) + to_h).unsqueeze(1)), l

    def forward(self, x):
        """Results z of all cycles, and their probabilities of halting."""
        s = self.sizes
        to_h, to_l = self.inp_to_h(x), self.inp_to_l(x)
        h, l = (start.to(x.dtype).expand(len(x), -1, -1) for start in (self.h_init, self.l_init))
        first = 0 if s.halting or s.gradient_cycles == 0 else s.h_cycles - s.gradient_cycles
        z, halt = [], []
        for c in range(s.h_cycles):
            if c < first:
                with torch.no_grad():
                    h, l = self.cycle(h, l, to_h, to_l)
            else:
                h, l = self.cycle(h, l, to_h, to_l)
            z.append(self.out(self.out_norm(h.mean(1))))
            if s.halting:
                halt.append(self.halt(h[:, 0]).float().sigmoid().squeeze(-1))
        return z, halt


class Answer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.model = Decoder(s)


class HrmLm(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes = s
        self.dec, self.core, self.enc = Answer(s), Core(s), Encoder(s)
        self.bridge = Linear(s.width, s.width * s.prefix_len, bias=True)
        self.gate, self.prompt = Linear(s.width, 1, bias=True), Linear(s.width, s.width, bias=True)

    @property
    def head(self):
        return self.dec.model.head

    def forward(self, batch, losses):
        s = self.sizes
        z, halt = self.core(self.prompt(self.enc(batch["prompt_ids"], batch.get("prompt_mask"), losses)))
        memories = [self.bridge(part).unflatten(-1, (s.prefix_len, s.width)) for part in z]
        gate = (self.gate(z[-1]).float().sigmoid() * s.gate_scale + s.gate_bias).clamp(0, 1)
        hidden = [self.dec.model(batch["ids"], losses, gate.to(s.dtype).unsqueeze(-1) * memories[-1])]
        if s.deep_supervision:
            hidden += [self.dec.model(batch["ids"], losses, memory) for memory in memories[:-1]]
        return dict(hidden=hidden, gate=gate, halt=torch.stack(halt) if halt else None)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of weights * cross-entropy of hidden @ head.T, the logits of a chunk of tokens at a time; gradients are made
    in the forward pass."""

    @staticmethod
    def forward(ctx, hidden, head, labels, weights, chunk):
        low, total = head.to(hidden.dtype), hidden.new_zeros((), dtype=torch.float32)
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=torch.float32)
        for first in range(0, len(hidden), chunk):
            part = slice(first, first + chunk)
            log_p = F.log_softmax((hidden[part] @ low.t()).float(), -1)
            index, w = labels[part].clamp_min(0).unsqueeze(-1), weights[part]
            total = total - (log_p.gather(-1, index).squeeze(-1) * w).sum()
            own = torch.arange(log_p.shape[1], device=log_p.device) == index
            grad = ((log_p.exp() - own.float()) * w.unsqueeze(-1)).to(hidden.dtype)
            grad_hidden[part] = grad @ low
            grad_head += (grad.t() @ hidden[part]).float()
        ctx.save_for_backward(grad_hidden, grad_head.to(head.dtype))
        return total

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grad.to(grad_hidden.dtype), grad_head * grad.to(grad_head.dtype), None, None, None


def cross_entropy(hidden, head, labels, weights, s):
    """Sum of weights * cross-entropy; hidden (N, D), labels and weights (N)."""
    if s.cross_entropy == "chunked":
        return ChunkedCrossEntropy.apply(hidden, head, labels, weights, s.chunk)
    logits = F.linear(hidden, head.to(hidden.dtype)).float()
    return (F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none") * weights).sum()


def language_loss(model, batch, s):
    """The loss of hrm_train: cross-entropy, and the weighted terms of experts, earlier cycles and halting."""
    terms = []
    out = model(batch, terms)
    labels = batch["labels"].flatten().long()
    labelled = (labels != IGNORED).float()
    one = labelled / labelled.sum().clamp_min(1)
    earlier = len(out["hidden"]) - 1
    weights = torch.cat([one] + [one * (s.deep_supervision / max(earlier, 1))] * earlier)
    loss = cross_entropy(torch.cat([h.flatten(0, 1) for h in out["hidden"]]), model.head, labels.repeat(earlier + 1),
                         weights, s)
    if out.get("halt") is not None and s.halting_weight:
        excess = out["halt"].sum(0) - s.halting_target
        loss = loss + s.halting_weight * out["gate"].detach().mean() * excess.square().mean()
    for term in terms:
        loss = loss + term
    return loss


def make_model(s):
    return HrmLm(s) if s.kind == "hrm" else DecoderLm(s)
