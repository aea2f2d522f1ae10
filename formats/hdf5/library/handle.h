/// \file
/// Closes libhdf5's identifiers automatically, and converts its errors to exceptions. Inside formats/hdf5 only.
///
/// Threads: only one thread at a time may use libhdf5; see library_lock().
#pragma once

#include <hdf5.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace shard::hdf5 {

/// A call of libhdf5 failed, or the file is refused by throw_malformed or throw_unsupported. The text of a failed call
/// is the innermost line of its error stack.
class LibraryError : public std::runtime_error {
 public:
  LibraryError(const std::string& text, bool is_unsupported) : std::runtime_error(text), unsupported_(is_unsupported) {}
  /// The file is valid but not supported, or needs a newer version of the library or a part that this one lacks.
  bool is_unsupported() const { return unsupported_; }

 private:
  bool unsupported_;
};

[[noreturn]] inline void throw_malformed(const std::string& text) { throw LibraryError(text, false); }
[[noreturn]] inline void throw_unsupported(const std::string& text) { throw LibraryError(text, true); }

/// Throws libhdf5's message about the failed call, and empties its error stack.
[[noreturn]] void throw_library_error();

/// Returns the result of a call. \throws LibraryError  it is negative: the call failed.
template <class Result>
Result checked(Result result) {
  if (result < 0) throw_library_error();
  return result;
}

/// Held while this process uses libhdf5, which may be built without thread support. The first call disables libhdf5's
/// error output and its loading of plug-ins.
std::unique_lock<std::mutex> library_lock();

/// Owns an identifier.
template <herr_t (*Close)(hid_t)>
class Handle {
 public:
  Handle() = default;
  /// \throws LibraryError  `id` is the result of a failed call.
  explicit Handle(hid_t id) : id_(checked(id)) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) Close(id_);
  }
  hid_t get() const { return id_; }
  /// Releases the identifier, for a caller that checks the result of closing it.
  hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using FileHandle = Handle<H5Fclose>;
using GroupHandle = Handle<H5Gclose>;
using ObjectHandle = Handle<H5Oclose>;
using DatasetHandle = Handle<H5Dclose>;
using SpaceHandle = Handle<H5Sclose>;
using TypeHandle = Handle<H5Tclose>;
using AttributeHandle = Handle<H5Aclose>;
using PropertiesHandle = Handle<H5Pclose>;

}  // namespace shard::hdf5
