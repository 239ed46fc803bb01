// The order of operations is that of src/nn/ and of the ops' references, so that rounding is the same, too.
// Legend: B rows, S data tokens, P puzzle-embedding slots, L = P + S, D hidden, V vocabulary, hd = D / heads.
#include "checkpoint/torchscript_source.h"

#include <cmath>
#include <cstdio>
#include <numbers>

#include "hrm/base/error.h"

namespace hrm::checkpoint {
namespace {

bool has_rope(const config::ModelConfig& config) {
  return config.pos_encodings == config::PositionEncoding::rope && !config.mlp_t;
}

// The rotary tables travel from the model to each attention only where there are any.
std::string table_parameters(const config::ModelConfig& config) {
  return has_rope(config) ? ", cos: Tensor, sin: Tensor" : "";
}
std::string table_arguments(const config::ModelConfig& config) {
  return has_rope(config) ? ", cos, sin" : "";
}

// RMSNorm of a residual sum.
std::string norm_source(const config::ModelConfig& config) {
  return cat(R"(
def norm(self, x: Tensor, residual: Tensor) -> Tensor:
    h = x + residual
    return h * torch.rsqrt(torch.mean(torch.square(h), [-1], True) + )",
             literal(config.rms_norm_eps), ")\n");
}

}  // namespace

std::string literal(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", value);
  std::string out = text;
  return out.find_first_of(".en") == std::string::npos ? out + ".0" : out;
}

std::string rotate_source(int64_t head_dim) {
  return cat(R"(
def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a = torch.narrow(x, -1, 0, )",
             head_dim / 2, R"()
    b = torch.narrow(x, -1, )",
             head_dim / 2, ", ", head_dim / 2, R"()
    return torch.cat([torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)], -1)
)");
}

std::string tables_source(const std::string& rows, double factor) {
  const std::string scaled = factor == 1 ? "" : " * " + literal(factor);
  return cat("    positions = torch.arange(", rows, R"(, dtype=6, device=x.device)
    angles = torch.outer(positions, self.inv_freq).unsqueeze(1)
    cos = torch.cos(angles))",
             scaled, "\n    sin = torch.sin(angles)", scaled, "\n");
}

std::string linear_source(bool bias) {
  return cat(R"(
def forward(self, x: Tensor) -> Tensor:
    return torch.linear(x, self.weight)",
             bias ? ", self.bias" : "", ")\n");
}

std::string swiglu_source(bool convolution, Gate gate) {
  return cat(R"(
def forward(self, x: Tensor) -> Tensor:
    gate_up = self.gate_up_proj.forward(x)
    width = gate_up.size(-1) // 2
    gate = torch.narrow(gate_up, -1, 0, width)
    up = torch.narrow(gate_up, -1, width, width)
    u = )",
             gate == Gate::gelu ? "torch.gelu(gate, approximate=\"tanh\")" : "torch.silu(gate)", " * up\n",
             convolution ? R"(    earlier = torch.narrow(torch.constant_pad_nd(u, [0, 0, 1, 0]), 1, 0, u.size(1))
    taps = self.dwconv.weight
    c = earlier * torch.select(torch.select(taps, 2, 0), 1, 0) + u * torch.select(torch.select(taps, 2, 1), 1, 0)
    u = torch.silu(c + self.dwconv.bias)
)"
                         : "",
             "    return self.down_proj.forward(u)\n");
}

std::string attention_source(const config::ModelConfig& config) {
  const int64_t heads = config.num_heads, head_dim = config.hidden_size / heads;
  std::string source = has_rope(config) ? rotate_source(head_dim) : "";
  source += cat("\ndef forward(self, h: Tensor", table_parameters(config), R"() -> Tensor:
    rows = h.size(0)
    length = h.size(1)
    qkv = self.qkv_proj.forward(h).view([rows, length, )",
                3 * heads, ", ", head_dim, R"(])
    q = torch.narrow(qkv, 2, 0, )",
                heads, R"()
    k = torch.narrow(qkv, 2, )",
                heads, ", ", heads, R"()
    v = torch.narrow(qkv, 2, )",
                2 * heads, ", ", heads, ")\n");
  if (has_rope(config)) {
    source += "    q = self.rotate(q, cos, sin)\n    k = self.rotate(k, cos, sin)\n";
  }
  source += cat(R"(    out = torch.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return self.o_proj.forward(out.transpose(1, 2).reshape([rows, length, )",
                config.hidden_size, "]))\n");
  return source;
}

std::string block_source(const config::ModelConfig& config) {
  std::string source =
      norm_source(config) + cat("\ndef forward(self, h: Tensor", table_parameters(config), ") -> Tensor:\n");
  if (config.mlp_t) {
    source += R"(    t = h.transpose(1, 2).contiguous()
    h = self.norm(self.mlp_t.forward(t), t).transpose(1, 2).contiguous()
)";
  } else {
    source += cat("    h = self.norm(self.self_attn.forward(h", table_arguments(config), "), h)\n");
  }
  return source + "    return self.norm(self.mlp.forward(h), h)\n";
}

std::string level_source(const config::ModelConfig& config, int64_t layers, const std::string& method) {
  std::string source = cat("\ndef ", method, "(self, h: Tensor, injection: Tensor", table_parameters(config),
                           ") -> Tensor:\n    h = h + injection\n");
  for (int64_t i = 0; i < layers; ++i) {
    source += cat("    h = self.layer", i, ".forward(h", table_arguments(config), ")\n");
  }
  return source + "    return h\n";
}

std::string model_source(const config::ModelConfig& config, const models::PuzzleModelDims& dims) {
  const int64_t D = config.hidden_size, P = dims.puzzle_emb_len;
  // Token types: 4 = int64, 6 = float32.
  std::string source = R"(
def embed(self, inputs: Tensor, puzzle_identifiers: Tensor) -> Tensor:
    x = torch.embedding(self.embed_tokens.embedding_weight, inputs.to(4))
)";
  if (dims.puzzle_emb_ndim > 0) {
    source += cat(R"(    puzzle = torch.index_select(self.puzzle_emb.weights, 0, puzzle_identifiers.to(4))
    puzzle = torch.constant_pad_nd(puzzle, [0, )",
                  P * D - dims.puzzle_emb_ndim, R"(])
    x = torch.cat([puzzle.view([-1, )",
                  P, ", ", D, "]), x], 1)\n");
  }
  const double scale = config.embed_scale * std::sqrt(static_cast<double>(D));
  if (config.pos_encodings == config::PositionEncoding::learned) {
    source += cat("    x = (x + self.embed_pos.embedding_weight) * ", literal(scale / std::numbers::sqrt2), "\n");
  } else {
    source += cat("    x = x * ", literal(scale), "\n");
  }
  source += "    return x\n";

  if (config.facts().flat_names) source += level_source(config, config.L_layers, "update");

  const std::string tables = table_arguments(config);
  source += R"(
def forward(self, inputs: Tensor, puzzle_identifiers: Tensor, segments: int) -> Tuple[Tensor, Tensor, Tensor]:
    assert segments >= 1, "segments must be at least 1"
    x = self.embed(inputs, puzzle_identifiers)
)";
  if (has_rope(config)) source += tables_source("x.size(1)");
  source += cat("    z_H = self.", config.facts().flat_names ? "init_hidden" : "H_init", ".expand(x.size())\n");
  const auto damped = [&](const std::string& z) {
    return config.damping == 0 ? std::string("u")
                               : cat("u * ", literal(1 - config.damping), " + ", z, " * ", literal(config.damping));
  };
  if (!config.facts().cycles) {
    source += cat("    for _s in range(segments):\n        z_H = self.L_level.forward(z_H, x", tables, ")\n");
  } else if (config.facts().one_state) {
    source += cat(R"(    for _s in range(segments):
        for _i in range()",
                  config.H_cycles * config.L_cycles, R"():
            u = self.update(z_H, x)",
                  tables, ")\n            z_H = ", damped("z_H"), "\n");
  } else {
    const char* high = config.facts().h_module ? "H_level" : "L_level";
    source += cat(R"(    z_L = self.L_init.expand(x.size())
    for _s in range(segments):
        for _h in range()",
                  config.H_cycles, R"():
            for _l in range()",
                  config.L_cycles, R"():
                u = self.L_level.forward(z_L, z_H + x)",
                  tables, R"()
                z_L = )",
                  damped("z_L"), R"(
            u = self.)",
                  high, ".forward(z_H, z_L", tables, ")\n            z_H = ", damped("z_H"), "\n");
  }
  source += cat(R"(    logits = torch.narrow(self.lm_head.forward(z_H), 1, )", P, R"(, inputs.size(1))
    q = self.q_head.forward(torch.select(z_H, 1, 0))
    return (logits, torch.select(q, 1, 0), torch.select(q, 1, 1))
)");
  return source;
}

}  // namespace hrm::checkpoint
