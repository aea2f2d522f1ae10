/// \file
/// Names of the files of a dcp-hf checkpoint: shard-RRRRR-model-IIIII-of-NNNNN.safetensors. RRRRR is the rank + 1. Each
/// rank distributes its tensors over NNNNN files, and IIIII is the number of one of them. A file without tensors is not
/// written. A name without the shard part belongs to a save by one process.
///
/// Source: torch 2.15, torch/distributed/checkpoint/_hf_utils.py, _gen_file_name.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shard::dcp_hf {

struct ShardName {
  std::int64_t rank = -1;  ///< -1 for a save by one process.
  std::int64_t index = 1;  ///< 1 to `count` in a valid name; not checked here.
  std::int64_t count = 1;
};

/// Parses a base name; nothing if it has a different form or the shard number 0.
std::optional<ShardName> parse_shard_name(std::string_view name);
std::string to_string(const ShardName& name);

/// Closed ranges of numbers, ascending: "0-3,5".
using NumberRuns = std::vector<std::pair<std::int64_t, std::int64_t>>;
/// \pre `numbers` is sorted; repeated numbers count once.
NumberRuns runs_of(std::span<const std::int64_t> numbers);
std::string to_string(const NumberRuns& runs);
/// Nothing if the text is not such a list in ascending order with numbers below 2^31.
std::optional<NumberRuns> parse_runs(std::string_view text);

/// The numbers of `runs` that `present` lacks. Cost: linear in both lists, regardless of the length of the runs.
NumberRuns missing_from(const NumberRuns& runs, const NumberRuns& present);
/// The count of all numbers, and the first few of them.
std::int64_t count_of(const NumberRuns& runs);
std::vector<std::int64_t> first_few(const NumberRuns& runs);

}  // namespace shard::dcp_hf
