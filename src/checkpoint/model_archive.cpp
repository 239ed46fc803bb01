#include "checkpoint/model_archive.h"

#include <torch/csrc/api/include/torch/serialize/output-archive.h>

#include <exception>

#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

// One module of the tree that the dotted names span.
struct Node {
  std::map<std::string, Node> modules;
  std::vector<std::pair<std::string, const ArchiveEntry*>> tensors;
};

void write(const Node& node, torch::serialize::OutputArchive& archive) {
  for (const auto& [name, entry] : node.tensors) {
    at::Tensor host = host_tensor(entry->tensor);
    // Only floating-point tensors can be marked as trainable; detach() so that the mark does not reach the original.
    if (entry->parameter && host.is_floating_point()) host = host.detach().set_requires_grad(true);
    archive.write(name, host, /*is_buffer=*/!entry->parameter);
  }
  for (const auto& [name, child] : node.modules) {
    torch::serialize::OutputArchive nested(archive.compilation_unit());
    write(child, nested);
    archive.write(name, nested);
  }
}

}  // namespace

void write_model_archive(const std::vector<ArchiveEntry>& entries,
                         const std::function<void(std::span<const std::byte>)>& sink) {
  Node root;
  for (const ArchiveEntry& entry : entries) {
    Node* node = &root;
    size_t start = 0;
    for (size_t dot; (dot = entry.name.find('.', start)) != std::string::npos; start = dot + 1) {
      node = &node->modules[entry.name.substr(start, dot - start)];
    }
    node->tensors.emplace_back(entry.name.substr(start), &entry);
  }
  torch::serialize::OutputArchive archive;
  write(root, archive);
  // Torch's writer ends the process when its sink fails, so it never does: after an error it takes the rest in silence.
  std::exception_ptr error;
  archive.save_to([&](const void* data, size_t size) {
    try {
      if (!error) sink({static_cast<const std::byte*>(data), size});
    } catch (...) {
      error = std::current_exception();
    }
    return size;
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace hrm::checkpoint
