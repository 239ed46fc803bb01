// hrm_lm: the prototype language model, its pieces, loss terms and all gradients.

#include "hrm/models/hrm_lm.h"
#include "hrm/objectives/language.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

models::PrototypeOptions prototype_options(const Case& loaded) {
  const json& c = loaded.json.at("config");
  models::PrototypeOptions o;
  o.lm.core = {.width = c.at("D"),
               .h_len = c.at("h_len"),
               .l_len = c.at("l_len"),
               .h_cycles = c.at("h_cycles"),
               .l_steps = c.at("l_steps"),
               .gradient_cycles = c.at("full_grad").get<bool>() ? 0 : 1,
               .halting = c.at("halting")};
  o.lm.bridge = c.at("bridge") == "prefix" ? models::Bridge::prefix : models::Bridge::cross_attention;
  o.lm.prefix_len = c.at("prefix_len");
  o.lm.gate_scale = c.at("gate_scale");
  o.lm.gate_bias = c.at("gate_bias");
  o.vocabulary = c.at("V");
  o.heads = c.at("heads");
  o.enc_layers = c.at("enc_layers");
  o.dec_layers = c.at("dec_layers");
  o.h_layers = c.at("h_layers");
  o.l_layers = c.at("l_layers");
  o.max_prompt = loaded.at("in.encoder_ids").size(1);
  o.max_answer = loaded.at("in.decoder_ids").size(1);
  return o;
}

// Our name of a weight of the case.
std::string our_name(const std::string& name) {
  for (const char* part : {"enc.layers.", "enc.norm."}) {
    if (name.starts_with(part)) return "enc.blocks." + name.substr(4);
  }
  for (const char* part : {"enc.", "dec.", "prompt.", "gate.", "bridge."}) {
    if (name.starts_with(part)) return name;
  }
  return "core." + name;
}

void check_hrm_lm(const Case& loaded) {
  const json& config = loaded.json.at("config");
  const Tolerance tolerance{.rtol = loaded.json.at("tolerance").at("rtol"),
                            .atol = loaded.json.at("tolerance").at("atol")};
  const auto model = models::make_prototype_lm(prototype_options(loaded), device());
  model->initialise(/*seed=*/0, at::kFloat);
  const auto weights = loaded.group("param.");
  {
    const at::NoGradGuard no_grad;
    auto parameters = model->named_parameters();
    EXPECT_EQ(parameters.size(), weights.size());
    for (const auto& [name, value] : weights) {
      at::Tensor* parameter = parameters.find(our_name(name));
      ASSERT_NE(parameter, nullptr) << name;
      ASSERT_EQ(parameter->sizes(), value.sizes()) << name;
      parameter->copy_(value);
    }
  }

  const auto input = [&](const char* name) { return loaded.at(name).to(device()); };
  models::LanguageInputs inputs{.ids = input("in.decoder_ids")};
  inputs.prompt_ids = input("in.encoder_ids");
  inputs.prompt_mask = input("in.encoder_mask");
  inputs.earlier_cycles = true;
  {
    const at::NoGradGuard no_grad;
    at::Tensor gate;
    const models::HrmLmTrace trace = model->reason(inputs, gate);
    const auto compare = [&](const char* name, const at::Tensor& got) {
      expect_close(name, got, loaded.at(name), tolerance);
    };
    // The reference leaves what stands at padded positions open.
    const at::Tensor real = input("in.encoder_mask").unsqueeze(-1);
    expect_close("out.enc", trace.encoded * real, input("out.enc") * real, tolerance);
    compare("out.cls", trace.cls);
    compare("out.prompt", trace.prompt);
    compare("out.z", at::stack(trace.core.z));
    compare("out.H", trace.core.H);
    compare("out.L", trace.core.L);
    compare("out.gate", gate);
    compare("out.bridge", trace.bridge);
    compare("out.memory", trace.memory);
    if (loaded.has("out.halt_p")) compare("out.halt_p", trace.core.halt);
    // With the scale at zero only the bias is left of the gate.
    inputs.gate_warmup = at::zeros({}, at::device(device()));
    model->reason(inputs, gate);
    expect_close("gate in warm-up", gate, at::full_like(gate, config.at("gate_bias").get<double>()), {.atol = 1e-7});
    inputs.gate_warmup = at::ones({}, at::device(device()));
  }

  const models::LanguageOutput output = model->forward(inputs);
  expect_close("out.logits", model->logits(output.hidden), loaded.at("out.logits"), tolerance);
  const objectives::LanguageLoss loss = objectives::language_loss(*model, output, input("in.labels"),
                                                                  {.deep_supervision = config.at("ds_weight"),
                                                                   .halting = config.at("halting_weight"),
                                                                   .halting_target = config.at("halting_target"),
                                                                   .chunk = 4});
  expect_close("out.loss_main", loss.cross_entropy, loaded.at("out.loss_main"), tolerance);
  expect_close("out.loss_ds", loss.deep_supervision, loaded.at("out.loss_ds"), tolerance);
  expect_close("out.loss_halt", loss.halting, loaded.at("out.loss_halt"), tolerance);
  expect_close("out.loss", loss.loss, loaded.at("out.loss"), tolerance);

  loss.loss.backward();
  const auto parameters = model->named_parameters();
  const auto gradients = loaded.group("grad.");
  EXPECT_EQ(gradients.size(), weights.size());
  for (const auto& [name, want] : gradients) {
    expect_close("grad." + name, parameters[our_name(name)].grad(), want, tolerance);
  }
}

const RegisterKind kHrmLm("hrm_lm", check_hrm_lm);

}  // namespace
}  // namespace hrm::parity
