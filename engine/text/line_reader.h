// What readers of hostile text files share: lines, JSON objects on them, and errors that name file and line.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar {

class LineReader {
 public:
  explicit LineReader(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  Status wrong(int64_t line, std::string_view what) const;
  // The object that a line is; `expected` says of what kind.
  Result<json::object> object(std::string_view text, int64_t line, std::string_view expected) const;
  // Other keys than these are refused.
  Status only(const json::object& o, std::initializer_list<std::string_view> known, int64_t line) const;
  Result<std::string_view> string(const json::object& o, const char* key, int64_t line) const;

  // add(text, line) of every line, without its end.
  template <class F>
  Status each_line(std::string_view contents, F&& add) const {
    int64_t line = 0;
    for (size_t begin = 0; begin < contents.size();) {
      const size_t end = std::min(contents.find('\n', begin), contents.size());
      std::string_view text = contents.substr(begin, end - begin);
      if (text.ends_with('\r')) text.remove_suffix(1);
      begin = end + 1;
      ++line;
      if (Status s = checked(text, line); !s.ok()) return s;
      if (Status s = add(text, line); !s.ok()) return s;
    }
    return ok_status();
  }

 private:
  Status checked(std::string_view text, int64_t line) const;  // that it is UTF-8
  std::string path_;
};

}  // namespace oar
