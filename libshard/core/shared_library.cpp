#include "libshard/core/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cassert>
#include <filesystem>
#include <new>

#include "libshard/core/error.h"

namespace shard {

namespace {

std::string path_of_program() {
  std::error_code failure;
  return std::filesystem::read_symlink("/proc/self/exe", failure).string();
}

/// The loader reports that it cannot map the library, but not why. If memory is limited, that is the reason. Otherwise
/// the file system does not allow execution (noexec).
bool is_for_want_of_memory(std::string_view why) {
  const auto limits = [](const auto resource) {
    rlimit limit{};
    return ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  const bool is_limited = limits(RLIMIT_AS) || limits(RLIMIT_DATA);
  const auto says = [&](std::string_view words) { return why.find(words) != std::string_view::npos; };
  return says("Cannot allocate memory") || (is_limited && says("failed to map segment"));
}

}  // namespace

std::string folder_of_code(const void* code) {
  Dl_info info{};
  link_map* object = nullptr;
  if (dladdr1(code, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) return ".";
  const bool is_program = object->l_name == nullptr || *object->l_name == '\0';
  const std::string path = is_program ? path_of_program() : object->l_name;
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? "." : path.substr(0, slash);
}

bool is_file_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string plugin_path(const void* code, std::string_view name) {
  const std::string folder = folder_of_code(code);
  const std::string beside = fmt::format("{}/{}", folder, name);
  if (is_file_there(beside)) return beside;
  for (const char* const of_environment : {"../lib/shardctl", "../../../shardctl"}) {
    if (std::string path = fmt::format("{}/{}/{}", folder, of_environment, name); is_file_there(path)) return path;
  }
  return beside;
}

SharedLibrary::SharedLibrary(const std::string& path) : path_(path) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (is_open()) return;
  const char* const why = dlerror();
  why_ = why == nullptr ? "the library cannot be opened" : why;
  if (is_for_want_of_memory(why_)) throw std::bad_alloc();
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
