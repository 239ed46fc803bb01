#include "hrm/checkpoint/import.h"

#include <map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/official.h"
#include "hrm/formats/tensor_names.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
OfficialModel read_official(const std::filesystem::path& file, const std::string& from,
                            const config::ModelConfig& config) {
  require(from == "hrm" || from == "trm" || from == "urm", ExitCode::usage, "'", printable(from),
          "' is not a model that can be imported; use hrm, trm or urm");
  require(name_of(config.arch) == from, ExitCode::usage, "--from ", from, " needs model.arch=", from,
          ", but the configuration says ", config.arch);
  const TorchArchive archive(file, ExitCode::checkpoint);
  const std::string source = file.string();
  // The loss head holds the model, which holds its inner network; torch.compile and DDP wrap the whole.
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& entry : state_dict_of(archive, source, ExitCode::checkpoint)) {
    const at::Tensor tensor = tensor_from_bytes(entry.dtype, entry.shape, entry.bytes);
    require(tensor.is_floating_point(), ExitCode::checkpoint, source, ": the entry '", printable(entry.name),
            "' holds ", name(entry.dtype), " values, weights are floating-point");
    require(tensors.emplace(core_tensor_name(entry.name), tensor.to(at::kFloat)).second, ExitCode::checkpoint, source,
            ": the entry '", printable(entry.name), "' is there twice, under the names of several wrappers");
  }
  OfficialModel model;
  model.weights.raw.assign(tensors.begin(), tensors.end());
  model.dims = check_weights(config, model.weights.raw, source);
  return model;
}

}  // namespace hrm::checkpoint
