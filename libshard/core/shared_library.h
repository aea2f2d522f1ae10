/// \file
/// SharedLibrary: a library that is opened at run time, such as a plug-in beside the library that asks for it.
#pragma once

#include <string>
#include <string_view>

namespace shard {

/// The folder of the program or library that holds `code`, the address of a function or of an object in it. The
/// program's is the one where its file is, whatever it was called by. "." where the system does not say.
std::string folder_of_code(const void* code);

/// Whether a file is at `path`, which may still be no library.
bool is_file_there(const std::string& path);

/// Where the plug-in `name` is: beside the program or library that holds `code`, as an installation has it, or in
/// ../lib/shardctl from there, as a Python environment does. Where it is in neither, its path beside.
std::string plugin_path(const void* code, std::string_view name);

/// A library of the file system. It stays open until the program ends: its threads and data may outlive every user.
class SharedLibrary {
 public:
  /// Opens it with symbols of its own. Opening a library again costs nothing. Whether it could be opened: is_open().
  /// \throws std::bad_alloc  the loader was refused the memory
  explicit SharedLibrary(const std::string& path);

  const std::string& path() const { return path_; }
  bool is_open() const { return handle_ != nullptr; }
  const std::string& why() const { return why_; }  ///< What the dynamic loader says where it cannot be opened.

  /// The function or object of that name, or null. \pre is_open()
  void* find(const char* name) const;
  /// The same where it must be there. \pre is_open()
  /// \throws Error kUnsupported  the library lacks it, being of a different version.
  void* entry(const char* name) const;

 private:
  std::string path_, why_;
  void* handle_ = nullptr;
};

}  // namespace shard
