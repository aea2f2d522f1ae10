#include "libshard/core/digest.h"

#include <fmt/format.h>

#include <atomic>

#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/block_reader.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/inspect_numbers.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/json_writer.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/exec/parallel.h"
#include "libshard/exec/reading_groups.h"
#include "libshard/ranks/wire.h"

namespace shard::app {
namespace {

std::string digest_of(const OpenSource& source, const SelectedTensor& tensor, HashAlgorithm algorithm,
                      Progress& progress, BufferPool& pool, int threads) {
  BlockReader reader(source.catalog(), *source.reader, tensor, progress, pool, threads);
  Hasher hasher(algorithm);
  const std::int64_t step = reader.block_elements(kBlockBytes);
  for (std::int64_t begin = 0; begin < reader.elements(); begin += step) {
    hasher.update(reader.read(begin, std::min(begin + step, reader.elements())));
  }
  return hasher.finish_hex();
}

/// Gathers the digests of each rank's share on rank 0.
void collect(Group& group, std::size_t first, std::size_t last, std::vector<std::string>& digests) {
  WireWriter own;
  own.number(static_cast<std::int64_t>(first));
  for (std::size_t i = first; i < last; ++i) own.text(digests[i]);
  for (const Bytes& piece : gather(group, own.take(), 0)) {
    WireReader from(piece);
    for (auto i = static_cast<std::size_t>(from.number()); !from.at_end(); ++i) digests.at(i) = from.text();
  }
}

std::vector<std::int64_t> bytes_of_each(const Catalog& catalog, const Selection& selection) {
  std::vector<std::int64_t> bytes;
  for (const SelectedTensor& tensor : selection.tensors) {
    bytes.push_back(packed_bytes(element_count(catalog.tensors[tensor.source].shape), tensor.dtype));
  }
  return bytes;
}

/// On rank 0 all digests, on other ranks those of the rank's own share.
std::vector<std::string> all_digests(Session& session, const Request& options, const OpenSource& source,
                                     const Selection& selection, Log& log) {
  const HashAlgorithm algorithm = parse_hash_algorithm(options.algorithm);
  std::vector<std::string> digests(selection.tensors.size());
  const auto share = own_share(session, bytes_of_each(source.catalog(), selection));
  const std::span chosen = std::span(selection.tensors).subspan(share.first, share.second - share.first);
  Progress progress;
  BufferPool pool(reading_memory_bytes(session));
  ProgressMeter meter(
      session, log, "digest", [&] { return progress.bytes_read.load(); }, progress.others_bytes);
  meter.set_total(totals(source.catalog(), selection).logical_bytes);
  on_all_ranks(session, progress.bytes_read, progress.others_bytes, meter.awaited(), [&](const std::stop_token& stop) {
    const std::vector<std::uint32_t> tensors = source_indices(chosen);
    source.reader->locate(tensors);
    const std::vector<std::vector<std::size_t>> groups = reading_groups(source.catalog(), tensors);
    for_each_index(groups.size(), worker_count(session), stop, [&]() -> IndexWorker {
      return [&](std::size_t group) {
        for (const std::size_t i : groups[group]) {
          digests[share.first + i] = digest_of(source, chosen[i], algorithm, progress, pool, worker_count(session));
        }
      };
    });
  });
  if (session.group->size() > 1) collect(*session.group, share.first, share.second, digests);
  return digests;
}

/// Over the lines `name TAB dtype TAB d0,d1,... TAB digest LF` of all tensors, sorted by name.
std::string checkpoint_digest(const Catalog& catalog, const Selection& selection,
                              const std::vector<std::string>& digests, HashAlgorithm algorithm) {
  Hasher hasher(algorithm);
  std::string line;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const SelectedTensor& tensor = selection.tensors[i];
    line.assign(tensor.name).append("\t").append(dtype_name(tensor.dtype)).append("\t");
    const Dims shape = catalog.tensors[tensor.source].shape;
    for (int d = 0; d < shape.size(); ++d) line.append(d == 0 ? "" : ",").append(std::to_string(shape[d]));
    line.append("\t").append(digests[i]).append("\n");
    hasher.update(line);
  }
  return hasher.finish_hex();
}

void print_json(Session& session, const Request& options, const Catalog& catalog, const Selection& selection,
                const std::vector<std::string>& digests, const std::string& checkpoint) {
  JsonWriter json(session.out);
  json.begin_object();
  json.key("schema"), json.string("shardctl.digest/1");
  json.key("algorithm"), json.string(options.algorithm);
  json.key("checkpoint"), json.string(checkpoint);
  json.key("tensors"), json.begin_array();
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const SelectedTensor& tensor = selection.tensors[i];
    json.line(2);
    json.begin_object();
    json.key("name"), json.string(tensor.name);
    json.key("dtype"), json.string(dtype_name(tensor.dtype));
    json.key("shape"), json.numbers(catalog.tensors[tensor.source].shape);
    json.key("digest"), json.string(digests[i]);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  json.end_line();
}

}  // namespace

int run_digest(Session& session, const Request& options) {
  if (session.end_at_once) session.end_at_once();
  const auto log = open_log(session);
  ObjectFaults faults;
  OpenSource source;
  Selection selection;
  std::vector<std::string> warnings;
  on_all_ranks(session, "catalog", [&] {
    source = open_source(session, options.source, *log, {.selection = &options.selection, .findings = &faults});
    SelectionOptions tensors_only = options.selection;
    tensors_only.keep_objects = false;
    selection = choose(source.catalog(), tensors_only);
    warnings = checked_casts(session, options, source, selection.tensors);
    check_objects(source.catalog(),
                  {.selection = tensors_only, .arguments = options.arguments, .done = "hashed", .faults = &faults});
  });
  warn_of_source(session, source);
  if (is_rank_zero(session)) warn_all(session, warnings);
  const std::vector<std::string> digests = all_digests(session, options, source, selection, *log);
  expect_unchanged_source(session);
  if (!is_rank_zero(session)) return 0;
  const std::string checkpoint =
      checkpoint_digest(source.catalog(), selection, digests, parse_hash_algorithm(options.algorithm));
  if (session.common.json) {
    print_json(session, options, source.catalog(), selection, digests, checkpoint);
    return 0;
  }
  TextSink sink(session.out);
  for (std::size_t i = 0; i < digests.size(); ++i) {
    sink.line(fmt::format("{}  {}", digests[i], selection.tensors[i].name));
  }
  sink.line(fmt::format("checkpoint {}", checkpoint));
  return 0;
}

}  // namespace shard::app
