#include "libshard/compute/average.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/shardctl/render/report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/verbs/copy.h"
#include "apps/shardctl/verbs/verbs.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/core/object_faults.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/short_text.h"
#include "libshard/export/model_part.h"

namespace shard::app {
namespace {

std::vector<float> parse_weights(const std::string& text, std::size_t sources) {
  std::vector<float> weights;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    const std::optional<float> weight = parse_number<float>(word);
    if (!weight || !std::isfinite(*weight)) {
      throw usage(fmt::format("--weights {}: '{}' is not a number", text, word)).hint("give numbers such as 0.7,0.3");
    }
    weights.push_back(*weight);
  }
  if (weights.size() == sources) return weights;
  throw usage(fmt::format("--weights has {} for {}", plural(std::ssize(weights), "number"),
                          plural(static_cast<std::int64_t>(sources), "source")))
      .expected(static_cast<std::int64_t>(sources))
      .found(std::ssize(weights))
      .hint("give one weight per source, in the order of the sources");
}

std::vector<float> choose_factors(const AverageRequest& average, std::size_t sources) {
  if (!average.weights.empty()) return parse_weights(average.weights, sources);
  if (average.ema) return moving_average_weights(sources, *average.ema);
  return std::vector<float>(sources, static_cast<float>(1.0 / static_cast<double>(sources)));
}

/// Numbers of skipped tensors and objects, for a note.
struct Skipped {
  std::int64_t tensors = 0, objects = 0;
};

/// One average from the command line to the output.
class Average {
 public:
  Average(Session& session, const CopyRequest& request)
      : session_(session), request_(request), include_(request.select.include), exclude_(request.select.exclude) {}

  int run();

 private:
  OpenSource open(const Session& session, const CopyRequest& request, Log& log);
  bool is_skipped(std::string_view name, const Path& path) const;
  bool takes(const Tensor& tensor) const;
  Skipped count_skipped(const Catalog& first) const;
  void report() const;

  Session& session_;
  const CopyRequest& request_;
  const GlobSet include_, exclude_;
  ObjectFaults faults_;
  Skipped skipped_;
};

int Average::run() {
  CopyVerb verb;
  verb.open = [this](const Session& session, const CopyRequest& request, Log& log) {
    return open(session, request, log);
  };
  verb.faults = &faults_;
  verb.adjust = [this](OpenSource&, Selection&) { report(); };
  return run_copy_verb(session_, request_, verb);
}

bool Average::is_skipped(std::string_view name, const Path& path) const {
  return !request_.averaging.optimizer && is_trainer_state(name, path);
}

bool Average::takes(const Tensor& tensor) const {
  if (is_skipped(tensor.name, tensor.path) || exclude_.matches(tensor.name)) return false;
  return include_.empty() || include_.matches(tensor.name);
}

Skipped Average::count_skipped(const Catalog& first) const {
  const auto is_skipped_entry = [this](const auto& entry) { return is_skipped(entry.name, entry.path); };
  return {std::ranges::count_if(first.tensors, is_skipped_entry),
          std::ranges::count_if(first.objects, is_skipped_entry)};
}

OpenSource Average::open(const Session& session, const CopyRequest& request, Log& log) {
  std::vector<OpenSource> sources;
  std::vector<std::shared_ptr<ObjectFaults>> others;  // Only the first source's objects are written.
  for (std::size_t i = 0; i < request.read.paths.size(); ++i) {
    ReadRequest one = request.read;
    one.paths = {request.read.paths[i]};
    others.push_back(std::make_shared<ObjectFaults>());
    sources.push_back(open_source(
        session, one, log,
        {.may_lack_choices = true, .selection = &request.select, .findings = i == 0 ? &faults_ : others[i].get()}));
  }
  std::vector<const OpenSource*> opened;
  for (const OpenSource& source : sources) opened.push_back(&source);
  check_choices(request.read, opened);
  skipped_ = count_skipped(sources.front().catalog());
  AverageOptions options{.weights = request.averaging.factors, .labels = request.read.paths};
  if (!request.averaging.dtype.empty()) options.dtype = dtype_of_name(request.averaging.dtype);
  options.takes_tensor = [this](const Tensor& tensor) { return takes(tensor); };
  options.takes_object = [this](const Object& object) { return !is_skipped(object.name, object.path); };
  std::vector<std::unique_ptr<Reader>> readers;
  for (OpenSource& source : sources) {
    std::ranges::move(source.faults_of_operands, std::back_inserter(others));
    options.computed.push_back(source.computed);
    readers.push_back(std::move(source.reader));
  }
  OpenSource result = std::move(sources.front());
  result.faults_of_operands = std::move(others);
  result.reader = averaged(std::move(readers), options);
  const auto& sums = dynamic_cast<const ComputedReader&>(*result.reader);
  result.computed.push_back(&sums);
  check_operands(session, sums);
  result.paths = request.read.paths;
  result.label = fmt::format("{}", fmt::join(request.read.paths, " "));
  return result;
}

void Average::report() const {
  if (!is_rank_zero(session_) || skipped_.tensors + skipped_.objects == 0) return;
  note(session_,
       fmt::format("average: skipped {} and {} of the trainer's states; --optimizer also averages these tensors",
                   plural(skipped_.tensors, "tensor"), plural(skipped_.objects, "object")));
}

}  // namespace

void check_average(const Session&, Request& request) {
  AverageRequest& average = request.averaging;
  const std::size_t sources = request.read.paths.size();
  if (sources == 0) return;  // The checks of all verbs report it.
  if (sources == 1) {
    throw usage("average needs at least two checkpoints, 1 given").hint("give several: shardctl average A B -o DST");
  }
  if (!average.weights.empty() && average.ema) {
    throw usage("--weights and --ema contradict each other").hint("give one of them");
  }
  if (average.ema && !(*average.ema > 0 && *average.ema < 1)) {
    throw usage("--ema must be between 0 and 1").found(fmt::format("{}", *average.ema));
  }
  const auto dtype = dtype_of_name(average.dtype);
  const bool is_known = dtype == DType::kBfloat16 || dtype == DType::kFloat16 || dtype == DType::kFloat32;
  if (!average.dtype.empty() && !is_known) {
    throw usage(fmt::format("--dtype {}: averages are bfloat16, float16 or float32", average.dtype));
  }
  average.factors = choose_factors(average, sources);
}

int run_average(Session& session, const Request& request) {
  const std::vector<float>& factors = request.averaging.factors;
  const double sum = std::accumulate(factors.begin(), factors.end(), 0.0);
  if (std::abs(sum - 1) > 1e-5 && is_rank_zero(session)) {
    warn(session, fmt::format("the weights add up to {:.6g}, not to 1", sum));
  }
  return Average(session, request).run();
}

}  // namespace shard::app
