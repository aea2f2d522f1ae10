/// \file SharedLibrary: a library that is opened at run time, such as a plug-in beside the library that needs it.
#pragma once

#include <string>
#include <string_view>

namespace shard {

/// The folder of the program or library that contains `code`, the address of a function or an object. For the program,
/// it is the folder of its file, regardless of the name by which it was started. "." if the system does not know.
std::string folder_of_code(const void* code);

/// Whether there is a file at `path`. It may not be a library.
bool is_file_there(const std::string& path);

/// The path of the plug-in `name`: in the folder of the program or library that contains `code`, as in an installation,
/// or in lib/shardctl of a Python environment, whose program is in bin and whose module is in
/// lib/python3.N/site-packages/shardctl. If it is in none of them, the first of these paths.
std::string plugin_path(const void* code, std::string_view name);

/// A library of the file system. It stays open until the program ends, because its threads and data may outlive every
/// user.
class SharedLibrary {
 public:
  /// Opens it with its own symbols. Opening a library again costs nothing. is_open() returns whether this succeeded.
  /// \throws std::bad_alloc  the loader could not allocate memory
  explicit SharedLibrary(const std::string& path);

  const std::string& path() const { return path_; }
  bool is_open() const { return handle_ != nullptr; }
  const std::string& why() const { return why_; }  ///< The dynamic loader's message if it could not be opened.

  /// The function or object with that name, or null. \pre is_open()
  void* find(const char* name) const;
  /// Does the same for a name that must exist. \pre is_open()
  /// \throws Error kUnsupported  the library lacks it, because it has a different version.
  void* entry(const char* name) const;

 private:
  std::string path_, why_;
  void* handle_ = nullptr;
};

}  // namespace shard
