#pragma once
// Recognizes files of the wrong kind by their first bytes.

#include <cstddef>
#include <span>
#include <string>

#include "hrm/base/error.h"

namespace hrm {

// Says what the file is and what to do: "this is a Parquet file; ...". If possible, the text includes the command that
// converts the file `origin`. Recognizes Git LFS pointers, web pages, UTF-16 texts, Parquet, Arrow, Feather, HDF5,
// GGUF, torch.save files, compressed files and archives. Empty for anything else, such as text and safetensors.
std::string foreign_file(std::span<const std::byte> bytes, const std::string& origin);

// Throws Error(code) as "origin: this is a Parquet file; ..." if the bytes are such a file. Readers of text and of
// tensors call it first.
void refuse_foreign_file(std::span<const std::byte> bytes, const std::string& origin, ExitCode code);

}  // namespace hrm
