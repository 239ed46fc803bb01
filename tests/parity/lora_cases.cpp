// lora: a folder of PEFT beside the model of another case, both as they are read from their folders: logits with the
// adapter, without it and merged, merged weights, gradients of A and B.

#include "hrm/checkpoint/hf_import.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/data/batch.h"
#include "hrm/nn/lora.h"
#include "hrm/nn/parameter.h"
#include "hrm/objectives/language.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using models::DecoderLm;
using nlohmann::json;

struct Adapted {
  std::shared_ptr<DecoderLm> model;
  std::unique_ptr<nn::LoraSet> lora;
};

Adapted load(const Case& loaded, at::ScalarType dtype) {
  const std::filesystem::path base = loaded.folder.parent_path() / loaded.json.at("config").at("base");
  const models::DecoderOptions options =
      checkpoint::decoder_options_of(read_hf_config(base), loaded.at("input_ids").size(1));
  Adapted adapted{.model = std::make_shared<DecoderLm>(options, device()), .lora = nullptr};
  checkpoint::load_hf_weights(SafetensorsSet(base), options, *adapted.model);
  const PeftConfig config = checkpoint::read_peft_config(loaded.folder);
  adapted.lora = std::make_unique<nn::LoraSet>(
      *adapted.model,
      nn::LoraOptions{.rank = config.r, .alpha = config.alpha, .rslora = config.rslora, .targets = config.targets},
      device());
  checkpoint::load_peft(loaded.folder, *adapted.lora);
  nn::keep_frozen_as(*adapted.model, dtype);
  adapted.model->build_parameters(dtype);
  return adapted;
}

at::Tensor logits_of(const Case& loaded, DecoderLm& model) {
  const at::NoGradGuard no_grad;
  const at::Tensor mask = loaded.at("attention_mask").to(device()).unsqueeze(-1);
  return model.logits(model.forward({.ids = loaded.at("input_ids").to(device())}).hidden).to(at::kFloat) * mask;
}

Tolerance stated(const Case& loaded, const char* what) {
  const json& values = loaded.json.at("tolerance").at(what);
  return {.rtol = values.at("rtol"), .atol = values.at("atol")};
}

void check_gradients(const Case& loaded, const Adapted& adapted) {
  const at::Tensor ids = loaded.at("input_ids").to(device()), given = loaded.at("labels").to(device());
  const int64_t length = ids.size(1);
  const at::Tensor labels = at::full_like(ids, data::kIgnoreLabel);
  labels.narrow(1, 0, length - 1).copy_(given.narrow(1, 1, length - 1));
  const models::LanguageOutput output = adapted.model->forward({.ids = ids});
  const objectives::LanguageLoss loss = objectives::language_loss(*adapted.model, output, labels, {.chunk = 7});
  expect_close("loss", loss.loss, loaded.at("loss"), stated(loaded, "logits"));
  loss.loss.backward();
  const auto wanted = loaded.group("grad.base_model.model.");
  size_t compared = 0;
  // A gradient stands in the buffer of the parameter that the pair is a view of, at the same place.
  for (const nn::LoraAdapter::Pair& pair : adapted.lora->pairs()) {
    for (const auto& [part, view] : {std::pair{".lora_A.weight", pair.A}, std::pair{".lora_B.weight", pair.B}}) {
      const auto want = wanted.find(pair.name + part);
      if (want == wanted.end()) continue;
      for (const auto& item : adapted.model->named_parameters()) {
        if (!item.value().is_alias_of(view) || !item.value().grad().defined()) continue;
        const auto* first = static_cast<const float*>(item.value().const_data_ptr());
        const int64_t offset = static_cast<const float*>(view.const_data_ptr()) - first;
        if (offset < 0 || offset >= item.value().numel()) continue;
        expect_close("grad." + want->first, item.value().grad().narrow(0, offset / view.size(1), view.size(0)),
                     want->second, stated(loaded, "grads"));
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, wanted.size()) << "gradients that were not found";
}

void check_merged(const Case& loaded, const Adapted& adapted) {
  adapted.lora->merge();
  size_t compared = 0;
  for (const auto& [name, want] : loaded.group("merged.")) {
    for (const auto& item : adapted.model->named_modules()) {
      auto* has = dynamic_cast<nn::HasAdaptableLinears*>(item.value().get());
      if (has == nullptr || !name.starts_with(item.key() + ".")) continue;
      for (const nn::AdaptableLinear& layer : has->adaptable_linears()) {
        int64_t row = 0;
        for (const nn::LoraPart& part : layer.parts) {
          if (name == item.key() + "." + part.name + ".weight") {
            const nn::WithLoraMode merged(*adapted.lora, nn::LoraMode::merged);
            expect_close("merged." + name, layer.linear->compute_weight().narrow(0, row, part.rows), want,
                         stated(loaded, "merged"));
            ++compared;
          }
          row += part.rows;
        }
      }
    }
  }
  EXPECT_EQ(compared, loaded.group("merged.").size()) << "merged weights that were not found";
}

void check_lora(const Case& loaded) {
  const Tolerance tolerance = stated(loaded, "logits");
  const Adapted adapted = load(loaded, at::kFloat);
  expect_close("logits", logits_of(loaded, *adapted.model), loaded.at("logits"), tolerance);
  {
    const nn::WithLoraMode off(*adapted.lora, nn::LoraMode::off);
    const at::Tensor base = logits_of(loaded, *adapted.model);
    expect_close("logits_base", base.slice(1, 0, base.size(1), 3), loaded.at("logits_base"), tolerance);
  }
  check_gradients(loaded, adapted);
  check_merged(loaded, adapted);
  {
    const nn::WithLoraMode merged(*adapted.lora, nn::LoraMode::merged);
    expect_close("merged logits", logits_of(loaded, *adapted.model), loaded.at("logits"), tolerance);
  }
  const Adapted low = load(loaded, at::kBFloat16);
  expect_within_twice("bf16.logits", logits_of(loaded, *low.model), loaded.at("logits"),
                      loaded.json.at("bf16_error_vs_f32"));
}

const RegisterKind kLora("lora", check_lora);

}  // namespace
}  // namespace hrm::parity
