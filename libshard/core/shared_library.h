/// \file
/// SharedLibrary: a library that is opened at run time, such as a plug-in beside the library that asks for it.
#pragma once

#include <string>

namespace shard {

/// The folder of the program or library that holds `code`, the address of a function or of an object in it.
std::string folder_of_code(const void* code);

/// A library of the file system. It stays open until the program ends: its threads and data may outlive every user.
class SharedLibrary {
 public:
  /// Opens it with symbols of its own. Opening a library again costs nothing. Throws nothing: see is_open().
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
