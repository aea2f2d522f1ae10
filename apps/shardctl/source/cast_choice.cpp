#include "apps/shardctl/source/cast_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/request/command_text.h"
#include "formats/parts/quantization/config.h"
#include "libshard/catalog/selection/casts.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/io/paths.h"
#include "libshard/job/file_holders.h"

namespace shard::app {

QuantizationFacts facts_beside(const Session& session, const OpenSource& source) {
  if (source.paths.empty()) return {};
  const SourceStore& store = source_store(session);
  const std::string& path = source.paths.front();
  return read_quantization(store, store.status(path).kind == FileKind::kFolder ? path : parent_path(path));
}

std::vector<std::string> checked_casts(const Session& session, const SelectionOptions& select, const OpenSource& source,
                                       std::span<const SelectedTensor> tensors, bool converts_all) {
  if (!converts_all && select.cast.empty()) return {};
  try {
    return check_casts(source.catalog(), tensors, facts_beside(session, source),
                       converts_all ? LoneFloats::kRefuse : LoneFloats::kConvert);
  } catch (const QuantizedCast& refused) {
    Error error(refused);
    if (refused.globs().empty()) throw Error(error.hint("leave such tensors as they are with --cast 'GLOB=keep'"));
    std::string words;
    for (const std::string& glob : refused.globs()) {
      words += fmt::format("{}--cast {}", words.empty() ? "" : " ", shell_quoted(glob + "=keep"));
    }
    throw Error(error.hint(repeat_command(session.command.arguments, words)));
  }
}

namespace {

/// Each weight is computed by a rank that holds the file of its codes, so that rank must hold the scales too.
void check_operands_together(const ComputedReader& reader, const GroupStore& parts) {
  const FileHolders holders = find_holders(reader, parts);
  for (std::size_t i = 0; i < reader.formulas().size(); ++i) {
    const std::vector<std::uint32_t> files = reader.files_of(i);
    const auto is_elsewhere = [&](std::uint32_t file) { return holders.of(file) != holders.of(files.front()); };
    const auto other = std::ranges::find_if(files, is_elsewhere);
    if (other == files.end()) continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("cannot dequantize '{}': its parts are in files of different ranks", reader.formulas()[i].name))
        .of_tensor(reader.formulas()[i].name)
        .in_file(reader.catalog().files[*other].path)
        .hint("drop --local-input, or gather the quantized checkpoint first");
  }
}

}  // namespace

void dequantize(const Session& session, DType dtype, OpenSource& source, Findings& findings, Log& log) {
  const std::size_t before = source.catalog().tensors.size();
  source.reader = dequantized(std::move(source.reader), dtype, facts_beside(session, source), findings);
  const auto* const computed = dynamic_cast<const ComputedReader*>(source.reader.get());
  if (session.peer_store != nullptr && computed != nullptr) check_operands_together(*computed, *session.peer_store);
  log.info(
      fmt::format("dequantized to {}: {} tensors of {}", dtype_name(dtype), source.catalog().tensors.size(), before));
}

}  // namespace shard::app
