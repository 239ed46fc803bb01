#pragma once
// The built-in tasks, in the order of the help. Private to tasks/, and free of torch.
//
// row(NAME) stands for config::NAME_settings(), in a settings.cpp, and tasks::NAME_spec(), in a spec.cpp.

#define HRM_BUILTIN_TASKS(row) row(puzzle) row(language) row(polychromic) row(contrastive)
