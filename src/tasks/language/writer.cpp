// A language model that continues text.
#include "hrm/base/error.h"
#include "hrm/tasks/language_inference.h"
#include "hrm/tasks/text_writer.h"
#include "tasks/language/spec.h"

namespace hrm::tasks {
namespace {

// What stands between the prompt and the answer in the rows that a model was trained with.
int64_t begin_of(const data::LanguageMeta& meta) {
  return meta.bos_id >= 0 ? meta.bos_id : meta.eos_id;
}

}  // namespace

TextWriter open_language_writer(const StoredModel& stored, const WriterRequest& request) {
  require(request.chat_template.empty(), ExitCode::usage,
          "--template is for models of transformers; this one reads prompts as they stand");
  require(request.system.empty(), ExitCode::usage,
          "--system is for models of transformers with a chat template; this one reads prompts as they stand");
  const auto owner = std::make_shared<LanguageInference>(open_language_model(stored, request.weights));
  const LanguageInference& loaded = *owner;
  TextWriter writer{.owner = owner};
  require(loaded.text.has_value() || !request.reads_text, ExitCode::checkpoint, "'", loaded.checkpoint.string(),
          "' does not say which tokenizer made the ids that its model was trained with (tokenizer_file in the "
          "meta.json of its data), so text cannot be turned into them");
  writer.model = loaded.model.get();
  if (loaded.text) writer.text = &*loaded.text;
  // A plain decoder that learned from prompts and answers has them in one row.
  writer.joins = !loaded.model->limits().prompted && loaded.config.data.encoder_len > 0;
  writer.begin_id = begin_of(loaded.meta);
  if (loaded.meta.eos_id >= 0) writer.ends.ids.push_back(loaded.meta.eos_id);
  writer.cuda_graphs = loaded.config.runtime.cuda_graphs;
  return writer;
}

}  // namespace hrm::tasks
