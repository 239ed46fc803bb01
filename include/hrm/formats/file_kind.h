#pragma once
// Files that stand where another kind of file is needed, recognised by their first bytes.

#include <cstddef>
#include <span>
#include <string>

#include "hrm/base/error.h"

namespace hrm {

// What the bytes are and what to do, as "this is a Parquet file; ...", if possible with the line that converts the file
// `origin`. Recognises pointers of Git LFS, web pages, texts in UTF-16, Parquet, Arrow, Feather, HDF5, GGUF, files of
// torch.save, compressed files and archives. Empty for anything else, such as text and safetensors.
std::string foreign_file(std::span<const std::byte> bytes, const std::string& origin);

// Throws Error(code) as "origin: this is a Parquet file; ..." where the bytes are such a file. For readers of text and
// of tensors, before anything else.
void refuse_foreign_file(std::span<const std::byte> bytes, const std::string& origin, ExitCode code);

}  // namespace hrm
