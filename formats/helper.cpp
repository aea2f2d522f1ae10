#include "formats/helper.h"

#ifdef SHARD_HDF5_INSIDE
#include <string_view>

#include "formats/hdf5/parser/parse.h"
#include "formats/hdf5/run_parser.h"
#endif

namespace shard {

std::optional<int> run_as_helper([[maybe_unused]] std::span<char*> arguments) {
#ifdef SHARD_HDF5_INSIDE
  if (!arguments.empty() && arguments.front() == std::string_view(hdf5::kParserName)) return hdf5::run_parse(arguments);
#endif
  return std::nullopt;
}

}  // namespace shard
