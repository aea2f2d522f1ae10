#include "libshard/compare/digest.h"

#include <fmt/format.h>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/inspect_numbers.h"
#include "apps/shardctl/source/object_check.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/core/digest.h"
#include "libshard/core/json_writer.h"

namespace shard::app {
namespace {

/// All digests on rank 0; on other ranks, the digests of the rank's share.
std::vector<std::string> all_digests(Session& session, HashAlgorithm algorithm, const OpenSource& source,
                                     const Selection& selection, Log& log) {
  Progress progress;
  ProgressMeter meter(
      session, log, "digest", [&] { return progress.bytes_read.load(); }, progress.others_bytes);
  meter.set_total(totals(source.catalog(), selection).logical_bytes);
  DigestPass pass(*source.reader, selection, algorithm, pass_options(session), *session.group, progress);
  on_all_ranks(session, progress.bytes_read, progress.others_bytes, meter.awaited(),
               [&](const std::stop_token& stop) { pass.read(stop); });
  return pass.finish();
}

void print_json(Session& session, const std::string& algorithm, const Catalog& catalog, const Selection& selection,
                const std::vector<std::string>& digests, const std::string& checkpoint) {
  JsonWriter json(session.out);
  json.document("shardctl.digest/1", [&] {
    json.key("algorithm"), json.string(algorithm);
    json.key("checkpoint"), json.string(checkpoint);
    json.key("tensors"), json.object_lines(2, selection.tensors, [&](const SelectedTensor& tensor) {
      json.key("name"), json.string(tensor.name);
      json.key("dtype"), json.string(dtype_name(tensor.dtype));
      json.key("shape"), json.numbers(catalog.tensors[tensor.source].shape);
      json.key("digest"), json.string(digests[static_cast<std::size_t>(&tensor - selection.tensors.data())]);
    });
  });
}

}  // namespace

int run_digest(Session& session, const Request& request) {
  if (session.end_at_once) session.end_at_once();
  const auto log = open_log(session);
  const HashAlgorithm algorithm = parse_hash_algorithm(request.algorithm);
  ObjectFaults faults;
  OpenSource source;
  Selection selection;
  std::vector<std::string> warnings;
  on_all_ranks(session, "catalog", [&] {
    source = open_source(session, request.read, *log, {.selection = &request.select, .findings = &faults});
    SelectionOptions tensors_only = request.select;
    tensors_only.keep_objects = false;
    selection = choose(source.catalog(), tensors_only);
    warnings = checked_casts(session, request.select, source, selection.tensors);
    check_objects(
        source.catalog(),
        {.selection = tensors_only, .arguments = session.command.arguments, .done = "hashed", .faults = &faults});
  });
  warn_of_source(session, source);
  if (is_rank_zero(session)) warn_all(session, warnings);
  const std::vector<std::string> digests = all_digests(session, algorithm, source, selection, *log);
  expect_unchanged_source(session);
  if (!is_rank_zero(session)) return 0;
  const std::string checkpoint = checkpoint_digest(source.catalog(), selection, digests, algorithm);
  if (session.common.json) {
    print_json(session, request.algorithm, source.catalog(), selection, digests, checkpoint);
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
