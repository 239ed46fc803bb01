// The order of operations is that of src/nn/ and of the ops' references, so that rounding is the same, too.
#include "checkpoint/torchscript_blocks.h"

#include "checkpoint/torchscript_source.h"
#include "hrm/base/error.h"
#include "hrm/nn/classic_blocks.h"

namespace hrm::checkpoint {
namespace {

bool stack_has_rope(StackKind kind) {
  return kind != StackKind::memory;
}

std::string attend_arguments(StackKind kind) {
  switch (kind) {
    case StackKind::causal:
      return "None, 0.0, True";
    case StackKind::memory:
      return "None, 0.0, False";
    case StackKind::windowed:
    case StackKind::encoder:
      break;
  }
  return "mask, 0.0, False";
}

// Heads of keys and values, once for each head of queries.
std::string repeat_heads(const models::DecoderOptions& o) {
  const int64_t share = o.heads / o.kv_heads;
  if (share == 1) return "";
  return cat("    k = torch.repeat_interleave(k, ", share, ", 1)\n    v = torch.repeat_interleave(v, ", share,
             ", 1)\n");
}

}  // namespace

std::string kind_name(StackKind kind) {
  switch (kind) {
    case StackKind::causal:
      return "Causal";
    case StackKind::windowed:
      return "Windowed";
    case StackKind::encoder:
      return "Encoder";
    case StackKind::memory:
      break;
  }
  return "Memory";
}

std::string pass_parameters(StackKind kind) {
  switch (kind) {
    case StackKind::causal:
      return ", cos: Tensor, sin: Tensor";
    case StackKind::windowed:
      return ", cos: Tensor, sin: Tensor, mask: Tensor";
    case StackKind::encoder:
      return ", cos: Tensor, sin: Tensor, mask: Optional[Tensor]";
    case StackKind::memory:
      break;
  }
  return "";
}

std::string pass_arguments(StackKind kind) {
  switch (kind) {
    case StackKind::causal:
      return ", cos, sin";
    case StackKind::windowed:
    case StackKind::encoder:
      return ", cos, sin, mask";
    case StackKind::memory:
      break;
  }
  return "";
}

std::string rms_norm_source(double eps, bool centred) {
  return cat(R"(
def forward(self, x: Tensor) -> Tensor:
    return x * torch.rsqrt(torch.mean(torch.square(x), [-1], True) + )",
             literal(eps), centred ? ") * (self.weight + 1.0)\n" : ") * self.weight\n");
}

std::string grouped_rms_norm_source(double eps, int64_t width, int64_t groups) {
  return cat(R"(
def forward(self, x: Tensor) -> Tensor:
    parts = x.view([x.size(0), x.size(1), )",
             groups, ", ", width / groups, R"(])
    parts = parts * torch.rsqrt(torch.mean(torch.square(parts), [-1], True) + )",
             literal(eps), R"()
    return parts.view_as(x) * self.weight
)");
}

std::string layer_norm_source(int64_t width) {
  return cat(R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.layer_norm(x, [)",
             width, "], self.weight, self.bias, ", literal(nn::kLayerNormEps), ")\n");
}

std::string grouped_attention_source(const models::DecoderOptions& o, StackKind kind) {
  std::string source;
  if (stack_has_rope(kind)) source += rotate_source(o.head_dim);
  source += cat("\ndef forward(self, x: Tensor", pass_parameters(kind), R"() -> Tensor:
    rows = x.size(0)
    length = x.size(1)
    qkv = self.qkv_proj.forward(x)
)");
  const int64_t q_width = o.heads * o.head_dim, kv_width = o.kv_heads * o.head_dim;
  if (o.form.wide_qk_norm) {
    source +=
        cat("    q = self.q_norm.forward(torch.narrow(qkv, 2, 0, ", q_width,
            "))\n    k = self.k_norm.forward(torch.narrow(qkv, 2, ", q_width, ", ", kv_width,
            "))\n    qkv = torch.cat([q, k, torch.narrow(qkv, 2, ", q_width + kv_width, ", ", kv_width, ")], 2)\n");
  }
  source += cat("    qkv = qkv.view([rows, length, ", o.heads + 2 * o.kv_heads, ", ", o.head_dim, R"(])
    q = torch.narrow(qkv, 2, 0, )",
                o.heads, R"()
    k = torch.narrow(qkv, 2, )",
                o.heads, ", ", o.kv_heads, R"()
    v = torch.narrow(qkv, 2, )",
                o.heads + o.kv_heads, ", ", o.kv_heads, ").transpose(1, 2)\n");
  if (o.qk_norm) source += "    q = self.q_norm.forward(q)\n    k = self.k_norm.forward(k)\n";
  if (stack_has_rope(kind)) source += "    q = self.rotate(q, cos, sin)\n    k = self.rotate(k, cos, sin)\n";
  return source + "    q = q.transpose(1, 2)\n    k = k.transpose(1, 2)\n" + repeat_heads(o) +
         cat("    out = torch.scaled_dot_product_attention(q, k, v, ", attend_arguments(kind), R"()
    return self.o_proj.forward(out.transpose(1, 2).reshape([rows, length, )",
             o.heads * o.head_dim, "]))\n");
}

std::string cross_attention_source(const models::DecoderOptions& o) {
  return cat(R"(
def forward(self, x: Tensor, memory: Tensor) -> Tensor:
    rows = x.size(0)
    length = x.size(1)
    q = self.q_proj.forward(x).view([rows, length, )",
             o.heads, ", ", o.head_dim, R"(]).transpose(1, 2)
    kv = self.kv_proj.forward(memory).view([rows, memory.size(1), )",
             2 * o.kv_heads, ", ", o.head_dim, R"(])
    k = torch.narrow(kv, 2, 0, )",
             o.kv_heads, R"().transpose(1, 2)
    v = torch.narrow(kv, 2, )",
             o.kv_heads, ", ", o.kv_heads, ").transpose(1, 2)\n", repeat_heads(o), R"(
    out = torch.scaled_dot_product_attention(q, k, v)
    return self.o_proj.forward(out.transpose(1, 2).reshape([rows, length, )",
             o.heads * o.head_dim, "]))\n");
}

std::string transformer_block_source(StackKind kind, bool cross, bool norms_behind) {
  if (norms_behind) {
    return cat("\ndef forward(self, h: Tensor", pass_parameters(kind), R"() -> Tensor:
    h = h + self.post_attention_layernorm.forward(self.self_attn.forward(h)",
               pass_arguments(kind), R"())
    return h + self.post_feedforward_layernorm.forward(self.mlp.forward(h))
)");
  }
  return cat("\ndef forward(self, h: Tensor", cross ? ", memory: Tensor" : "", pass_parameters(kind), R"() -> Tensor:
    h = h + self.self_attn.forward(self.input_layernorm.forward(h))",
             pass_arguments(kind), ")\n",
             cross ? "    h = h + self.cross_attn.forward(self.cross_layernorm.forward(h), memory)\n" : "",
             "    return h + self.mlp.forward(self.post_attention_layernorm.forward(h))\n");
}

std::string gelu_source() {
  return R"(
def forward(self, x: Tensor) -> Tensor:
    return self.down.forward(torch.gelu(self.up.forward(x)))
)";
}

// One expert after the other, each on the tokens that picked it.
std::string experts_source(const nn::MoeOptions& o, int64_t width) {
  const bool drops = o.capacity_factor > 0, gated = o.activation == ops::ExpertActivation::swiglu;
  const int64_t up_rows = gated ? 2 * o.inner : o.inner;
  std::string source = cat(R"(
def forward(self, h: Tensor) -> Tensor:
    x = h.reshape([-1, )",
                           width, R"(])
    logits = self.router.forward(x)
    scores = )",
                           o.score == ops::MoeScore::sigmoid ? "torch.sigmoid(logits)" : "torch.softmax(logits, -1)",
                           "\n    choice = scores", o.bias_rate > 0 ? " + self.choice_bias" : "", R"(
    best, ids = torch.topk(choice, )",
                           o.top_k, R"()
    weights = torch.gather(scores, 1, ids)
)");
  if (o.normalize) source += "    weights = weights / torch.sum(weights, [1], True)\n";
  if (drops) {
    source += cat("    room = -int((-", literal(o.capacity_factor), " * float(ids.numel()) / ",
                  literal(static_cast<double>(o.experts)), ") // 1.0)\n");
  }
  source += cat(R"(    out = torch.zeros_like(x)
    for e in range()",
                o.experts, R"():
        picked = torch.eq(ids, e)
)");
  if (drops) {
    // The picks with the highest weights find room, of equal ones the earlier.
    source += R"(        flat = torch.where(picked, weights, torch.full_like(weights, -1.0)).view([-1])
        order = torch.narrow(torch.argsort(flat, stable=True, dim=0, descending=True), 0, 0, min(room, flat.size(0)))
        first = torch.zeros_like(flat).index_fill(0, order, 1.0).view_as(weights)
        picked = torch.logical_and(picked, first.gt(0.5))
)";
  }
  source += cat(R"(        hit = torch.nonzero(torch.any(picked, 1)).view([-1])
        share = torch.sum(torch.where(picked, weights, torch.zeros_like(weights)), [1]).index_select(0, hit)
        up = torch.narrow(self.)",
                gated ? "gate_up" : "up", ".weight, 0, e * ", up_rows, ", ", up_rows, R"()
        down = torch.narrow(self.down.weight, 0, e * )",
                width, ", ", width, R"()
        pre = torch.linear(x.index_select(0, hit), up)
)");
  if (gated) {
    source += cat("        act = torch.silu(torch.narrow(pre, -1, 0, ", o.inner, ")) * torch.narrow(pre, -1, ", o.inner,
                  ", ", o.inner, ")\n");
  } else {
    source += "        act = torch.gelu(pre)\n";
  }
  source += "        out = out.index_add(0, hit, torch.linear(act, down) * share.unsqueeze(1))\n";
  if (o.shared_experts > 0) source += "    out = out + self.shared.forward(x)\n";
  return source + "    return out.view_as(h)\n";
}

std::string mamba2_mixer_source(const nn::Mamba2Options& o) {
  const int64_t states = o.groups * o.state;
  return cat(R"(
def forward(self, u: Tensor, mask: Optional[Tensor]) -> Tensor:
    rows = u.size(0)
    length = u.size(1)
    if mask is not None:
        u = u * mask.unsqueeze(-1).to(6)
    projected = self.in_proj.forward(u)
    z = torch.narrow(projected, -1, 0, )",
             o.inner(), R"()
    c = torch.narrow(projected, -1, )",
             o.inner(), ", ", o.channels(), R"().transpose(1, 2)
    dt = torch.softplus(torch.narrow(projected, -1, )",
             o.inner() + o.channels(), ", ", o.heads(), R"() + self.dt_bias)
    c = torch.conv1d(torch.constant_pad_nd(c, [)",
             o.kernel - 1, ", 0]), self.conv1d.weight, self.conv1d.bias, [1], [0], [1], ", o.channels(), R"()
    c = torch.silu(c.transpose(1, 2))
    if mask is not None:
        c = c * mask.unsqueeze(-1).to(6)
    x = torch.narrow(c, -1, 0, )",
             o.inner(), ").reshape([rows, length, ", o.heads(), ", ", o.head_dim, R"(])
    B = torch.narrow(c, -1, )",
             o.inner(), ", ", states, ").reshape([rows, length, ", o.groups, ", ", o.state, R"(])
    C = torch.narrow(c, -1, )",
             o.inner() + states, ", ", states, ").reshape([rows, length, ", o.groups, ", ", o.state, R"(])
    B = torch.repeat_interleave(B, )",
             o.heads() / o.groups, R"(, 2)
    C = torch.repeat_interleave(C, )",
             o.heads() / o.groups, R"(, 2)
    A = torch.neg(torch.exp(self.A_log))
    state = torch.zeros([rows, )",
             o.heads(), ", ", o.head_dim, ", ", o.state, R"(], dtype=6, device=u.device)
    ys: List[Tensor] = []
    for t in range(length):
        step = torch.select(dt, 1, t)
        x_t = torch.select(x, 1, t)
        decay = torch.exp(step * A).unsqueeze(-1).unsqueeze(-1)
        state = decay * state + (step.unsqueeze(-1) * x_t).unsqueeze(-1) * torch.select(B, 1, t).unsqueeze(2)
        y_t = torch.sum(state * torch.select(C, 1, t).unsqueeze(2), [-1])
        ys.append(y_t + self.D.unsqueeze(-1) * x_t)
    gated = torch.stack(ys, 1).reshape([rows, length, )",
             o.inner(), R"(]) * torch.silu(z)
    return self.out_proj.forward(self.norm.forward(gated))
)");
}

std::string mamba2_block_source() {
  return R"(
def forward(self, r: Tensor, mask: Optional[Tensor]) -> Tensor:
    return r + self.mixer.forward(self.norm.forward(r), mask)
)";
}

std::string multihead_source(int64_t width, int64_t heads) {
  const int64_t head_dim = width / heads;
  return cat(R"(
def split(self, x: Tensor) -> Tensor:
    return x.reshape([x.size(0), x.size(1), )",
             heads, ", ", head_dim, R"(]).transpose(1, 2)

def join(self, x: Tensor) -> Tensor:
    return self.out_proj.forward(x.transpose(1, 2).reshape([x.size(0), -1, )",
             width, R"(]))

def self_attend(self, x: Tensor, mask: Optional[Tensor], causal: bool) -> Tensor:
    qkv = torch.linear(x, self.in_proj_weight, self.in_proj_bias)
    q = self.split(torch.narrow(qkv, -1, 0, )",
             width, R"())
    k = self.split(torch.narrow(qkv, -1, )",
             width, ", ", width, R"())
    v = self.split(torch.narrow(qkv, -1, )",
             2 * width, ", ", width, R"())
    return self.join(torch.scaled_dot_product_attention(q, k, v, mask, 0.0, causal))

def cross(self, x: Tensor, memory: Tensor) -> Tensor:
    q = torch.linear(x, torch.narrow(self.in_proj_weight, 0, 0, )",
             width, "), torch.narrow(self.in_proj_bias, 0, 0, ", width, R"())
    kv = torch.linear(memory, torch.narrow(self.in_proj_weight, 0, )",
             width, ", ", 2 * width, "), torch.narrow(self.in_proj_bias, 0, ", width, ", ", 2 * width, R"())
    k = self.split(torch.narrow(kv, -1, 0, )",
             width, R"())
    v = self.split(torch.narrow(kv, -1, )",
             width, ", ", width, R"())
    return self.join(torch.scaled_dot_product_attention(self.split(q), k, v))
)");
}

std::string classic_encoder_block_source() {
  return R"(
def forward(self, x: Tensor, mask: Optional[Tensor]) -> Tensor:
    h = x + self.attn.self_attend(self.norm1.forward(x), mask, False)
    return h + self.ffn.forward(self.norm2.forward(h))
)";
}

std::string classic_decoder_block_source() {
  return R"(
def forward(self, x: Tensor, memory: Tensor) -> Tensor:
    h = self.norm1.forward(x + self.self_attn.self_attend(x, None, True))
    h = self.norm2.forward(h + self.multihead_attn.cross(h, memory))
    return self.norm3.forward(h + self.linear2.forward(torch.relu(self.linear1.forward(h))))
)";
}

}  // namespace hrm::checkpoint
