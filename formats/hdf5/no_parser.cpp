#include "formats/hdf5/parser.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

FileFacts parse_file(const RandomReader&, Arena&, const std::function<void(const Entry&)>&) {
  throw Error(ErrorCode::kUnsupported, "cannot read HDF5");
}

}  // namespace shard::hdf5
