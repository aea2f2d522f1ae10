#include "libshard/core/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cassert>
#include <string_view>

#include "libshard/core/error.h"

namespace shard {

std::string folder_of_code(const void* code) {
  Dl_info info{};
  if (dladdr(code, &info) == 0 || info.dli_fname == nullptr) return ".";
  const std::string_view path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? "." : std::string(path.substr(0, slash));
}

SharedLibrary::SharedLibrary(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (is_open()) return;
  const char* const why = dlerror();
  why_ = why == nullptr ? "the library cannot be opened" : why;
}

void* SharedLibrary::find(const char* name) const {
  assert(is_open());
  return dlsym(handle_, name);
}

void* SharedLibrary::entry(const char* name) const {
  if (void* const address = find(name); address != nullptr) return address;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} belongs to a different version of shardctl", path_.substr(path_.rfind('/') + 1)))
      .in_file(path_);
}

}  // namespace shard
