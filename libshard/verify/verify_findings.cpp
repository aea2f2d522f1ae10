#include "libshard/verify/verify_findings.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "libshard/io/paths.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

auto order_of(const Finding& finding) {
  const Error& error = finding.error;
  return std::tuple(finding.severity, std::string_view(error.file()), std::string_view(error.tensor()), *error.kind(),
                    std::string_view(error.what()));
}

/// Whether the system did not return the bytes (permission, EIO). This is not a finding about the checkpoint.
bool is_withheld(const Error& error) { return error.code() == ErrorCode::kNotFound && !error.kind(); }

}  // namespace

void VerifyFindings::add(const Error& finding, Severity severity) {
  if (is_unread(finding)) severity = Severity::kUnread;
  const bool is_error = severity == Severity::kError;
  if (is_error && is_withheld(finding)) throw Error(finding);
  if (is_dropped(finding)) return;
  if (is_error) look_at(finding.file());
  const std::scoped_lock lock(mutex_);
  const std::string file = shown_from(sources_, finding.file());
  if (explained_.contains(file)) return;
  has_errors_ = has_errors_ || is_error;
  if (all_.size() == kMost) {
    ++left_out_;
    return;
  }
  Error error(finding);
  error.of_kind(finding.kind().value_or(FindingKind::kBadHeader)).replace_file(file);
  if (severity != Severity::kUnread) mentioned_.insert(file);
  all_.push_back({std::move(error), severity});
}

/// Other kinds may name one tensor of several that suffer: a header, or the end of a file.
bool VerifyFindings::is_dropped(const Error& finding) const {
  if (!is_chosen_ || finding.tensor().empty() || is_chosen_(finding.tensor())) return false;
  const std::optional<FindingKind> kind = finding.kind();
  return kind == FindingKind::kCrcMismatch || kind == FindingKind::kReplicaMismatch || kind == FindingKind::kGap ||
         is_unread(finding);
}

void VerifyFindings::choose(std::function<bool(std::string_view name)> is_chosen) {
  const std::scoped_lock lock(mutex_);
  is_chosen_ = std::move(is_chosen);
  std::erase_if(all_, [this](const Finding& each) { return is_dropped(each.error); });
  has_errors_ = left_out_ > 0 || std::ranges::any_of(all_, &Finding::is_error);
}

void VerifyFindings::explain(const Error& finding) {
  {
    const std::scoped_lock lock(mutex_);
    looked_at_.insert(finding.file());
  }
  add(finding, Severity::kError);
  const std::scoped_lock lock(mutex_);
  explained_.insert(shown_from(sources_, finding.file()));
}

/// Runs `look_` without the lock, because it reads the file.
void VerifyFindings::look_at(const std::string& file) {
  if (!look_ || file.empty()) return;
  {
    const std::scoped_lock lock(mutex_);
    if (!looked_at_.insert(file).second) return;
  }
  if (std::optional<Error> why = look_(file)) explain(why->replace_file(file));
}

bool VerifyFindings::mentions(const std::string& file) const {
  const std::scoped_lock lock(mutex_);
  return mentioned_.contains(file);
}

/// The order does not depend on threads or ranks, and the same finding of several ranks appears once.
std::vector<Finding> VerifyFindings::sorted() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Finding> all = all_;
  std::ranges::stable_sort(all, {}, order_of);
  const auto repeated = std::ranges::unique(all, {}, order_of);
  all.erase(repeated.begin(), repeated.end());
  return all;
}

bool VerifyFindings::has_errors() const {
  const std::scoped_lock lock(mutex_);
  return has_errors_;
}

std::optional<Error> VerifyFindings::first_unread() const {
  const std::scoped_lock lock(mutex_);
  const auto unread = std::ranges::find(all_, Severity::kUnread, &Finding::severity);
  return unread == all_.end() ? std::nullopt : std::optional(unread->error);
}

/// Collective. Rank 0 gets the findings of all ranks. The others keep their own.
void VerifyFindings::gather(Group& group) {
  const auto write = [&](WireWriter& own) {
    own.number(static_cast<std::int64_t>(left_out_));
    own.number(has_errors_ ? 1 : 0);
    for (const Finding& each : all_) {
      own.number(static_cast<std::int64_t>(each.severity));
      own.error(each.error);
    }
  };
  const auto read = [&](WireReader& from) {
    left_out_ += static_cast<std::size_t>(from.number());
    has_errors_ = from.number_below(2) == 1 || has_errors_;
    while (!from.at_end()) {
      const auto severity = static_cast<Severity>(from.number_below(3));
      add(from.error(), severity);
    }
  };
  send_to_first(group, write, read);
}

std::function<bool(std::string_view)> chosen_names(const Catalog& catalog,
                                                   std::function<bool(std::string_view)> is_selected) {
  std::vector<bool> has_selected(catalog.storages.size());
  const auto visit = [&](bool selected, const auto& use) {
    for (const Tensor& tensor : catalog.tensors) {
      if (is_selected(tensor.name) != selected) continue;
      for (const Chunk& chunk : catalog.chunks_of(tensor)) use(tensor, catalog.stored_of(chunk).storage);
    }
  };
  visit(true, [&](const Tensor&, std::uint32_t storage) { has_selected[storage] = true; });
  std::set<std::string, std::less<>> others;
  visit(false, [&](const Tensor& tensor, std::uint32_t storage) {
    if (has_selected[storage]) others.emplace(tensor.name);
  });
  return [is_selected = std::move(is_selected), others = std::move(others)](std::string_view name) {
    return is_selected(name) || others.contains(name);
  };
}

void take_finding(Findings& findings, const Error& error) {
  const bool is_finding = error.code() == ErrorCode::kUnsupported || error.code() == ErrorCode::kCorruption ||
                          error.code() == ErrorCode::kNotFound;
  if (!is_finding) throw Error(error);
  findings.report(error);
}

}  // namespace shard
