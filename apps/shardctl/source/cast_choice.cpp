#include "apps/shardctl/source/cast_choice.h"

#include <fmt/format.h>

#include "apps/shardctl/request/command_text.h"
#include "formats/parts/quantization/config.h"
#include "libshard/catalog/selection/casts.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/io/paths.h"

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

void dequantize(const Session& session, DType dtype, OpenSource& source, Log& log) {
  if (session.peer_store != nullptr) {
    throw Error(ErrorCode::kUnsupported, "cannot dequantize files that are spread over ranks")
        .because("a weight and its scales may be in the files of different ranks")
        .hint("drop --local-input, or gather the quantized checkpoint first");
  }
  const std::size_t before = source.catalog().tensors.size();
  source.reader = dequantized(std::move(source.reader), dtype, facts_beside(session, source));
  log.info(
      fmt::format("dequantized to {}: {} tensors of {}", dtype_name(dtype), source.catalog().tensors.size(), before));
}

}  // namespace shard::app
