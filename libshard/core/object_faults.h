/// \file Errors that prevent single objects or tensors of a checkpoint from being read.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"

namespace shard {

/// A sink for a reader that continues without unreadable objects, and past gaps and overlaps of tensors that its caller
/// does not read. It stores the findings about those objects by name, and throws everything else.
class ObjectFaults final : public Findings {
 public:
  void report(const Error& finding) override {
    const bool is_of_chunks = finding.kind() == FindingKind::kGap || finding.kind() == FindingKind::kOverlap;
    if (is_of_chunks && is_left_out_ && !finding.tensor().empty() && is_left_out_(finding.tensor())) return;
    throw Error(finding);
  }
  /// Sets the names of the tensors that the caller does not read.
  void leave_out(std::function<bool(std::string_view name)> is_left_out) { is_left_out_ = std::move(is_left_out); }
  void report_object(std::string_view name, const Error& fault) { faults_.try_emplace(std::string(name), fault); }
  /// Null if nothing was reported about it.
  const Error* find(std::string_view name) const { return faults_.find(name); }
  bool empty() const { return faults_.empty(); }
  /// In the order of the reports.
  auto all() const { return faults_.entries(); }
  /// \pre not empty
  const Error& first() const { return faults_.entries().front().value; }

 private:
  HashMap<std::string, Error> faults_;
  std::function<bool(std::string_view name)> is_left_out_;
};

/// Reports a fault of one object. Sinks other than ObjectFaults treat it as any finding.
inline void report_object(Findings& findings, std::string_view name, const Error& fault) {
  if (auto* const faults = dynamic_cast<ObjectFaults*>(&findings)) return faults->report_object(name, fault);
  findings.report(fault);
}

/// Whether the sink has a fault of that object.
inline bool has_fault(Findings& findings, std::string_view name) {
  const auto* const faults = dynamic_cast<ObjectFaults*>(&findings);
  return faults != nullptr && faults->find(name) != nullptr;
}

}  // namespace shard
