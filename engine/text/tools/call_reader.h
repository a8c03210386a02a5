// What stands between a call's markers, read as it arrives and handed on as OpenAI's clients have it: a name,
// and arguments as JSON text in pieces. One reader per notation (CallSyntax).
//
// A reader never judges arguments: what a model writes between brackets reaches the caller as it is, valid or
// not, as everywhere in the field. It fails only where no call has begun.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tools/markers.h"
#include "engine/text/tools/style.h"
#include "engine/text/tools/tool_set.h"

namespace oar::tools {

class CallSink {
 public:
  virtual ~CallSink() = default;
  // False: this is no call, and what was read is text. `id` is the model's own, or empty.
  virtual bool begin(std::string_view name, std::string_view id) = 0;
  virtual void arguments(std::string_view json) = 0;
  virtual void end() = 0;
};

class CallReader {
 public:
  enum class Status {
    kMore,    // wants more text
    kDone,    // what follows is no part of the calls: their end marker, or anything else
    kFailed,  // this is no call
  };
  struct Result {
    size_t used;  // bytes of the text
    Status status;
  };
  virtual ~CallReader() = default;
  // Reads on. `final`: no more text comes.
  Result read(std::string_view text, bool final, CallSink& sink);

 protected:
  explicit CallReader(const ToolStyle& style);

  // Uses at least one byte; or none and says kDone, kFailed, or (not when `final`) that it wants more.
  virtual Result step(std::string_view text, bool final, CallSink& sink) = 0;
  // Whether a marker here ends the calls: not inside a string.
  virtual bool at_boundary() const = 0;
  // An end marker stands here, or the text is over.
  virtual Status close(CallSink& sink, bool marker) = 0;

  const ToolStyle& style_;

 private:
  std::vector<std::string_view> ends_;
};

// The string of JSON text that begins behind its quote.
class JsonStringReader {
 public:
  // False at the closing quote. Appends what the character means.
  bool put(char c, std::string& out);

 private:
  void unit(uint32_t code, std::string& out);
  bool escaped_ = false;
  int digits_ = 0;          // of \uXXXX that are still to come
  uint32_t code_ = 0;       // so far
  uint32_t surrogate_ = 0;  // the first half of a pair
};

// Where a JSON value ends, by brackets and quotes alone.
class JsonExtent {
 public:
  // False: the value has ended before this character, which is no part of it.
  bool put(char c);
  bool complete() const { return complete_; }  // with the last character
  bool in_string() const { return string_; }

 private:
  int64_t depth_ = 0;
  bool string_ = false, escape_ = false, scalar_ = false, complete_ = false;
};

// A list or dict as Python prints it; empty where it is none.
std::string python_to_json(std::string_view literal);

std::unique_ptr<CallReader> json_reader(const ToolStyle& style);
std::unique_ptr<CallReader> named_json_reader(const ToolStyle& style);
// `tools` is borrowed.
std::unique_ptr<CallReader> parameters_reader(const ToolStyle& style, const std::vector<Tool>& tools);
std::unique_ptr<CallReader> pythonic_reader(const ToolStyle& style);
std::unique_ptr<CallReader> braces_reader(const ToolStyle& style);

std::unique_ptr<CallReader> make_reader(const ToolStyle& style, const std::vector<Tool>& tools);

}  // namespace oar::tools
