// Stands in for torch's header of this name while src/pch.h is compiled: torch/nn/module.h only names the two classes,
// but the header brings all of the jit, and each file that uses the precompiled header paid for it again. Files that
// want the classes include <torch/serialize/input-archive.h> or output-archive.h.
#pragma once

namespace torch::serialize {

class InputArchive;
class OutputArchive;

}  // namespace torch::serialize
