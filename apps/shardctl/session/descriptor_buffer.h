/// \file
/// A stream buffer over a file descriptor that remembers why a write failed, which standard streams do not.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <streambuf>

namespace shard::app {

/// Unbuffered: TextSink buffers. Does not close the descriptor.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor) : descriptor_(descriptor) {}
  int error() const { return error_; }  ///< errno of the first failed write, or 0.

 protected:
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* data, std::streamsize bytes) override {
    std::streamsize done = 0;
    while (done < bytes) {
      const ssize_t written = write(descriptor_, data + done, static_cast<std::size_t>(bytes - done));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        if (error_ == 0) error_ = errno;
        break;
      }
      done += written;
    }
    return done;
  }

 private:
  int descriptor_;
  int error_ = 0;
};

}  // namespace shard::app
