// The one precompiled header of every module that sees torch. Few headers on purpose: torch/torch.h takes twice as
// long for each file that uses it. A file with a custom function includes custom_function.h itself (1 s): here it would
// cost every other file 0.7 s. torch/nn/module.h comes without the jit, which cost every file 1 s (cmake/pch_headers).
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>
