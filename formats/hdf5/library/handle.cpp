#include "formats/hdf5/library/handle.h"

namespace shard::hdf5 {

namespace {

struct Innermost {
  std::string text;
  bool is_unsupported = false;
};

/// An upward walk starts with the innermost entry.
herr_t look_at(unsigned depth, const H5E_error2_t* entry, void* data) {
  Innermost& innermost = *static_cast<Innermost*>(data);
  if (depth == 0 && entry->desc != nullptr) innermost.text = entry->desc;
  if (entry->min_num == H5E_VERSION || entry->min_num == H5E_UNSUPPORTED || entry->min_num == H5E_NOFILTER) {
    innermost.is_unsupported = true;
  }
  return 0;
}

}  // namespace

void throw_library_error() {
  Innermost innermost;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, look_at, &innermost);
  H5Eclear2(H5E_DEFAULT);
  // libhdf5 has no error code for a newer layout message, superblock, ...
  if (innermost.text.find("version number") != std::string::npos) innermost.is_unsupported = true;
  if (innermost.text.empty()) innermost.text = "libhdf5 gives no reason";
  throw LibraryError(innermost.text, innermost.is_unsupported);
}

std::unique_lock<std::mutex> library_lock() {
  static std::mutex mutex;
  std::unique_lock lock(mutex);
  static const bool is_ready = [] {
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
    return true;
  }();
  (void)is_ready;
  return lock;
}

}  // namespace shard::hdf5
