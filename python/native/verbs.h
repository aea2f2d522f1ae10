/// \file
/// The program's verbs in this process: a command line without its process.
#pragma once

#include <deque>
#include <mutex>
#include <stop_token>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

namespace shard::python {

/// A stream buffer whose lines another thread takes while they are written. Threads: any.
class LineBuffer final : public std::streambuf {
 public:
  /// Removes and returns the complete lines, without their ends.
  std::deque<std::string> take();
  /// Does the same with an incomplete last line.
  std::deque<std::string> take_all();

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* data, std::streamsize bytes) override;

 private:
  void add(std::string_view text);

  std::mutex mutex_;
  std::deque<std::string> lines_;
  std::string last_;
};

struct VerbResult {
  int code = 0;     ///< The exit code.
  std::string out;  ///< Standard output.
};

/// Runs a command line (without the program's name) as a job of one process, without the launcher's variables. Neither
/// signals nor standard streams of this process are used or changed. `err` receives the standard error.
/// Threads: any. A requested stop ends the run as a signal would, with exit code 130.
VerbResult run_verb(const std::vector<std::string>& arguments, LineBuffer& err, const std::stop_token& stop);

}  // namespace shard::python
