#include "apps/shardctl/verbs/computed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/source.h"
#include "formats/registry.h"
#include "libshard/catalog/quantized.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/exec/tensor_reader.h"
#include "libshard/io/small_text.h"
#include "libshard/manifest/manifest.h"

namespace shard::app {
namespace {

/// Runs `work` for this rank's share of `count` indices, on its threads. A failure of the source is a finding.
void for_own_share(const Session& session, std::size_t count, VerifyFindings& found, const std::stop_token& stop,
                   const std::function<void(std::size_t)>& work) {
  const auto rank = static_cast<std::size_t>(session.group->rank()),
             ranks = static_cast<std::size_t>(session.group->size());
  const std::size_t own = (count + ranks - 1 - rank) / ranks;
  for_each_index(own, worker_count(session), stop, [&]() -> IndexWorker {
    return [&](std::size_t i) {
      try {
        work(i * ranks + rank);
      } catch (const Error& error) {
        take_finding(found, error);
      }
    };
  });
}

void read_all(const Reader& reader, std::uint32_t index, std::int64_t memory_bytes, const std::stop_token& stop) {
  constexpr std::int64_t kBlock = 256 << 10;
  const Tensor& tensor = reader.catalog().tensors[index];
  const std::int64_t elements = checked_numel(tensor.shape);
  Progress progress;
  BufferPool pool(memory_bytes);
  TensorReader elements_of(reader.catalog(), reader, index, progress, throwing_findings(), &pool);
  std::vector<std::byte> block;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    check_stop(stop);
    const std::int64_t end = std::min(elements, begin + kBlock);
    block.resize(static_cast<std::size_t>(checked_bytes(end - begin, tensor.dtype)));
    elements_of.read(begin, end, block);
  }
}

std::int64_t memory_of_each(const Session& session) {
  return std::max<std::int64_t>(1 << 20, max_memory_bytes(session) / worker_count(session));
}

/// The tensor of `plain` for each weight; kNoIndex if it is not selected, or is missing or has a different shape, which
/// are findings.
std::vector<std::uint32_t> match(const PackAgain& packed, const Catalog& plain, const SelectionOptions& select,
                                 VerifyFindings& found) {
  const auto is_selected = name_filter(select);
  std::vector<std::uint32_t> tensors(packed.size(), kNoIndex);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const Formula& weight = packed.weight(i);
    if (!is_selected(weight.name)) continue;
    const Tensor* const tensor = plain.find(weight.name);
    const bool is_there = tensor != nullptr && !tensor->damaged;
    const bool fits = is_there && std::ranges::equal(tensor->shape, weight.shape) && is_plain_float(tensor->dtype);
    if (fits) tensors[i] = plain.index_of(*tensor);
    if (fits) continue;
    Error error(ErrorCode::kCorruption, is_there ? fmt::format("'{}' is not the quantized weight", weight.name)
                                                 : fmt::format("the quantized weight '{}' is missing", weight.name));
    error.of_tensor(weight.name).expected(fmt::format("floating-point numbers {}", to_string(weight.shape)));
    if (is_there) error.found(fmt::format("{} {}", dtype_name(tensor->dtype), to_string(tensor->shape.span())));
    found.report(error.of_kind(is_there ? FindingKind::kShapeMismatch : FindingKind::kGap));
  }
  return tensors;
}

/// A command for --against with a checkpoint of plain weights.
std::string hint_for_plain(const Session& session, const Request& request) {
  const std::string manifest = manifest_beside(source_store(session), {request.against});
  if (!manifest.empty()) return "for its manifest: --against " + shell_quoted(manifest);
  if (request.read.paths.size() != 1) return "compare values with 'shardctl diff'";
  return fmt::format("shardctl diff {} {}", shell_quoted(request.read.paths.front()), shell_quoted(request.against));
}

/// Opens the quantized checkpoint of --against.
PackAgain open_packed(const Session& session, const Request& request, Log& log) {
  ReadRequest read;
  read.paths = {request.against};
  bool is_plain = false;
  try {
    OpenSource source = open_source(session, read, log, {.of_other_ranks = true});
    const QuantizationFacts facts = facts_beside(source_store(session), source);
    is_plain = find_quantized(source.catalog(), facts).modules.empty();
    return PackAgain(std::move(source.reader), facts);
  } catch (Error& error) {
    const bool is_unknown = error.code() == ErrorCode::kCorruption && !error.kind();
    if (error.hint().empty() && error.suggestions().empty()) {
      if (is_plain) error.hint(hint_for_plain(session, request));
      if (is_unknown) error.hint("--against takes a manifest or a quantized checkpoint");
    }
    throw error.in_file(request.against);
  }
}

}  // namespace

bool names_checkpoint(const SourceStore& store, const std::string& path) {
  if (path.empty()) return false;
  if (path.ends_with(".index.json") || !format_of_suffix(path).empty() || store.is_folder(path)) return true;
  constexpr std::int64_t kSchemaBytes = 64;  // A manifest begins with its schema.
  return store.is_file(path) &&
         front_of(*store.open(path), kSchemaBytes).find("shardctl.manifest/") == std::string::npos;
}

std::int64_t compute_weights(const Session& session, const Request& request, VerifyFindings& found, Log& log,
                             const std::stop_token& stop) {
  OpenSource source;
  try {
    source = open_source(session, request.read, log, {.may_lack_ranks = true, .findings = &found});
  } catch (const Error& error) {
    take_finding(found, error);
    return 0;
  }
  const auto* const computed = dynamic_cast<const ComputedReader*>(source.reader.get());
  if (computed == nullptr) return 0;
  const Catalog& catalog = source.catalog();
  std::vector<std::uint32_t> tensors;
  const auto is_selected = name_filter(request.select);
  for (const Formula& formula : computed->formulas()) {
    if (!is_selected(formula.name)) continue;
    tensors.push_back(catalog.index_of(*catalog.find(formula.name)));
  }
  source.reader->locate(tensors);
  for_own_share(session, tensors.size(), found, stop,
                [&](std::size_t i) { read_all(*source.reader, tensors[i], memory_of_each(session), stop); });
  return std::ssize(tensors);
}

PackedCounts pack_again(const Session& session, const Request& request, Reader& plain, VerifyFindings& found, Log& log,
                        const std::stop_token& stop) {
  const PackAgain packed = open_packed(session, request, log);
  const std::vector<std::uint32_t> tensors = match(packed, plain.catalog(), request.select, found);
  std::vector<std::uint32_t> located = tensors;
  std::erase(located, kNoIndex);
  std::ranges::sort(located);
  plain.locate(located);
  std::vector<PackedCounts> counts(packed.size());
  for_own_share(session, packed.size(), found, stop, [&](std::size_t i) {
    if (tensors[i] == kNoIndex) return;
    counts[i] = packed.compare(i, plain, tensors[i], memory_of_each(session), stop);
    if (counts[i].same_codes == counts[i].codes) return;
    found.report(Error(ErrorCode::kCorruption, fmt::format("{} of {} codes do not come back",
                                                           counts[i].codes - counts[i].same_codes, counts[i].codes))
                     .of_tensor(packed.weight(i).name)
                     .of_kind(FindingKind::kReplicaMismatch));
  });
  PackedCounts sum;
  for (const PackedCounts& each : counts) sum += each;
  return sum;
}

}  // namespace shard::app
