// A causal language model that answers.
#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/formats/chat_record.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/text_writer.h"
#include "tasks/causal/spec.h"

namespace hrm::tasks {

// A checkpoint of task polychromic, or a folder of transformers or PEFT: prompts are made as those of the training
// were.
TextWriter open_causal_writer(const StoredModel& stored, const WriterRequest& request) {
  require(!stored.foreign || request.weights != "ema", ExitCode::checkpoint, "'", stored.folder.string(),
          "' holds no averaged weights, as checkpoints may; leave --weights out");
  std::vector<std::string> overrides;
  if (!request.chat_template.empty()) overrides.push_back("chat.template=" + request.chat_template);
  const StoredModel asked = with_overrides(stored, overrides);
  const auto owner = std::make_shared<CausalInference>(stored.foreign ? open_model_folder(asked)
                                                                      : open_causal_checkpoint(asked, request.weights));
  CausalInference& loaded = *owner;
  TextWriter writer{.owner = owner};
  if (loaded.lm.lora) {
    loaded.lm.lora->merge();
    loaded.lm.lora->set_mode(nn::LoraMode::merged);
  }
  writer.model = loaded.lm.model.get();
  writer.text = &loaded.chat->encoder();
  using config::ChatTemplateKind;
  const ChatTemplateKind name = loaded.chat->name();
  const bool has_roles =
      name == ChatTemplateKind::model || name == ChatTemplateKind::chatml || name == ChatTemplateKind::llama3;
  require(request.system.empty() || has_roles, ExitCode::usage, "--system: the chat template ", name,
          " has no place for it, as model, chatml and llama3 have; leave it out");
  // Of a record what makes the prompt alone: responses, ids and values need not be there.
  const config::ChatConfig& chat = loaded.config.chat;
  const ChatFields fields{.prompt = chat.prompt_field,
                          .response = "",
                          .answers = "",
                          .tools = chat.tools_field,
                          .id = "",
                          .value = "",
                          .texts = {}};
  writer.chat.emplace(*loaded.chat, fields, chat.instruction);
  writer.begin_id = writer.text->meta.bos_id;
  writer.ends = answer_ends(*loaded.chat, loaded.lm.facts.eos_ids);
  writer.vocabulary = std::min(writer.text->meta.vocab_size, loaded.lm.facts.vocab_size);
  writer.cuda_graphs = loaded.config.runtime.cuda_graphs;
  return writer;
}

}  // namespace hrm::tasks
