#pragma once
// What a run keeps while it is inside of blocks, loops and calls (formats/jinja/run.h).

#include "formats/jinja/run.h"
#include "hrm/base/text.h"

namespace hrm::jinja {

// Statements, expressions and macros inside one another, each of which is a few calls of ours.
inline constexpr int kMostCalls = 600;

struct Run::Space : Object {
  Values items;
};

struct Run::Loop : Object {
  Values items;
  int64_t at = 0, size = 0, depth = 0;
  Value before, behind;
  std::vector<Value> changed;
};

struct Run::Macro : Object {
  const Statement* definition = nullptr;
  Scope* scope = nullptr;
};

// A scope of its own until the end of a block.
class Run::Inner {
 public:
  Inner(Run& run, Scope& parent) : run_(run) {
    if (run.free_scopes_.empty()) {
      run.scopes_.emplace_back();
      scope_ = &run.scopes_.back();
    } else {
      scope_ = run.free_scopes_.back();
      run.free_scopes_.pop_back();
    }
    scope_->parent = &parent;
  }
  ~Inner() {
    if (scope_->is_kept) return;
    scope_->names.clear();
    run_.free_scopes_.push_back(scope_);
  }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;
  Scope& scope() { return *scope_; }

 private:
  Run& run_;
  Scope* scope_;
};

class Run::Deeper {
 public:
  explicit Deeper(Run& run) : run_(run) {
    if (++run_.depth_ > kMostCalls) {
      --run_.depth_;
      throw Fault(cat("calls and blocks are nested more than ", kMostCalls, " deep"));
    }
  }
  ~Deeper() { --run_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Run& run_;
};

}  // namespace hrm::jinja
