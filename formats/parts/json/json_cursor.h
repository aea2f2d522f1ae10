/// \file
/// A strict JSON reader that walks a text once and keeps nothing, for maps of a million entries.
///
/// Why own code: a header of a million tensors (75 MB) must be read with no memory beside the text itself, with names
/// as views into it and with doubled keys seen. A DOM doubles keys silently and needs many times the text, and a parser
/// that indexes first (simdjson) needs 1.3 times of it; UTF-8 is still checked by simdjson, once for the whole text.
/// Grammar: RFC 8259. Stricter where it matters: integers only, lone surrogates refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "libshard/core/finding_kind.h"

namespace shard {

/// Ownership: a view of the text, which must live and must end in a NUL that is not part of it (the sentinel).
/// \throws Error kCorruption (kind bad_header or as given), with the byte position, from every member.
class JsonCursor {
 public:
  /// Checks that the text is UTF-8. `file` and `kind` are for messages.
  JsonCursor(const char* begin, const char* end, std::string file, FindingKind kind);

  /// From now on `skip` takes what Python writes for numbers that JSON lacks, too: NaN, Infinity, -Infinity.
  void take_python_numbers() { takes_python_numbers_ = true; }

  /// Enters an object: `{`, then next_key() until it says no.
  void enter_object();
  /// Moves to the next member's value. `is_first` is set by the caller before the first call and cleared here.
  /// \returns false at the object's end.
  bool next_key(std::string_view& key, bool& is_first);
  /// The same with the key's escapes resolved: such a key lies in `decoded`, another one in the text.
  bool next_name(std::string_view& name, std::string& decoded, bool& is_first);
  bool at_array();  ///< Whether the next value is an array.
  void enter_array();
  bool next_element(bool& is_first);

  /// A string as it stands between its quotes. `decode` it where has_escapes().
  std::string_view string();
  bool has_escapes() const { return has_escapes_; }  ///< Whether the string or key read last has any.
  /// The text that an escaped string means.
  std::string decode(std::string_view raw) const;
  /// A whole number in [0, 2^63).
  std::int64_t integer();
  /// Takes `null` if it is there.
  bool take_null();
  /// Walks over any value, at most 64 deep.
  void skip();
  /// After the last value: only white space may follow.
  void finish();

  std::int64_t position() const { return at_ - begin_; }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  void skip_space() {
    while (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r') ++at_;
  }
  void expect(char wanted);
  bool take_word(std::string_view word);
  void skip_number();
  void read_escape(const char*& at, const char* end, std::string& out) const;
  std::uint32_t read_hex(const char*& at, const char* end) const;

  const char* begin_;
  const char* end_;
  const char* at_;
  std::string file_;
  FindingKind kind_;
  bool has_escapes_ = false, takes_python_numbers_ = false;
  int depth_ = 0;
};

}  // namespace shard
