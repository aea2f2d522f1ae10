#include "formats/hdf5/reader.h"

#include "libshard/core/error.h"

namespace shard::hdf5 {

bool detect(const Source&) { return false; }

std::unique_ptr<Reader> open(const Source&, const OpenOptions&) {
  throw Error(ErrorCode::kUnsupported, "cannot read HDF5");
}

}  // namespace shard::hdf5
