/// \file
/// The parser's last answer if its processor time ends while libhdf5 opens an object. Inside formats/hdf5/parser only.
///
/// libhdf5 decodes the mappings of a virtual dataset when it opens it, in a time that grows with the square of the
/// blocks of a selection. Nothing can be counted before that, so the end of the time is what limits it.
#pragma once

#include <string_view>

namespace shard::hdf5 {

/// From now on SIGXCPU during an Opening is a kFailure of a file that is not supported, and ends the process.
void say_what_took_the_time();

/// Lives as long as libhdf5 opens the object at `path`. One at a time; nothing may be sent meanwhile.
class Opening {
 public:
  explicit Opening(std::string_view path);
  ~Opening();
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
};

}  // namespace shard::hdf5
